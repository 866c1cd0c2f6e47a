from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cake.operand import MAX_SIZE, View
from cake.plan import CPU, DeviceSpec, UnsupportedDevice, plan, router_problem
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


@given(kind=kinds, shape=shapes, deterministic=st.booleans())
@settings(deadline=None)
def test_a_plan_covers_the_output_and_k(kind, shape, deterministic):
    p = problem(kind, *shape)
    assert tokens(p) == shape
    q = plan(p, "sm80", deterministic=deterministic)
    rows, columns = q.tiles
    assert rows * q.program.tile_m >= p.m > (rows - 1) * q.program.tile_m
    assert columns * q.program.tile_n >= p.n > (columns - 1) * q.program.tile_n
    assert q.parts * q.hold >= q.partition.segments > (q.parts - 1) * q.hold
    assert (q.reduction == "direct") == (q.parts == 1)
    assert q.reduction != "atomic" or not deterministic
    assert (q.partial_floats > 0) == (q.reduction == "ordered")


@given(kind=st.sampled_from(["fwd", "dgrad"]), t=st.integers(1, 20_000), shape=shapes)
@settings(deadline=None)
def test_partition_of_fwd_and_dgrad_depends_on_k_alone(kind, t, shape):
    _, n, h = shape
    p = problem(kind, t, n, h)
    assert plan(p, "sm80").partition == by_k(p.k)


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


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a", "sm_100a", "sm_103a", "sm_120", "cpu"])
def test_supported(arch):
    assert DeviceSpec(arch, 100).family == "sm80"


@pytest.mark.parametrize("arch", ["sm_75", "sm_70", "gfx942"])
def test_unsupported_gpu_names_what_is_supported(arch):
    with pytest.raises(
        UnsupportedDevice, match=f"{arch} has no program: supported are GPUs of compute capability 8.0"
    ):
        _ = DeviceSpec(arch, 100).family


def test_cpu_plans_as_the_gpu_family_does():
    assert CPU.family == DeviceSpec("sm_90a", 132).family
