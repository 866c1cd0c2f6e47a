"""From records to steps, and the tick of their stamps (bench.timers.attribution, bench.timers.tick)."""

from __future__ import annotations

import random

import pytest
from activity_builders import SPIN, Recorder

from bench.timers import StepTime
from bench.timers.attribution import Activity, attribute, normalise
from bench.timers.tick import estimate_tick


def times(records: list[Activity], steps: int, expected: tuple[str, ...] | None = None) -> list[float | None]:
    return [s.us for s in attribute(records, steps, expected).steps]


# --- attribution --------------------------------------------------------------------------------------------


def test_eager_interval_spans_gaps_between_kernels() -> None:
    r = Recorder()
    for _ in range(3):
        r.eager(("memset", 1_000), ("gemm", 10_000), ("reduce", 2_000), gap=5_000)
    steps = attribute(r.records, 3).steps
    assert steps == (StepTime(23.0, "", ("memset", "gemm", "reduce")),) * 3


def test_graph_nodes_share_one_correlation_id() -> None:
    r = Recorder()
    for _ in range(4):
        r.graph(("gemm", 10_000), ("reduce", 2_000))
    found = attribute(r.records, 4)
    assert [s.us for s in found.steps] == [12.7] * 4
    assert found.odd == 0


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_delivery_order_does_not_matter(mode: str) -> None:
    r = Recorder()
    for i in range(6):
        getattr(r, mode)(("a", 5_000 + i), ("b", 3_000))
    expected = times(r.records, 6)
    assert None not in expected
    for seed in range(5):
        shuffled = r.records[:]
        random.Random(seed).shuffle(shuffled)
        assert times(shuffled, 6) == expected


def test_without_a_flush_marks_alone_delimit() -> None:
    r = Recorder()
    for _ in range(2):
        r.launch(SPIN, 600)
        r.launch("gemm", 4_000)
    assert times(r.records, 2) == [4.0, 4.0]


def test_warming_kernel_is_no_part_of_the_op() -> None:
    r = Recorder()
    r.launch(SPIN, 600)
    r.launch("bench_l2_warm", 3_000)
    r.launch("bench_l2_probe", 4_000)
    assert attribute(r.records, 1).steps == (StepTime(4.0, "", ("bench_l2_probe",)),)


def test_records_from_before_the_visit_are_ignored() -> None:
    r = Recorder()
    r.launch("earlier", 9_000)
    r.launch("earlier_node", 9_000, graph=3)
    r.eager(("gemm", 4_000))
    assert times(r.records, 1) == [4.0]


def test_wrong_ids_of_graph_nodes_are_counted_and_do_not_move_them() -> None:
    r = Recorder()
    for _ in range(3):
        r.graph(("gemm", 10_000), ("reduce", 2_000))
    first = r.records[3].correlation
    for i, record in enumerate(r.records):  # as CUPTI before 13.1u1: replays carry an earlier launch's id
        if record.graph:
            r.replace(i, correlation=first)
    found = attribute(r.records, 3)
    assert [s.us for s in found.steps] == [12.7] * 3
    assert found.odd == 4


def test_eager_records_follow_their_id_not_the_clock() -> None:
    r = Recorder()
    r.eager(("a", 4_000))
    r.eager(("a", 5_000))
    late = r.records[3]
    assert late.name == "a"
    # The first step's kernel reads a stamp inside the second step: it is void, it does not join the second.
    r.replace(3, start=r.records[-1].start + 100, end=r.records[-1].start + 4_100)
    steps = attribute(r.records, 2).steps
    assert steps[0].us is None and "overlaps" in steps[0].void
    assert steps[1].us == 5.0


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize(
    ("start", "end", "void"),
    [
        ("0", "0", "missing"),
        ("0", "e", "missing"),
        ("s", "0", "missing"),
        ("e", "s", "reversed"),
        ("s", "s", "zero"),
    ],
)
def test_bad_stamps_void_their_step_alone(mode: str, start: str, end: str, void: str) -> None:
    r = Recorder()
    for _ in range(3):
        getattr(r, mode)(("a", 4_000), ("b", 3_000))
    a = r.records[8]
    assert a.name == "a"
    stamp = {"0": 0, "s": a.start, "e": a.end}
    r.replace(8, start=stamp[start], end=stamp[end])
    steps = attribute(r.records, 3).steps
    assert [s.us is None for s in steps] == [False, True, False]
    assert void in steps[1].void


def test_changed_sequence_is_void_against_the_usual_one() -> None:
    r = Recorder()
    r.eager(("init", 1_000), ("gemm", 4_000))
    for _ in range(3):
        r.eager(("gemm", 4_000))
    steps = attribute(r.records, 4).steps
    assert steps[0].void == "other kernels: init + gemm instead of gemm"
    assert steps[0].kernels == ("init", "gemm")
    assert [s.us for s in steps[1:]] == [4.0] * 3


def test_changed_sequence_is_void_against_the_expected_one() -> None:
    r = Recorder()
    for _ in range(3):
        r.eager(("other", 4_000))
    r.eager(("gemm", 4_000))
    assert times(r.records, 4, ("gemm",)) == [None, None, None, 4.0]


def test_branches_of_a_graph_may_swap_but_calls_may_not() -> None:
    r = Recorder()
    r.graph(("a", 4_000), ("b", 3_000))
    r.graph(("b", 3_000), ("a", 4_000))
    assert times(r.records, 2, ("a", "b")) == [7.7, 7.7]
    r = Recorder()
    r.eager(("a", 4_000), ("b", 3_000))
    r.eager(("b", 3_000), ("a", 4_000))
    assert times(r.records, 2, ("a", "b")) == [9.0, None]


def test_step_without_records_is_void_and_shifts_nothing() -> None:
    r = Recorder()
    r.eager(("a", 4_000))
    r.eager()
    r.eager(("a", 5_000))
    steps = attribute(r.records, 3).steps
    assert [s.us for s in steps] == [4.0, None, 5.0]
    assert steps[1].void == "no records"


def test_lost_marks_void_every_step() -> None:
    r = Recorder()
    for _ in range(3):
        r.eager(("a", 4_000))
    del r.records[4]
    steps = attribute(r.records, 3).steps
    assert {s.us for s in steps} == {None}
    assert steps[0].void == "records lost: 2 marks for 3 steps"


def test_marks_whose_clock_runs_backwards_void_every_step() -> None:
    r = Recorder()
    for _ in range(2):
        r.eager(("a", 4_000))
    r.replace(4, start=5, end=600)
    assert times(r.records, 2) == [None, None]


def test_no_records_at_all() -> None:
    assert times([], 2) == [None, None]


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("bench_l2_read", "bench_l2_read"),
        ("_ZN2at4cuda12_GLOBAL__N_111spin_kernelEl", "at::cuda::spin_kernel"),
        (
            "void cublasLt::splitKreduce_kernel<32, 16, int>(int, float*)",
            "cublasLt::splitKreduce_kernel<32, 16, int>",
        ),
        ("_Z3fooILi4EEvPf", "foo<4>"),
        ("sm80_xmma_gemm_f32f32_tn", "sm80_xmma_gemm_f32f32_tn"),
        ("void k<(anonymous namespace)::F, (int)3>(float)", "k<F, (int)3>"),
    ],
)
def test_normalised_names(raw: str, name: str) -> None:
    assert normalise(raw) == name


# --- tick ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tick", [1, 8, 32, 64, 1000, 1024])
def test_tick_is_found_through_rounding(tick: int) -> None:
    rng = random.Random(tick)
    durations = [rng.randrange(1, 400) * tick + rng.choice((-1, 0, 0, 1)) for _ in range(400)]
    assert estimate_tick([d for d in durations if d > 2]) == tick


def test_tick_survives_one_odd_duration_in_a_hundred() -> None:
    rng = random.Random(0)
    durations = [rng.randrange(20, 400) * 32 for _ in range(300)] + [1_237, 7_777]
    assert estimate_tick(durations) == 32


def test_tick_needs_different_durations() -> None:
    assert estimate_tick([3200] * 1000 + [3232] * 1000) is None
    assert estimate_tick([]) is None
