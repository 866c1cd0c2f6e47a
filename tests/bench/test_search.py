from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from bench_builders import ROW, library

from baselines.gemm import Library, Unsupported
from bench.accuracy import references
from bench.model import Candidate, GemmSearch, Picks
from bench.search import by_timer, fastest, search_gemm, search_shape, searched
from bench.suites import Shape
from bench.tensors import router_tensors
from bench.timers import StepTime


class Scripted:
    """Measures by a list of times, one a call, and keeps what it measured."""

    def __init__(self, *times):
        self.times = list(times)
        self.runs = []

    def __call__(self, run):
        self.runs.append(run)
        return self.times.pop(0)


@pytest.fixture
def tensors():
    return router_tensors(ROW, "cpu")


def search(libraries, tensors, measure, confirm=None):
    gemm = tensors.gemm("fwd")
    return search_gemm(libraries, gemm, references(tensors).by_kind["fwd"], measure, confirm or measure)


def test_a_wrong_algorithm_is_not_timed_and_does_not_count(tensors):
    measure = Scripted(5.0, 9.0)
    found = search([library("lib", searched=True, scale=(1.0, 1.001, 1.0))], tensors, measure)
    assert [c.verified for c in found] == [True, False, True]
    assert found[1].us is None and found[1].reason.startswith("wrong: relative Frobenius error 1.0")
    assert len(measure.runs) == 2
    assert [c.algorithm for c in found] == ["algorithm 0", "algorithm 1", "algorithm 2"]


def test_nan_is_wrong(tensors):
    [c] = search([library("lib", scale=(float("nan"),))], tensors, Scripted())
    assert not c.verified


def test_an_algorithm_that_writes_nothing_is_wrong(tensors):
    tensors.gemm("fwd").out.copy_(tensors.X @ tensors.W.t())  # the right result of whoever ran before

    def idle(index):
        raise RuntimeError("status 14")

    [c] = search([library("lib", on_run=idle)], tensors, Scripted())
    assert not c.verified and c.reason == "RuntimeError: status 14"


def test_the_best_two_are_confirmed_and_the_confirmation_decides(tensors):
    measure, confirm = Scripted(3.0, 1.0, 2.0), Scripted(2.5, 2.0)
    found = search([library("lib", searched=True, scale=(1.0, 1.0, 1.0))], tensors, measure, confirm)
    assert [c.confirmed_us for c in found] == [None, 2.5, 2.0]
    result = GemmSearch(kind="fwd", T=1, H=1, N=1, candidates=found)
    assert fastest(result, ["lib"]).index == 2
    assert fastest(result, ["other"]) is None


def test_a_candidate_that_fails_when_confirmed_does_not_count(tensors):
    def confirm(run):
        raise RuntimeError("cannot be captured")

    found = search([library("lib")], tensors, Scripted(5.0), confirm)
    assert not found[0].verified and found[0].reason == "when confirmed: RuntimeError: cannot be captured"


def test_unsupported_is_kept_with_its_reason(tensors):
    def none(gemm):
        raise Unsupported("no algorithm for it")

    [c] = search([Library("lib", "cpu", none)], tensors, Scripted())
    assert c == Candidate(library="lib", index=0, reason="no algorithm for it")


def test_fastest_over_libraries_without_confirmations():
    def candidate(name, us, verified=True):
        return Candidate(library=name, index=0, us=us, verified=verified)

    result = GemmSearch(
        kind="fwd",
        T=1,
        H=1,
        N=1,
        candidates=(candidate("a", 3.0), candidate("b", 2.0), candidate("c", 1.0, False)),
    )
    assert fastest(result, "abc").library == "b"


def test_searches_of_a_shape_and_their_way_through_json(tensors):
    measure = Scripted(1.0, 2.0)
    found = search_shape(
        [library("lib")], ROW, ("fwd", "dgrad"), tensors, references(tensors), measure, measure
    )
    picks = Picks.model_validate_json(Picks(searches=tuple(found)).model_dump_json())
    assert searched(picks, ROW, "dgrad").candidates[0].us == 2.0
    assert searched(picks, ROW, "wgrad") is None
    assert searched(picks, replace(ROW, shape=Shape(1, 2, 8)), "fwd") is None


def test_measure_by_the_runs_timer_is_a_median_of_what_has_a_time():
    class Timer:
        def visit(self, launch, *, cold, untimed, steps, expected=None):
            assert (untimed, steps) == (1, 3)
            return [StepTime(3.0), StepTime(None, "no records"), StepTime(5.0)]

    assert by_timer(Timer(), lambda: None, 3)(lambda: None) == 4.0


@pytest.mark.gpu
def test_events_behind_a_delay_see_the_gpu_alone():
    from bench.search import events_behind_delay

    x = torch.ones(64 << 20, device="cuda")
    measure = events_behind_delay(lambda: None, 5)
    small, large = measure(lambda: _sweep(x[:1024])), measure(lambda: _sweep(x))
    assert 0 < small < large


def _sweep(x):
    x.mul_(1.0)


def test_candidates_within_a_tick_go_to_the_thinner_library():
    def result(tick, *times):
        names = ("torch", "cublas", "cublas", "lt")
        candidates = tuple(
            Candidate(library=name, index=i, us=us, confirmed_us=us, verified=True)
            for i, (name, us) in enumerate(zip(names, times, strict=True))
        )
        return GemmSearch(kind="fwd", T=1, H=1, N=1, tick_us=tick, candidates=candidates)

    order = ["torch", "cublas", "lt"]

    def picked(tick, *times):
        best = fastest(result(tick, *times), order)
        return best.library, best.index

    assert picked(0.032, 7.008, 7.040, 7.010, 7.072) == ("cublas", 2)  # lt is two ticks away
    assert picked(0.032, 7.008, 7.072, 7.072, 7.040) == ("lt", 3)
    assert picked(None, 7.008, 7.040, 7.040, 7.040) == ("torch", 0)
    assert picked(0.032, 7.008, 7.072, 7.072, 7.072) == ("torch", 0)
