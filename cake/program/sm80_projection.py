"""The sm80 family's projection programs: defines and shared memory of csrc/sm80/projection.cu."""

from __future__ import annotations

from ..plan.dense import ProjectionKey
from ..plan.forms import SM80_TILES
from .registry import COUNTERS, SM80_STAGE_K, SM80_STAGES, SM80_WARP, Program, source

#: Elements behind each line in shared memory, of two bytes each.
PAD, SIZE = 8, 2


def sm80_projection(key: ProjectionKey) -> Program:
    """The program of a key. Raises ``LookupError`` for a tile there is none of."""
    tile = SM80_TILES.get(key.form)
    if tile is None:
        raise LookupError(f"no program {key}; tiles of sm80 are {', '.join(SM80_TILES)}")
    warps_m, warps_n = (side // SM80_WARP for side in tile)

    def bytes_of(extent: int, unit_k: bool) -> int:
        outer, inner = (extent, SM80_STAGE_K) if unit_k else (SM80_STAGE_K, extent)
        return outer * (inner + PAD) * SIZE

    return Program(
        name=str(key),
        kernel="projection_sm80",
        source=source("sm80/projection.cu"),
        defines={
            "WARPS_M": warps_m,
            "WARPS_N": warps_n,
            "STAGES": SM80_STAGES,
            "A_UNIT_K": int(key.a_unit_k),
            "B_UNIT_K": int(key.b_unit_k),
            "OUT_BF16": int(key.out_dtype == "bf16"),
            "OUT_UNIT_N": int(key.out_unit_n),
            "COUNTERS": COUNTERS,
        }
        | ({"PLANTED": 1} if key.planted else {}),
        threads=32 * warps_m * warps_n,
        smem_bytes=SM80_STAGES * (bytes_of(tile[0], key.a_unit_k) + bytes_of(tile[1], key.b_unit_k)),
        tensor_core_ops=("HMMA",),
    )
