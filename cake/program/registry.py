"""Template name <-> source, defines, launch shape, architectures. The one list of all programs that can be
compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product

from ..plan.partition import CHUNK, GROUP
from ..plan.planner import COUNTERS, ProgramKey

#: sm80: rows x columns of a tile -> warps along each; a warp computes 32 x 32. Three stages of 32 along K
#: keep the larger tile at 90 KB, under the 99 KB of consumer GPUs.
SM80_TILES = {(64, 64): (2, 2), (128, 64): (4, 2)}
SM80_STAGES = 3
SM80_STAGE_K = 32

#: Operand dtypes of the router: X alone may be BF16, as A of fwd and as B of wgrad.
ROUTER_DTYPES = (("f32", "f32"), ("bf16", "f32"), ("f32", "bf16"))


@dataclass(frozen=True)
class Program:
    """A kernel template instance: all that compiling and launching it needs.

    ``tensor_core_ops`` are SASS mnemonics that a compiled program must contain; ``smem_bytes`` is dynamic
    shared memory.
    """

    name: str
    kernel: str
    source: str
    defines: dict[str, int]
    threads: int
    smem_bytes: int
    tensor_core_ops: tuple[str, ...]


def _tile_bytes(extent: int, unit_k: bool, dtype: str) -> int:
    """Bytes of one operand's stage in shared memory, with the padding of ``Operand`` in
    csrc/sm80/router.cu.
    """
    outer, inner = (extent, SM80_STAGE_K) if unit_k else (SM80_STAGE_K, extent)
    pad = 8 if dtype == "bf16" or unit_k else 4
    return outer * (inner + pad) * (2 if dtype == "bf16" else 4)


@cache
def program(key: ProgramKey) -> Program:
    """The program of a key. Raises ``LookupError`` for a tile or dtypes no template has."""
    if key.family != "sm80" or (key.tile_m, key.tile_n) not in SM80_TILES:
        raise LookupError(f"no program {key}; sm80 tiles are {', '.join(f'{m}x{n}' for m, n in SM80_TILES)}")
    if (key.a_dtype, key.b_dtype) not in ROUTER_DTYPES:
        raise LookupError(f"no program {key}; operand dtypes are {ROUTER_DTYPES}")
    warps_m, warps_n = SM80_TILES[key.tile_m, key.tile_n]
    stage = _tile_bytes(key.tile_m, key.a_unit_k, key.a_dtype) + _tile_bytes(
        key.tile_n, key.b_unit_k, key.b_dtype
    )
    return Program(
        name=str(key),
        kernel="router_sm80",
        source=source("sm80/router.cu"),
        defines={
            "WARPS_M": warps_m,
            "WARPS_N": warps_n,
            "STAGES": SM80_STAGES,
            "A_UNIT_K": int(key.a_unit_k),
            "B_UNIT_K": int(key.b_unit_k),
            "A_BF16": int(key.a_dtype == "bf16"),
            "B_BF16": int(key.b_dtype == "bf16"),
            "CHUNK": CHUNK,
            "GROUP": GROUP,
            "COUNTERS": COUNTERS,
            **({"PLANTED": 1} if key.planted else {}),
        },
        threads=32 * warps_m * warps_n,
        smem_bytes=SM80_STAGES * stage,
        tensor_core_ops=("HMMA",),
    )


def source(path: str) -> str:
    """A source file of ``csrc``."""
    return files(__package__.rpartition(".")[0]).joinpath("csrc", path).read_text()


def programs() -> list[Program]:
    """Every program there is: the sm80 family, which compiles for any architecture since Ampere."""
    return [
        program(ProgramKey("sm80", *tile, a_k, b_k, *dtypes))
        for tile, dtypes, a_k, b_k in product(SM80_TILES, ROUTER_DTYPES, (True, False), (True, False))
    ]
