from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cake.operand import MAX_SIZE, View
from cake.plan import CPU, DeviceSpec, UnsupportedDevice, plan, router_problem
from cake.plan.device import EMULATIONS, FAMILIES, families
from cake.plan.partition import by_k
from cake.plan.planner import tokens


def problem(kind: str, t: int, n: int, h: int, out: str = "f32"):
    x, w, g = View(t, h, h, 1, "f32"), View(n, h, h, 1, "f32"), View(t, n, n, 1, "f32")
    first, second, target = {
        "fwd": (x, w, View(t, n, n, 1, out)),
        "dgrad": (g, w, View(t, h, h, 1, out)),
        "wgrad": (g, x, View(n, h, h, 1, out)),
    }[kind]
    return router_problem(kind, first, second, target)


kinds = st.sampled_from(["fwd", "dgrad", "wgrad"])
shapes = st.tuples(st.integers(1, 5000), st.integers(1, 64).map(lambda i: 8 * i), st.integers(1, 8192))


@given(kind=kinds, shape=shapes, deterministic=st.booleans(), family=st.sampled_from(list(FAMILIES)))
@settings(deadline=None)
def test_a_plan_covers_the_output_and_k(kind, shape, deterministic, family):
    p = problem(kind, *shape)
    assert tokens(p) == shape
    q = plan(p, family, deterministic=deterministic)
    rows, columns = q.tiles
    assert rows * q.program.tile_m >= p.m > (rows - 1) * q.program.tile_m
    assert columns * q.program.tile_n >= p.n > (columns - 1) * q.program.tile_n
    assert q.parts * q.hold >= q.partition.segments > (q.parts - 1) * q.hold
    assert (q.reduction == "direct") == (q.parts == 1)
    assert q.reduction != "atomic" or not deterministic
    held = family == "sm90" and q.hold > 1 and q.partition.segments > 1
    assert (q.partial_floats > 0) == (q.reduction in ("ordered", "spread") or held)
    assert 0 < q.grid[0] <= rows * columns


@given(kind=kinds, shape=shapes, sms=st.integers(1, 300))
@settings(deadline=None)
def test_ctas_that_wait_for_each_other_all_run_at_once(kind, shape, sms):
    q = plan(problem(kind, *shape), "sm90", sms=sms)
    rows, columns = q.tiles
    assert q.reduction != "spread" or q.grid[0] * q.grid[1] <= sms
    if q.reduction == "direct":  # every SM walks over as many tiles
        assert q.grid[0] <= sms and -(-rows * columns // q.grid[0]) == -(-rows * columns // sms)
    else:
        assert q.grid[0] == rows * columns


@given(kind=kinds, shape=shapes, sms=st.integers(1, 300))
@settings(deadline=None)
def test_the_number_of_sms_does_not_decide_bits(kind, shape, sms):
    p = problem(kind, *shape)
    one, other = plan(p, "sm90"), plan(p, "sm90", sms=sms)
    assert one.partition == other.partition and one.program.family == other.program.family


@given(kind=st.sampled_from(["fwd", "dgrad"]), t=st.integers(1, 20_000), shape=shapes)
@settings(deadline=None)
def test_partition_of_fwd_and_dgrad_depends_on_k_alone(kind, t, shape):
    _, n, h = shape
    p = problem(kind, t, n, h)
    assert {plan(p, family).partition for family in FAMILIES} == {by_k(p.k)}


@pytest.mark.parametrize("t", [2**20 + 1, MAX_SIZE])
def test_no_number_of_tokens_falls_back_to_the_rule_of_few(t):
    """With one CTA a segment, the partial sums of a long batch would take 16 times the output's memory."""
    assert plan(problem("fwd", t, 256, 6144), "sm80").parts == 4


def test_bf16_output_is_never_atomic():
    p = problem("dgrad", 64, 4096, 1024, out="bf16")
    assert plan(p, "sm80", deterministic=False).reduction == "ordered"


def test_splits_pin_the_partition():
    p = problem("fwd", 64, 256, 4096)
    assert plan(p, "sm80", splits=2).partition.segments == 2
    with pytest.raises(ValueError, match="splits=17"):
        plan(p, "sm80", splits=17)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90", "sm_100a", "sm_103a", "sm_120", "cpu"])
def test_supported(arch):
    assert DeviceSpec(arch, 100).family == "sm80"


def test_hopper_has_a_family_of_its_own_and_the_fallback():
    assert DeviceSpec("sm_90a", 132).family == "sm90"
    assert families("sm_90a") == ("sm90", "sm80")


def test_fp16x2_is_of_the_family_that_has_it():
    assert DeviceSpec("sm_90a", 132).family_of("fp16x2") == CPU.family_of("fp16x2") == "sm90"
    assert CPU.family_of("bf16x3") == CPU.family


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100a", "sm_120"])
def test_a_gpu_without_fp16x2_says_which_has_it(arch):
    with pytest.raises(
        UnsupportedDevice,
        match=rf"{arch} has no fp16x2 programs: .* sm90 \(sm_90a\) has them; use emulation='bf16x3'",
    ):
        DeviceSpec(arch, 100).family_of("fp16x2")


@pytest.mark.parametrize("emulation", EMULATIONS)
def test_a_gpu_without_any_program_says_so_whatever_the_emulation(emulation):
    with pytest.raises(UnsupportedDevice, match="sm_75 has no program: supported are GPUs of compute"):
        DeviceSpec("sm_75", 40).family_of(emulation)


@given(kind=kinds, shape=shapes, deterministic=st.booleans())
@settings(deadline=None)
def test_emulations_differ_in_their_programs_alone(kind, shape, deterministic):
    """So far: rules may be of one emulation; the partition is the shape's."""
    p = problem(kind, *shape)
    one = plan(p, "sm90", deterministic=deterministic)
    other = plan(p, "sm90", deterministic=deterministic, emulation="fp16x2")
    assert one != other and str(other.program).endswith("_fp16x2")
    assert one.partition == other.partition


@pytest.mark.parametrize("arch", ["sm_75", "sm_70", "gfx942"])
def test_unsupported_gpu_names_what_is_supported(arch):
    with pytest.raises(
        UnsupportedDevice, match=f"{arch} has no program: supported are GPUs of compute capability 8.0"
    ):
        _ = DeviceSpec(arch, 100).family
