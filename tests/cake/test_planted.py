from __future__ import annotations

import pytest

from cake import planted
from cake.plan import plan
from cake.plan.planner import COUNTERS
from cake.plan.planner import planted as plant
from cake.program.registry import program
from tests.cake.products import inputs
from tests.cake.test_planner import problem


def test_a_planted_plan_differs_in_its_program_and_has_a_counter_of_its_own():
    plain = plan(problem("dgrad", 64, 256, 4096), "sm80")
    slow = plant(plain, 1000)
    assert (plain.reduction, plain.counters) == ("direct", 0)
    assert slow.counters == COUNTERS * (slow.grid[0] + 1)
    assert slow.spin == 1000 and slow.partition == plain.partition
    assert str(slow.program) == f"{plain.program}_planted"
    assert program(slow.program).defines == {**program(plain.program).defines, "PLANTED": 1}


def test_only_a_gpu_can_be_slowed_down():
    tensors = inputs(8, 8, 8, "cpu")
    with pytest.raises(ValueError, match="GPU programs only; the tensors are on cpu"):
        planted.prepare("bwd", spin=10, **tensors)
