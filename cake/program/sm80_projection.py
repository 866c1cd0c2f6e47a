"""The projection programs of the sm80 family."""

from __future__ import annotations

from itertools import product

from ..plan.dense import SM80_FORMS, ProjectionKey, tile_of
from ..plan.planner import COUNTERS
from .template import Program, source

#: Form -> warps along M and N, and rows and columns of a warp.
WARPS = {"128x128": (2, 4, 64, 32), "128x64": (2, 2, 64, 32), "64x64": (2, 2, 32, 32)}
#: Elements of K that a stage has, and stages: 96 KiB with the largest tile; consumer GPUs have 99.
STAGE_K, STAGES = 64, 3


def program(key: ProjectionKey) -> Program:
    """The program of a key. Raises ``LookupError`` for a form or an output no template has."""
    if key.form not in WARPS:
        raise LookupError(f"no program {key}; forms of sm80 are {', '.join(WARPS)}")
    if key.out_dtype not in ("bf16", "f32") or not key.out_unit_n:
        raise LookupError(f"no program {key}; sm80 stores rows of bf16 or f32 (swap the product for columns)")
    warps_m, warps_n, warp_m, warp_n = WARPS[key.form]
    return Program(
        name=str(key),
        kernel="projection_sm80",
        source=source("sm80/projection.cu"),
        defines={
            "WARPS_M": warps_m,
            "WARPS_N": warps_n,
            "WARP_M": warp_m,
            "WARP_N": warp_n,
            "STAGES": STAGES,
            "STAGE_K": STAGE_K,
            "A_UNIT_K": int(key.a_unit_k),
            "B_UNIT_K": int(key.b_unit_k),
            "OUT_BF16": int(key.out_dtype == "bf16"),
            "COUNTERS": COUNTERS,
        }
        | ({"PLANTED": 1} if key.planted else {}),
        threads=32 * warps_m * warps_n,
        smem_bytes=STAGES * STAGE_K * 2 * sum(tile_of(key.form)),
        tensor_core_ops=("HMMA",),
    )


def keys() -> list[ProjectionKey]:
    """The keys of all programs."""
    layouts = product((True, False), (True, False))
    return [
        ProjectionKey("sm80", form, a_k, b_k, out, True)
        for form, (a_k, b_k), out in product(SM80_FORMS, layouts, ("bf16", "f32"))
    ]
