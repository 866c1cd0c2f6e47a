"""Both gradients as one launch: when, and on which CTAs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cake
from cake.candidates import problem
from cake.launch.router import device_spec
from cake.operand import View
from cake.plan.backward import Work, joined, shares, work
from cake.plan.device import DeviceSpec
from cake.plan.planner import Plan, plan, planted, router_problem
from cake.program.registry import keys_of

from .products import call, error, inputs, reference


def plans(t: int = 1024, h: int = 4096, n: int = 256, **options) -> tuple[Plan, Plan]:
    dgrad, wgrad = (plan(problem(kind, t, h, n), "sm90", sms=132, **options) for kind in ("dgrad", "wgrad"))
    return dgrad, wgrad


@pytest.mark.parametrize("emulation", ["bf16x3", "fp16x2"])
@pytest.mark.parametrize("t", [64, 256, 1024])
@pytest.mark.parametrize("h", [4096, 5120, 6144])
def test_the_suite_has_one_launch(t, h, emulation):
    dgrad, wgrad = plans(t, h, emulation=emulation)
    both = joined(dgrad, wgrad, 132)
    assert both is not None and both.dgrad == dgrad
    assert both.wgrad in (wgrad, replace(wgrad, hold=2, reduction="direct")) and both.wgrad.parts == 1
    assert sum(both.ctas) <= 132 and min(both.ctas) >= 1
    assert both.program.dgrad == dgrad.program and both.program.wgrad == wgrad.program


def test_two_launches_where_one_cannot_be():
    dgrad, wgrad = plans()
    assert joined(dgrad, wgrad, 132) is not None
    assert joined(dgrad, wgrad, 1) is None
    split = plan(wgrad.problem, "sm90", sms=132, splits=4)
    assert split.parts > 1 and joined(dgrad, split, 132) is None
    dgrad_split = plan(dgrad.problem, "sm90", sms=132, splits=2)
    assert joined(dgrad_split, wgrad, 132) is None
    old_dgrad, old_wgrad = (plan(p.problem, "sm80", sms=132) for p in (dgrad, wgrad))
    assert joined(old_dgrad, old_wgrad, 132) is None
    other = plan(wgrad.problem, "sm90", sms=132, emulation="fp16x2")
    assert joined(dgrad, other, 132) is None
    rows, columns = View(1024, 256, 256, 1, "f32"), View(256, 4096, 256, 0, "f32")
    turned = plan(router_problem("dgrad", rows, columns, View(1024, 4096, 4096, 1, "f32")), "sm90")
    assert joined(turned, wgrad, 132) is None


@pytest.mark.parametrize("emulation", ["bf16x3", "fp16x2"])
def test_beside_dgrad_wgrad_has_tiles_of_128_rows(emulation):
    dgrad, wgrad = plans(16, 256, 128, emulation=emulation)
    both = joined(dgrad, wgrad, 132)
    assert wgrad.program.tile_m == 64 and both is not None
    assert both.wgrad.program.tile_m == 128 and both.wgrad.partition == wgrad.partition
    assert both.program in keys_of("sm_90a")


def test_a_planted_slowdown_is_in_the_launch_of_both():
    dgrad, wgrad = plans()
    both = joined(dgrad, planted(wgrad, 100), 132)
    assert both is not None and str(both.program).endswith("_planted")
    assert joined(planted(dgrad, 100), wgrad, 132) is None


def test_work_counts_tiles_and_their_chunks():
    dgrad, wgrad = plans()
    assert work(dgrad) == Work(256, 128 * 128 * 5)
    assert work(wgrad) == Work(64, 128 * 128 * 17)


works = st.builds(Work, tiles=st.integers(1, 5000), each=st.floats(0.1, 1e6))


@given(works, works, st.integers(2, 200))
def test_no_other_shares_are_faster(first, second, ctas):
    def time(a: int, b: int) -> float:
        return max(-(-first.tiles // a) * first.each, -(-second.tiles // b) * second.each)

    a, b = shares(first, second, ctas)
    assert a >= 1 <= b and a + b <= ctas
    assert time(a, b) <= min(time(n, ctas - n) for n in range(1, ctas)) * (1 + 1e-12)
    # None is there for nothing.
    assert a == 1 or -(-first.tiles // (a - 1)) > -(-first.tiles // a)
    assert b == 1 or -(-second.tiles // (b - 1)) > -(-second.tiles // b)


SPLIT_WGRAD = (1000, 128, 2880)  # few tiles of dW for all SMs: its K is cut in more than one CTA sums


@pytest.mark.gpu
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(
    "shape", [(64, 256, 4096), (1024, 256, 5120), (1000, 136, 2880), (70, 40, 1300), SPLIT_WGRAD], ids=str
)
def test_one_launch_has_the_bits_of_two(emulation, shape, bf16):
    if DeviceSpec("sm_90a", 1).family_of(emulation) != device_spec(0).family_of(emulation):
        pytest.skip("the GPU's programs are not sm90's")
    tensors = inputs(*shape, "cuda:0", bf16=bf16)
    prepared = cake.prepare_router("bwd", **tensors, emulation=emulation)
    assert (prepared.backward is None) == (shape == SPLIT_WGRAD)
    for out in prepared.outputs.values():
        out.fill_(float("nan"))
    for _ in range(3):
        prepared()
    eager = cake.router_backward(**tensors, emulation=emulation)
    for kind, name, other in zip(("dgrad", "wgrad"), ("dX", "dW"), eager, strict=True):
        alone = call(kind, tensors, emulation=emulation)
        assert torch.equal(prepared.outputs[name], alone) and torch.equal(other, alone)
        assert error(alone, reference(kind, tensors)) <= 4e-7
