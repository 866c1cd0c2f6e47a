"""Parameter blocks of the sm80 family's projection programs."""

from __future__ import annotations

import ctypes

from ..plan.dense import ProjectionPlan
from ..program.registry import Program
from .router import Addresses


class ProjectionParams(ctypes.Structure):
    """``cake::ProjectionParams`` of csrc/sm80/projection.cu: same order, same widths."""

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("partial", ctypes.c_void_p),
        ("counter", ctypes.c_void_p),
        ("lda", ctypes.c_longlong),
        ("ldb", ctypes.c_longlong),
        ("ldo", ctypes.c_longlong),
        ("a_apart", ctypes.c_longlong),
        ("b_apart", ctypes.c_longlong),
        ("out_apart", ctypes.c_longlong),
        ("m", ctypes.c_int),
        ("n", ctypes.c_int),
        ("k", ctypes.c_int),
        ("segment", ctypes.c_int),
        ("tiles_m", ctypes.c_int),
        ("tiles_n", ctypes.c_int),
        ("raster", ctypes.c_int),
        ("spin", ctypes.c_int),  # read by planted programs only
    )


def parameters(plan: ProjectionPlan) -> ProjectionParams:
    """The parameters of a plan, its pointers still null."""
    p, (rows, columns) = plan.problem, plan.tiles
    return ProjectionParams(
        lda=p.a.ld,
        ldb=p.b.ld,
        ldo=p.out.ld,
        a_apart=p.a.batch_stride,
        b_apart=p.b.batch_stride,
        out_apart=p.out.batch_stride,
        m=p.m,
        n=p.n,
        k=p.k,
        segment=plan.partition.segment,
        tiles_m=rows,
        tiles_n=columns,
        raster=min(plan.raster.height, rows),
        spin=plan.spin,
    )


class Pointers:
    """The pointers of a block's operands and output."""

    def __init__(self, plan: ProjectionPlan, program: Program, block: ProjectionParams) -> None:
        self._block = block

    def point(self, at: Addresses) -> None:
        """Let A, B and the output be at these addresses."""
        self._block.a, self._block.b, self._block.out = at
