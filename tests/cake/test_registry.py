from __future__ import annotations

from dataclasses import replace

import pytest

from cake.plan.backward import BackwardKey
from cake.plan.planner import ProgramKey
from cake.program.registry import SM90_TILES, program, programs, sm90_core, sm90_side


def test_programs_have_distinct_names_and_fit_consumer_gpus():
    found = programs("sm_86")
    assert len({p.name for p in found}) == len(found) == 24
    assert max(p.smem_bytes for p in found) <= 99 * 1024 - 1024


def test_hopper_has_its_own_programs_and_those_of_all():
    found = programs("sm_90a")
    assert len({p.name for p in found}) == len(found) == 24 + 96 + 60 + 58
    assert {p.kernel for p in found} == {"router_sm80", "router_sm90", "backward_sm90"}
    own = [p for p in found if p.kernel == "router_sm90"]
    assert max(p.smem_bytes for p in found) <= 225 * 1024
    for p in own:  # registers of all warpgroups are those of the launch, in the steps the hardware has
        d = {name.removeprefix("GEMM_"): value for name, value in p.defines.items()}
        assert d["STAGES"] >= 2 <= d["A_RING"] and d["B_RING"] > 64 * d["BN"] // 512 // d["UNIT"]
        mma, convert, groups = (d[n] for n in ("MMA_REGISTERS", "CONVERT_REGISTERS", "MMA_GROUPS"))
        launched = 65536 // p.threads // 8 * 8
        assert groups * mma + convert <= (groups + 1) * launched and mma % 8 == convert % 8 == 0


def test_a_program_of_both_gradients_is_made_of_theirs():
    dgrad = ProgramKey("sm90", 64, 32, True, False, "f32", "f32")
    wgrad = ProgramKey("sm90", 128, 64, False, False, "f32", "bf16")
    both, d, w = program(BackwardKey(dgrad, wgrad)), program(dgrad), program(wgrad)
    assert both.name == "backward_sm90_64x32_128x64_bf16"
    for single, name in ((d, "DGRAD_"), (w, "WGRAD_")):
        own = {n.replace("GEMM_", name): v for n, v in single.defines.items()}
        assert own.items() <= both.defines.items()
    assert both.threads == both.defines["THREADS"] == 384 and both.smem_bytes == max(
        d.smem_bytes, w.smem_bytes
    )
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
@pytest.mark.parametrize(("b_unit_k", "core"), [(True, 128), (False, 160)])
def test_a_stage_of_fp16x2_is_two_parts_and_a_scale_a_column(b_unit_k, core, b_dtype):
    p = program(ProgramKey("sm90", 128, 128, True, b_unit_k, "f32", b_dtype, "fp16x2"))
    d = {name.removeprefix("GEMM_"): value for name, value in p.defines.items()}
    stage = 2 * core * 16 * 8 + 4 * 128
    slots = d["B_RING"] * d["UNIT"] * 128 * (8 if b_dtype == "bf16" else 16)
    assert p.smem_bytes == d["STAGES"] * stage + d["A_RING"] * 128 * 64 * 4 + slots


@pytest.mark.parametrize("fp16x2", [False, True])
@pytest.mark.parametrize("columns", sorted({n for _, n in SM90_TILES}))
def test_stores_of_split_b_meet_in_no_more_banks_than_they_must(columns, fp16x2):
    """A warp stores 256 bytes, 8 a thread: two trips to 32 banks of 4 bytes. Its threads lie side by side
    along a row of B, in rows one after another; row k of 16 is at the place that A's order gives it.
    """
    if fp16x2 and columns % 32:
        pytest.skip("no such program")
    side, core = sm90_side(columns, fp16x2), sm90_core(columns, fp16x2)
    words: dict[int, int] = {}
    for lane in range(32):
        k, n = lane // side, lane % side * 4
        place = k % 16 // 4 * 2 + k % 2 + k % 4 // 2 * 8
        at = (place // 8 * (columns // 8) + n // 8) * core + place % 8 * 16 + n % 8 * 2
        for bank in (at // 4 % 32, at // 4 % 32 + 1):
            words[bank] = words.get(bank, 0) + 1
    assert max(words.values()) == 2 and len(words) == 32


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
