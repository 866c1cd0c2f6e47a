"""Parameter blocks of the sm90 family's projection programs."""

from __future__ import annotations

import ctypes

from ..plan.dense import ProjectionPlan
from ..program.template import Program
from .router import Addresses, aligned
from .tensormap import ALIGNMENT, Mapped, TensorMap


class ProjectionParams(ctypes.Structure):
    """``cake::ProjectionParams`` of csrc/sm90/projection.cu: same order, same widths."""

    _fields_ = (
        ("a", TensorMap),
        ("b", TensorMap),
        ("out", TensorMap),
        ("partial", ctypes.c_void_p),
        ("counter", ctypes.c_void_p),
        ("tiles_m", ctypes.c_int),
        ("tiles_n", ctypes.c_int),
        ("raster", ctypes.c_int),
        ("k", ctypes.c_int),
        ("segment", ctypes.c_int),
        ("parts", ctypes.c_int),
        ("units", ctypes.c_int),
        ("whole", ctypes.c_int),
        ("a_batched", ctypes.c_int),
        ("b_batched", ctypes.c_int),
        ("spin", ctypes.c_int),  # read by planted programs only
        ("_", ctypes.c_char * (-(2 * 8 + 11 * 4) % ALIGNMENT)),
    )


def parameters(plan: ProjectionPlan) -> ProjectionParams:
    """The parameters of a plan, its pointers still null, at a multiple of 64 bytes."""
    p, (rows, columns) = plan.problem, plan.tiles
    block = aligned(ProjectionParams)
    block.tiles_m, block.tiles_n = rows, columns
    block.raster = min(plan.raster.height, rows)
    block.k, block.segment, block.parts = p.k, plan.partition.segment, plan.parts
    block.whole, halves = plan.cut
    block.units = block.whole + halves
    block.a_batched, block.b_batched = (int(v.batch > 1 and v.batch_stride > 0) for v in (p.a, p.b))
    block.spin = plan.spin
    return block


class Maps:
    """The maps of a block's operands and output."""

    def __init__(self, plan: ProjectionPlan, program: Program, block: ProjectionParams) -> None:
        p, self._swapped = plan.problem, plan.swapped
        self._maps = [
            Mapped(ctypes.addressof(at), view, box, batched=True)
            for at, view, box in zip(
                (block.a, block.b, block.out), (p.a, p.b, p.out), program.boxes, strict=True
            )
        ]

    def point(self, at: Addresses) -> None:
        """Let the call's operands and the output be at these addresses."""
        first, second, out = at
        where = (second, first, out) if self._swapped else at
        for mapped, address in zip(self._maps, where, strict=True):
            mapped.bind(address)
