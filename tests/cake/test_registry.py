from __future__ import annotations

from dataclasses import replace

import pytest

from cake.plan.backward import BackwardKey
from cake.plan.dense import SM80_FORMS, ProjectionKey
from cake.plan.planner import ProgramKey
from cake.plan.tiles import TILES
from cake.program import sm90_projection
from cake.program.registry import SM90_SMEM, Box, program, programs, sm90_pad, sm90_side


def test_programs_have_distinct_names_and_fit_consumer_gpus():
    found = programs("sm_86")
    assert len({p.name for p in found}) == len(found) == 24 + 24
    assert max(p.smem_bytes for p in found) <= 99 * 1024 - 1024


def test_hopper_has_its_own_programs_and_those_of_all():
    found = programs("sm_90a")
    assert len({p.name for p in found}) == len(found) == 24 + 96 + 60 + 94 + 24 + 304
    kernels = {"router_sm80", "router_sm90", "backward_sm90", "projection_sm80", "projection_sm90"}
    assert {p.kernel for p in found} == kernels
    own = [p for p in found if p.kernel == "router_sm90"]
    # Of the 227 KiB of a CTA, barriers take less than one, and shared memory begins at a multiple of 1 KiB.
    assert max(p.smem_bytes for p in found if "projection" not in p.kernel) <= SM90_SMEM == 226 * 1024
    for p in (p for p in found if p.kernel == "projection_sm90"):
        assert p.smem_bytes <= sm90_projection.SMEM == 227 * 1024 and p.defines["STAGES"] >= 3
    for p in own:  # registers of all warpgroups are those of the launch, in the steps the hardware has
        d = {name.removeprefix("GEMM_"): value for name, value in p.defines.items()}
        assert d["STAGES"] >= 2 <= d["A_RING"] * d["K_GROUPS"] and d["B_RING"] >= 2
        mma, convert, groups = d["MMA_REGISTERS"], d["CONVERT_REGISTERS"], d["MMA_GROUPS"] * d["K_GROUPS"]
        launched = 65536 // p.threads // 8 * 8
        assert groups * mma + convert <= (groups + 1) * launched and mma % 8 == convert % 8 == 0
        assert p.threads == 128 * (groups + 1)


def test_boxes_bring_a_chunk_to_every_warp():
    for p in (p for p in programs("sm_90a") if p.boxes and "projection" not in p.kernel):
        for gemm in {name.partition("_")[0] for name in p.defines if name.endswith("_BN")}:
            d = {n.removeprefix(f"{gemm}_"): v for n, v in p.defines.items()}
            a, b = p.boxes[-2:] if gemm == "WGRAD" else p.boxes[:2]
            size_a, size_b = 2 if d["A_BF16"] else 4, 2 if d["B_BF16"] else 4
            # The rows of a warp, lines of at most 128 bytes, which are those whose units trade places.
            assert a.inner * a.lines * (64 * 16 // (a.inner * a.lines)) == 64 * 16
            assert a.inner * size_a == a.swizzle <= 128
            share = 64 * d["BN"] // 4
            assert share % (b.inner * b.lines) == 0 and not b.swizzle and b.inner * size_b % 16 == 0
            assert max(a.lines, b.inner, b.lines) <= 256
    fwd = program(ProgramKey("sm90", 128, 128, True, True, "f32", "f32"))
    assert fwd.boxes == (Box(32, 16, 128), Box(16, 128, 0))


def test_a_program_of_both_gradients_is_made_of_theirs():
    dgrad = ProgramKey("sm90", 64, 32, True, False, "f32", "f32")
    wgrad = ProgramKey("sm90", 128, 64, False, False, "f32", "bf16")
    both, d, w = program(BackwardKey(dgrad, wgrad)), program(dgrad), program(wgrad)
    assert both.name == "backward_sm90_64x32_128x64_bf16"
    for single, name in ((d, "DGRAD_"), (w, "WGRAD_")):
        own = {n.replace("GEMM_", name): v for n, v in single.defines.items()}
        assert own.items() <= both.defines.items()
    assert both.threads == 384 and both.smem_bytes == max(d.smem_bytes, w.smem_bytes)
    assert both.boxes == d.boxes + w.boxes
    with pytest.raises(LookupError, match="operand dtypes"):
        program(BackwardKey(dgrad, replace(wgrad, a_dtype="bf16")))


def test_fp16x2_has_a_suffix_and_a_define_and_bf16x3_neither():
    found = {p.name: p for p in programs("sm_90a")}
    added = {name for name in found if "fp16x2" in name}
    added = {name for name in added if not name.startswith("backward")}
    plain = {n for n, p in found.items() if "router_sm90" in n and p.defines["GEMM_BN"] % 32 == 0} - added
    assert {name.removesuffix("_fp16x2") for name in added} == plain
    assert all(("fp16x2" in name) == (p.defines.get("FP16X2") == 1) for name, p in found.items())
    assert not any("fp16x2" in p.name or "FP16X2" in p.defines for p in programs("sm_100a"))


@pytest.mark.parametrize("b_dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("b_unit_k", "pad"), [(True, 0), (False, 32)])
def test_a_stage_of_fp16x2_is_two_parts_and_two_factors_a_column(b_unit_k, pad, b_dtype):
    p = program(ProgramKey("sm90", 128, 128, True, b_unit_k, "f32", b_dtype, "fp16x2"))
    d = {name.removeprefix("GEMM_"): value for name, value in p.defines.items()}
    stage = 2 * (8 * 128 + pad) * 16 + 8 * 128
    slots = 128 * 64 * (4 * d["A_RING"] + (2 if b_dtype == "bf16" else 4) * d["B_RING"])
    assert p.smem_bytes == d["STAGES"] * stage + slots


@pytest.mark.parametrize("fp16x2", [False, True])
@pytest.mark.parametrize("columns", sorted({n for _, n in TILES["sm90", "bf16x3"]}))
def test_stores_of_split_b_meet_in_no_bank(columns, fp16x2):
    """Where lines of B run along N, a warp stores 4 bytes a thread, or 8 where columns are not sixteens: to
    32 banks of 4 bytes, once or twice. Threads lie side by side along a line, then in the order of places.
    """
    if fp16x2 and columns % 32:
        pytest.skip("no such program")
    share = columns // 4 if fp16x2 else columns
    side, fours = sm90_side(share), share % 16 == 0
    column = 8 * 128 + sm90_pad(side)  # of core matrices
    words: dict[int, int] = {}
    for lane in range(32):
        place, n = lane // side, lane % side * 4
        at_n = n // 16 * 16 + n % 16 // 2 if fours else n
        at = place * 16 + at_n // 8 * column + at_n % 8 * 2
        for word in range(1 if fours else 2):
            words[at // 4 % 32 + word] = words.get(at // 4 % 32 + word, 0) + 1
    assert len(words) == 32 and max(words.values()) == (1 if fours else 2)


def test_unknown_tile_and_dtypes():
    with pytest.raises(LookupError, match="tiles of sm80 with bf16x3 are 64x64, 128x64"):
        program(ProgramKey("sm80", 32, 32, True, True, "f32", "f32"))
    with pytest.raises(LookupError, match="tiles of sm90 with bf16x3 are 64x32, "):
        program(ProgramKey("sm90", 128, 32, True, True, "f32", "f32"))
    with pytest.raises(LookupError, match="tiles of sm90 with fp16x2 are 64x32, 64x64, "):
        program(ProgramKey("sm90", 64, 48, True, True, "f32", "f32", "fp16x2"))
    with pytest.raises(LookupError, match="families are sm80 and sm90"):
        program(ProgramKey("sm70", 64, 64, True, True, "f32", "f32"))
    with pytest.raises(LookupError, match="operand dtypes"):
        program(ProgramKey("sm80", 64, 64, True, True, "bf16", "bf16"))


def test_a_family_without_the_emulation_says_which_it_has():
    for emulation in ("fp16x2", "tf32"):
        with pytest.raises(LookupError, match=f"no program router_sm80_.*_{emulation}; sm80 has bf16x3"):
            program(ProgramKey("sm80", 64, 64, True, True, "f32", "f32", emulation))


def test_projections_have_names_that_say_what_they_are():
    key = ProjectionKey("sm80", "128x64", True, False, "bf16", True)
    p = program(key)
    assert p.name == "projection_sm80_128x64_kx_bf16_r" and p.threads == 128
    assert p.smem_bytes == 3 * 64 * 2 * (128 + 64) and "PLANTED" not in p.defines
    planted = program(replace(key, planted=True))
    assert planted.name == f"{p.name}_planted" and planted.defines == p.defines | {"PLANTED": 1}
    assert {p.defines["WARPS_M"] * p.defines["WARP_M"] for p in programs("sm_86") if "proj" in p.name} == {
        64,
        128,
    }


def test_unknown_projections():
    key = ProjectionKey("sm80", "128x64", True, True, "bf16", True)
    with pytest.raises(LookupError, match=f"forms of sm80 are {', '.join(SM80_FORMS)}"):
        program(replace(key, form="32x32"))
    with pytest.raises(LookupError, match="sm80 stores rows of bf16 or f32"):
        program(replace(key, out_unit_n=False))
    with pytest.raises(LookupError, match="sm80 stores rows of bf16 or f32"):
        program(replace(key, out_dtype="f16"))
    with pytest.raises(LookupError, match="projections have the families sm80"):
        program(replace(key, family="sm70"))
