"""Template name <-> source, defines, launch shape, architectures. The one list of all programs that can be
compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

from ..plan.backward import WGRAD_ROWS, BackwardKey
from ..plan.dense import ProjectionKey
from ..plan.device import EMULATIONS, FAMILIES, PROJECTIONS, families
from ..plan.partition import CHUNK, GROUP
from ..plan.planner import COUNTERS, ProgramKey
from ..plan.tiles import TILES
from . import sm80_projection, sm90_projection
from .template import Box, Program, source

#: sm80: rows and columns of a tile that a warp computes. Three stages of 32 along K keep the larger tile at
#: 90 KB, under the 99 KB of consumer GPUs.
SM80_WARP = 32
SM80_STAGES = 3
SM80_STAGE_K = 32

#: sm90: registers of a thread that multiplies and of one that converts. Three warpgroups are launched with
#: 168 registers a thread, so two that multiply share 504 with the converting one: asked for more, the second
#: one waits for ever.
SM90_REGISTERS = (216, 72)
#: Warpgroups that multiply: two row blocks of a tile, or one, and then each every other chunk of K.
SM90_MMA_GROUPS = 2
SM90_THREADS = 128 * (SM90_MMA_GROUPS + 1)
#: The most chunks of A and B in shared memory as they are, and stages of B's parts.
SM90_AHEAD, SM90_STAGES = 4, 4
#: Bytes of shared memory for them: of the 227 KiB, one is left for barriers.
SM90_SMEM = 226 * 1024

SIZE = {"f32": 4, "bf16": 2}

#: Operand dtypes of the router: X alone may be BF16, as A of fwd and as B of wgrad.
ROUTER_DTYPES = (("f32", "f32"), ("bf16", "f32"), ("f32", "bf16"))


#: What tells programs apart: of a router GEMM, of both its gradients, of a projection.
Key = ProgramKey | BackwardKey | ProjectionKey

#: The modules that have the programs of a family's projections.
_PROJECTIONS = {"sm80": sm80_projection, "sm90": sm90_projection}


@cache
def program(key: Key) -> Program:
    """The program of a key. Raises ``LookupError`` for what no template has: a tile, dtypes, ..."""
    if isinstance(key, ProjectionKey):
        if key.family not in _PROJECTIONS:
            raise LookupError(f"no program {key}; projections have the families {', '.join(_PROJECTIONS)}")
        return _PROJECTIONS[key.family].program(key)
    if isinstance(key, BackwardKey):
        _check(key.dgrad)
        _check(key.wgrad)
        return _backward(key)
    _check(key)
    return {"sm80": _sm80, "sm90": _sm90}[key.family](key)


def _check(key: ProgramKey) -> None:
    if key.family not in FAMILIES:
        raise LookupError(f"no program {key}; families are {' and '.join(sorted(FAMILIES))}")
    if (key.a_dtype, key.b_dtype) not in ROUTER_DTYPES:
        raise LookupError(f"no program {key}; operand dtypes are {ROUTER_DTYPES}")
    if key.family not in EMULATIONS.get(key.emulation, ()):
        having = ", ".join(name for name, those in EMULATIONS.items() if key.family in those)
        raise LookupError(f"no program {key}; {key.family} has {having}")
    tiles = TILES[key.family, key.emulation]
    if (key.tile_m, key.tile_n) not in tiles:
        known = ", ".join(f"{m}x{n}" for m, n in tiles)
        raise LookupError(f"no program {key}; tiles of {key.family} with {key.emulation} are {known}")


def _operands(key: ProgramKey) -> dict[str, int]:
    """The defines that say what a GEMM's operands are."""
    return {
        "A_UNIT_K": int(key.a_unit_k),
        "B_UNIT_K": int(key.b_unit_k),
        "A_BF16": int(key.a_dtype == "bf16"),
        "B_BF16": int(key.b_dtype == "bf16"),
    }


def _common(family: str, planted: bool) -> dict[str, int]:
    """The defines of a program of any GEMM."""
    numbers = {"CHUNK": CHUNK, "GROUP": GROUP[family], "COUNTERS": COUNTERS}
    return numbers | ({"PLANTED": 1} if planted else {})


def _sm80(key: ProgramKey) -> Program:
    warps_m, warps_n = key.tile_m // SM80_WARP, key.tile_n // SM80_WARP

    def bytes_of(extent: int, unit_k: bool, dtype: str) -> int:
        """Of one operand's stage, with the padding of ``Operand`` in csrc/sm80/router.cu."""
        outer, inner = (extent, SM80_STAGE_K) if unit_k else (SM80_STAGE_K, extent)
        pad = 8 if dtype == "bf16" or unit_k else 4
        return outer * (inner + pad) * SIZE[dtype]

    a = bytes_of(key.tile_m, key.a_unit_k, key.a_dtype)
    b = bytes_of(key.tile_n, key.b_unit_k, key.b_dtype)
    return Program(
        name=str(key),
        kernel="router_sm80",
        source=source("sm80/router.cu"),
        defines={"WARPS_M": warps_m, "WARPS_N": warps_n, "STAGES": SM80_STAGES}
        | _operands(key)
        | _common(key.family, key.planted),
        threads=32 * warps_m * warps_n,
        smem_bytes=SM80_STAGES * (a + b),
        tensor_core_ops=("HMMA",),
    )


def _sm90(key: ProgramKey) -> Program:
    gemm = _sm90_gemm("GEMM", key)
    return Program(
        name=str(key),
        kernel="router_sm90",
        source=source("sm90/router.cu"),
        defines=gemm.defines
        | _common("sm90", key.planted)
        | ({"FP16X2": 1} if key.emulation == "fp16x2" else {}),
        threads=SM90_THREADS,
        smem_bytes=gemm.smem_bytes,
        tensor_core_ops=("HGMMA",),
        boxes=gemm.boxes,
    )


def _backward(key: BackwardKey) -> Program:
    dgrad, wgrad = _sm90_gemm("DGRAD", key.dgrad), _sm90_gemm("WGRAD", key.wgrad)
    fp16x2 = {"FP16X2": 1} if key.dgrad.emulation == "fp16x2" else {}
    return Program(
        name=str(key),
        kernel="backward_sm90",
        source=source("sm90/backward.cu"),
        defines=dgrad.defines | wgrad.defines | _common("sm90", key.wgrad.planted) | fp16x2,
        threads=SM90_THREADS,
        smem_bytes=max(dgrad.smem_bytes, wgrad.smem_bytes),
        tensor_core_ops=("HGMMA",),
        boxes=dgrad.boxes + wgrad.boxes,
    )


@dataclass(frozen=True)
class _Sm90Gemm:
    """What a GEMM of the sm90 family adds to its program."""

    defines: dict[str, int]
    smem_bytes: int
    boxes: tuple[Box, Box]


def _sm90_gemm(name: str, key: ProgramKey) -> _Sm90Gemm:
    """A GEMM whose defines begin with ``name``."""
    groups = key.tile_m // 64
    k_groups = SM90_MMA_GROUPS // groups
    fp16x2 = key.emulation == "fp16x2"
    size_a, size_b = SIZE[key.a_dtype], SIZE[key.b_dtype]
    # How a converting warp goes through its share of B, see csrc/sm90/gemm.cuh: a unit is whole columns in
    # FP16x2, else four of a thread's loads where a share is fours of them.
    share_k, share_n = (CHUNK, key.tile_n // 4) if fp16x2 else (16, key.tile_n)
    side = 1 if key.b_unit_k else sm90_side(share_n)
    loads = CHUNK * key.tile_n // 4 // 128
    columns = CHUNK // 16 if key.b_unit_k else share_k * side // 32
    unit = columns if fp16x2 else loads if loads % 4 else 4
    pad = 0 if key.b_unit_k else sm90_pad(side)
    # A stage of B's parts: of FP16x2 two, whatever B is, and a scale a column, in two factors.
    parts = 2 if fp16x2 else 1 if key.b_dtype == "bf16" else 3
    stage = parts * (128 * (CHUNK // 8) + pad) * (key.tile_n // 8) + 8 * key.tile_n * fp16x2
    # A chunk of each, and the sums that a K group hands over.
    a_chunk, b_chunk = key.tile_m * CHUNK * size_a, key.tile_n * CHUNK * size_b
    handed = key.tile_m * key.tile_n * 4 * (k_groups - 1)

    def smem(ahead: int, stages: int) -> int:
        return -(-ahead // k_groups) * k_groups * a_chunk + ahead * b_chunk + stages * stage + handed

    ahead = max(n for n in range(1, SM90_AHEAD + 1) if smem(n, 2) <= SM90_SMEM)
    stages = max(n for n in range(2, SM90_STAGES + 1) if smem(ahead, n) <= SM90_SMEM)
    mma, convert = SM90_REGISTERS
    defines = {
        "MMA_GROUPS": groups,
        "K_GROUPS": k_groups,
        "BN": key.tile_n,
        "STAGES": stages,
        "A_RING": -(-ahead // k_groups),
        "B_RING": ahead,
        "UNIT": unit,
        "SIDE": side,
        "PAD": pad,
        "MMA_REGISTERS": mma,
        "CONVERT_REGISTERS": convert,
    } | _operands(key)
    return _Sm90Gemm(
        {f"{name}_{define}": value for define, value in defines.items()},
        smem(ahead, stages),
        (
            Box(128 // size_a, 16, 128) if key.a_unit_k else Box(16, CHUNK, 16 * size_a),
            Box(16, share_n, 0) if key.b_unit_k else Box(share_n, share_k, 0),
        ),
    )


def sm90_side(columns: int) -> int:
    """Threads side by side along a line of B, whose unit stride runs along N: a power of two, of 32."""
    fours = columns // 4
    return min(16, fours & -fours)


def sm90_pad(side: int) -> int:
    """Bytes between columns of core matrices of B, where its unit stride runs along N: 32 threads store 4
    bytes each at once, 4 of ``side`` to a line, the next 4 two core matrices further, the others below.
    """
    return 256 // side % 64


def programs(arch: str) -> list[Program]:
    """Every program of an architecture."""
    return [program(key) for key in keys_of(arch)]


def keys_of(arch: str) -> list[Key]:
    """The keys of an architecture's programs."""
    keys: list[Key] = []
    for family, (emulation, having) in product(families(arch), EMULATIONS.items()):
        if family not in having:
            continue
        for tile, dtypes, a_k, b_k in product(
            TILES[family, emulation], ROUTER_DTYPES, (True, False), (True, False)
        ):
            keys.append(ProgramKey(family, *tile, a_k, b_k, *dtypes, emulation))
        if family != "sm90":
            continue
        tiles = TILES[family, emulation]
        for first, second, x in product(tiles, tiles, SIZE):
            if second[0] == WGRAD_ROWS:
                dgrad = ProgramKey(family, *first, True, False, "f32", "f32", emulation)
                wgrad = ProgramKey(family, *second, False, False, "f32", x, emulation)
                keys.append(BackwardKey(dgrad, wgrad))
    for family in families(arch):
        if family in PROJECTIONS:
            keys += _PROJECTIONS[family].keys()
    return keys
