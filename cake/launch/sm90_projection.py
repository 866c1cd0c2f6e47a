"""Parameter blocks of the sm90 family's projection programs."""

from __future__ import annotations

import ctypes
from dataclasses import replace

from ..operand import ITEMSIZE, View
from ..plan.dense import ProjectionPlan
from ..program.template import Program
from .router import Addresses, aligned, inverse
from .tensormap import ALIGNMENT, Mapped, TensorMap, matrix

#: Bytes of the units that a box is stored in.
UNIT = 16


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
        ("parts_inverse", ctypes.c_uint),
        ("tiles_inverse", ctypes.c_uint),
        ("band_inverse", ctypes.c_uint),
        ("raster_inverse", ctypes.c_uint),
        ("rest_inverse", ctypes.c_uint),
        ("a_batched", ctypes.c_int),
        ("b_batched", ctypes.c_int),
        ("spin", ctypes.c_int),  # read by planted programs only
        ("streamed", ctypes.c_int),
        ("inner", ctypes.c_int),
        ("whole_inner", ctypes.c_int),
        ("lines", ctypes.c_int),
        ("line", ctypes.c_longlong),
        ("matrix", ctypes.c_longlong),
        ("to", ctypes.c_void_p),
        ("_", ctypes.c_char * (-(5 * 8 + 21 * 4) % ALIGNMENT)),
    )


def parameters(plan: ProjectionPlan) -> ProjectionParams:
    """The parameters of a plan, its pointers still null, at a multiple of 64 bytes."""
    p, (rows, columns) = plan.problem, plan.tiles
    block = aligned(ProjectionParams)
    block.tiles_m, block.tiles_n = rows, columns
    block.raster = raster = min(plan.raster.height, rows)
    block.parts_inverse, block.tiles_inverse = inverse(plan.parts), inverse(rows * columns)
    block.band_inverse, block.raster_inverse = inverse(raster * columns), inverse(raster)
    block.rest_inverse = inverse(rows % raster or raster)
    block.k, block.segment, block.parts = p.k, plan.partition.segment, plan.parts
    block.whole, halves = plan.cut
    block.units = block.whole + halves
    block.a_batched, block.b_batched = (int(v.batch > 1 and v.batch_stride > 0) for v in (p.a, p.b))
    block.spin = plan.spin
    block.streamed = int(plan.streamed)
    (block.inner, block.lines), _ = matrix(p.out)
    block.whole_inner = whole(p.out)
    block.line, block.matrix = p.out.ld, p.out.batch_stride
    return block


def whole(out: View) -> int:
    """Elements of an output's line that are whole units of 16 bytes: what boxes may store."""
    (inner, _), _ = matrix(out)
    unit = UNIT // ITEMSIZE[out.dtype]
    return inner // unit * unit


def boxed(out: View) -> View:
    """The output as boxes store it: its lines without a last unit that is not whole (one unit at least, which
    a map must have: a program stores no boxes where there is none).
    """
    inner = max(whole(out), UNIT // ITEMSIZE[out.dtype])
    return replace(out, cols=inner) if out.unit == 1 else replace(out, rows=inner)


class Maps:
    """The maps of a block's operands and output."""

    def __init__(self, plan: ProjectionPlan, program: Program, block: ProjectionParams) -> None:
        p, self._swapped, self._block = plan.problem, plan.swapped, block
        self._maps = [
            Mapped(ctypes.addressof(at), view, box, batched=True)
            for at, view, box in zip(
                (block.a, block.b, block.out), (p.a, p.b, boxed(p.out)), program.boxes, strict=True
            )
        ]

    def point(self, at: Addresses) -> None:
        """Let the call's operands and the output be at these addresses."""
        first, second, out = at
        where = (second, first, out) if self._swapped else at
        self._block.to = out
        for mapped, address in zip(self._maps, where, strict=True):
            mapped.bind(address)
