"""About how long a plan takes on an H200, in us: enough to choose between plans. Pure.

The sm90 family's numbers were fitted to 45 GEMMs of each emulation measured there (T 16 to 4097, H 256 to
7168, N 128 to 384: tests/cake/measured.csv). On another GPU the choice is as good as its ratios are an
H200's.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..operand import ITEMSIZE
from .partition import CHUNK

if TYPE_CHECKING:
    from .planner import Plan

#: The launch and the first bytes.
START = 2.6
#: A chunk of K, by emulation and rows of the tile: for itself, and for each column.
CHUNK_US = {
    "bf16x3": {64: (0.50, 0.0077), 128: (0.755, 0.0109)},
    "fp16x2": {64: (0.64, 0.0093), 128: (1.03, 0.0104)},
}
#: A tile's element on its way to the output; a byte of operands and output, most of which is hidden.
STORE, BYTE = 1.03 / 8192, 0.39 / 4.3e6
#: All CTAs of a tile meet and add: for itself, and for each of the tile's elements.
SPREAD = (1.47, 1.13 / 8192)
#: The last of a tile adds: for each CTA in turn on an SM, and for each element of each part.
ORDERED = (1.09, 3.8 / 65536)

#: The sm80 family: what an SM multiplies and what all of them move in a us.
PAIRS, BYTES = 500e3, 4.3e6


def estimate(plan: Plan, sms: int) -> float:
    """What a plan takes on so many SMs. Raises ``LookupError`` where nothing is known of its tile."""
    key = plan.program
    if key.family == "sm80":
        return _sm80(plan, sms)
    if key.family == "sm90" and key.tile_m in CHUNK_US.get(key.emulation, ()):
        return _sm90(plan, sms)
    raise LookupError(
        f"nothing is known of how long {key} takes: name its tile in a rule, "
        "or add it to cake/plan/estimate.py"
    )


def _sm90(plan: Plan, sms: int) -> float:
    p, key, tiles = plan.problem, plan.program, math.prod(plan.tiles)
    rounds = -(-tiles // plan.walkers) if plan.walkers else -(-tiles * plan.parts // sms)
    base, column = CHUNK_US[key.emulation][key.tile_m]
    chunks = -(-min(plan.hold * plan.partition.segment, p.k) // CHUNK)
    size = key.tile_m * key.tile_n
    moved = sum(v.rows * v.cols * ITEMSIZE[v.dtype] for v in (p.a, p.b, p.out))
    us = START + rounds * chunks * (base + column * key.tile_n) + BYTE * moved
    if plan.parts == 1:
        return us + rounds * size * STORE
    if plan.reduction == "spread":
        return us + SPREAD[0] + SPREAD[1] * size
    return us + rounds * (ORDERED[0] + ORDERED[1] * size * plan.parts)


def _sm80(plan: Plan, sms: int) -> float:
    """What the SM with the most CTAs multiplies, and what all CTAs read of the operands, write as partial
    sums and read again.
    """
    p, key = plan.problem, plan.program
    ctas = math.prod(plan.tiles) * plan.parts
    length = min(plan.hold * plan.partition.segment, p.k)
    pairs = -(-ctas // sms) * key.tile_m * key.tile_n * length
    row_bytes = key.tile_m * ITEMSIZE[p.a.dtype] + key.tile_n * ITEMSIZE[p.b.dtype]
    return pairs / PAIRS + (ctas * length * row_bytes + 8 * plan.partial_floats) / BYTES
