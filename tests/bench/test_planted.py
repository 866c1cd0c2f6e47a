from __future__ import annotations

import pytest
import torch
from bench_builders import ROW
from row_builders import bench

from baselines.gemm import Unsupported
from bench.accuracy import references
from bench.conduct import measure_row
from bench.planted import LONG_SPIN, PLANTED, SHORT_SPIN, Calibration, certain, selftest_arms, solve, turned
from bench.suites import Row, Shape
from bench.tensors import router_tensors
from bench.timers import make_timer


@pytest.mark.parametrize("hidden", [0.2, -0.1])
@pytest.mark.parametrize("cake", [20.0, 30.0])  # as a graph 20 us; as eager calls perhaps more
def test_the_spin_makes_up_for_what_is_hidden_of_it(cake, hidden):
    # 2.5 ns a clock.
    rounds = {
        "cake": [cake, cake + 0.1, cake - 0.1],
        "graph": [20.0],
        "short": [20.0 - hidden + 0.0025 * SHORT_SPIN],
        "long": [20.0 - hidden + 0.0025 * LONG_SPIN],
    }
    found = solve(rounds, "cuda")
    assert found.us_per_clock == pytest.approx(0.0025)
    assert found.offset_us == pytest.approx(-hidden)
    assert found.clocks(5) == pytest.approx((0.05 * cake + hidden) / 0.0025, abs=1)


@pytest.mark.parametrize(("scatter", "enough"), [(0.05, True), (0.5, False)])
def test_there_are_more_rounds_while_the_offset_is_not_certain(scatter, enough):
    graph = [20.0 + scatter * (-1) ** i for i in range(5)]
    rounds = {"cake": graph, "graph": graph, "short": [21.0] * 5, "long": [23.0] * 5}
    assert certain(rounds) is enough
    assert certain({**rounds, "long": [23.0] * 4})  # one without a time: solve() says so
    assert certain({"cake": graph})  # a CPU
    assert certain({name: [] for name in rounds}) and certain({name: [1.0] for name in rounds})


def test_a_planted_program_that_is_slow_enough_does_not_spin():
    assert Calibration(20.0, 1.0, 5e-4).clocks(2) == 0


@pytest.mark.parametrize(
    "rounds", [{"cake": []}, {"cake": [1.0], "graph": [1.0], "short": [2.0], "long": [1.9]}]
)
def test_a_calibration_without_sense_is_refused(rounds):
    with pytest.raises(Unsupported):
        solve(rounds, "cuda")


def test_what_is_loaded_first_turns():
    assert [turned(["graph", "short", "long"], turn) for turn in (0, 1, 2, 3)] == [
        ["graph", "short", "long"],
        ["short", "long", "graph"],
        ["long", "graph", "short"],
        ["graph", "short", "long"],
    ]


def test_arms_with_and_without_planted_ones():
    assert [a.name for a in selftest_arms(bench(), plant=False)] == ["cake", "control"]
    arms = selftest_arms(bench())
    assert [a.name for a in arms] == ["cake", "control", *PLANTED.values()]
    assert {a.kind for a in arms} == {"cake"}


def test_on_a_cpu_the_caller_spins():
    row = Row("router", "fwd", "eager", Shape(16, 64, 32))
    b = bench(timer=make_timer("cpu", "cpu"))
    tensors = router_tensors(row, "cpu")
    facts, samples = measure_row(b, row, tensors, references(tensors), selftest_arms(b))
    assert [a.status for a in facts.arms] == ["ok"] * 5
    assert facts.arms[-1].program.endswith("clocks slower")
    assert samples["us"].notna().all()


def test_without_a_timer_nothing_is_planted():
    b = bench(timer=None)
    arms = selftest_arms(b)
    object.__setattr__(b, "timer", None)
    with pytest.raises(Unsupported, match="calibrated by the run's timer"):
        arms[2].bind(ROW, router_tensors(ROW, "cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("op", ["fwd", "bwd", "2fwd+bwd"])
def test_on_a_gpu_the_slowdown_is_about_what_was_asked(op, mode):
    from dataclasses import replace

    from bench.l2 import L2
    from bench.presets import preset_for

    row = Row("router", op, mode, Shape(256, 4096, 256))
    timer = make_timer("cupti", "cuda")
    device = torch.device("cuda", 0)
    preset = replace(preset_for("full", "cuda"), groups=10)
    b = bench(timer=timer, device=device, cold=L2(device).flush, preset=preset)
    tensors = router_tensors(row, device)
    facts, samples = measure_row(b, row, tensors, references(tensors), selftest_arms(b))
    assert [a.status for a in facts.arms] == ["ok"] * 5, facts
    assert len({a.bits_after for a in facts.arms if a.bits_after}) >= 1
    us = samples.groupby("arm")["us"].median()
    if mode == "graph":
        assert 1.03 < us["cake_planted_5"] / us["cake"] < 1.07
