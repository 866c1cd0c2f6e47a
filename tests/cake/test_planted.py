from __future__ import annotations

from dataclasses import replace

import pytest

import cake
from cake import planted
from cake.plan import plan
from cake.plan.planner import planted as plant
from cake.program.registry import program
from tests.cake.products import inputs
from tests.cake.test_planner import problem


def test_a_planted_plan_differs_in_its_program_and_spin_alone():
    plain = plan(problem("dgrad", 64, 256, 4096), "sm80")
    slow = plant(plain, 1000)
    assert replace(slow, program=plain.program, spin=0) == plain and slow.spin == 1000
    assert str(slow.program) == f"{plain.program}_planted"
    assert program(slow.program).defines == {**program(plain.program).defines, "PLANTED": 1}


def test_a_planted_plan_keeps_its_emulation():
    plain = plan(problem("dgrad", 64, 256, 4096), "sm90", emulation="fp16x2")
    slow = plant(plain, 1000)
    assert str(slow.program).endswith("_f32_f32_fp16x2_planted")
    assert program(slow.program).defines == {**program(plain.program).defines, "PLANTED": 1}


def test_only_a_gpu_can_be_slowed_down():
    tensors = inputs(8, 8, 8, "cpu")
    with pytest.raises(ValueError, match="GPU programs only; the tensors are on cpu"):
        planted.prepare("bwd", spin=10, **tensors)


def test_eager_calls_find_the_launches_of_their_own_cache():
    tensors = inputs(8, 8, 8, "cpu")
    cake.clear_caches()
    slow = planted.Eager(lambda: cake.router_forward(tensors["X"], tensors["W"]), "fwd", 10)
    with pytest.raises(ValueError, match="GPU programs only; the tensors are on cpu"):
        slow()
    cake.router_forward(tensors["X"], tensors["W"])
    with pytest.raises(ValueError, match="GPU programs only"):
        slow()  # what the plain cache has is not its own
    assert len(cake.router._entries) == 1


@pytest.mark.parametrize("spin", [-1, 2**31, 1.5])
def test_a_spin_is_a_number_of_clocks(spin):
    with pytest.raises(ValueError, match="clocks"):
        planted.Eager(lambda: None, "fwd", spin)


def test_a_call_that_fails_leaves_the_plain_cache_in_place():
    entries = cake.router._entries

    def fails():
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        planted.Eager(fails, "fwd", 1)()
    assert cake.router._entries is entries
