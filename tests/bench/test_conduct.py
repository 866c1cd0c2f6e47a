"""One row's work (bench.conduct): arms that fail, accuracy, instances, emulated arms."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from bench_builders import ROW, library
from row_builders import SMOKE, FakeTimer, bench, measured, raising, right, wrong

from bench import conduct as conducting
from bench.accuracy import references
from bench.arms import Arm, cake_arms, library_arms
from bench.conduct import measure_row
from bench.model import Manifest, Picks, Sample, TimerFacts
from bench.run import _ended
from bench.suites import Row
from bench.tensors import router_tensors
from bench.work import Bench, ContextLost, Work


def test_samples_positions_and_accuracy():
    arms, samples, facts = measured(Arm("a", right()), Arm("b", right()))
    assert {a.status for a in arms.values()} == {"ok"}
    # 3 groups are rounded up to two rotations of two arms.
    assert facts.positions == {"a": (2, 2), "b": (2, 2)}
    assert len(samples) == 2 * 4 * SMOKE.steps
    assert set(samples.columns) == set(Sample._fields)
    assert samples.us.notna().all() and not samples.void.any()
    assert arms["a"].accuracy_before == arms["a"].accuracy_after
    assert facts.repeated_groups == 0 and len(facts.clocks) == 8
    assert facts.seed == ROW.seed


@pytest.mark.parametrize("at", [0, 1, 2, 4, 7])
def test_an_arm_that_raises_is_an_error_and_the_rest_goes_on(at):
    arms, samples, _ = measured(Arm("bad", raising(at)), Arm("good", right()))
    assert arms["bad"].status == "error"
    words = "cannot be prepared" if at == 0 else f"broke at run {at}"
    assert arms["bad"].reason == f"RuntimeError: {words}"
    assert arms["good"].status == "ok"
    assert (samples.arm == "good").sum() in (3 * SMOKE.steps, 4 * SMOKE.steps)


def test_unsupported_keeps_its_reason():
    from baselines.gemm import Unsupported

    def prepare(row, t):
        raise Unsupported("N=12 is not a multiple of 8")

    arms, _, _ = measured(Arm("no", prepare))
    assert (arms["no"].status, arms["no"].reason) == ("unsupported", "N=12 is not a multiple of 8")


def test_an_inaccurate_arm_gets_no_time():
    arms, samples, _ = measured(Arm("bad", wrong), Arm("good", right()))
    assert arms["bad"].status == "inaccurate"
    assert arms["bad"].reason.startswith("relative Frobenius error")
    assert arms["bad"].accuracy_before.rel_fro > 1e-3 and arms["bad"].accuracy_after is None
    assert set(samples.arm) == {"good"}


def test_an_arm_that_writes_nothing_is_inaccurate():
    arms, _, _ = measured(Arm("good", right()), Arm("idle", lambda row, t: lambda: None))
    assert arms["idle"].status == "inaccurate"
    assert arms["idle"].reason == "the output has elements that are not finite"


def test_an_arm_that_goes_wrong_while_it_is_timed_is_inaccurate():
    def prepare(row, t):
        good, bad, count = right()(row, t), wrong(row, t), []

        def run():
            count.append(1)
            (good if len(count) < 5 else bad)()

        return run

    arms, samples, _ = measured(Arm("late", prepare))
    assert arms["late"].status == "inaccurate" and arms["late"].reason.startswith("after timing: ")
    assert len(samples) > 0


def test_every_group_of_a_graph_has_an_instance_of_its_own(monkeypatch):
    replayed, made = [], []

    def prepare(row, t):
        made.append(len(made))
        number, run = made[-1], right()(row, t)

        def once():
            replayed.append(number)
            run()

        return once

    monkeypatch.setattr(conducting, "capture", lambda run: SimpleNamespace(replay=run))
    row = replace(ROW, mode="graph")
    arms, _, _ = measured(Arm("a", prepare), row=row, preset=replace(SMOKE, groups=7, steps=1, untimed=0))
    assert arms["a"].status == "ok" and len(made) == 7
    assert replayed[-14:-7] == [0, 1, 2, 3, 4, 5, 6]
    assert replayed[-7:] == [0, 1, 2, 3, 4, 5, 6]  # each must be accurate after timing


@pytest.mark.parametrize(("bad", "late"), [(0, False), (0, True), (3, True), (6, True)])
def test_every_instance_of_a_graph_must_be_accurate(monkeypatch, bad, late):
    made = []

    def prepare(row, t):
        made.append(len(made))
        if made[-1] != bad:
            return right()(row, t)
        good, count = right()(row, t), []

        def run():
            count.append(1)
            (good if late and bad == 0 and len(count) == 1 else wrong(row, t))()

        return run

    monkeypatch.setattr(conducting, "capture", lambda run: SimpleNamespace(replay=run))
    row = replace(ROW, mode="graph")
    arms, samples, _ = measured(Arm("a", prepare), row=row, preset=replace(SMOKE, groups=7))
    assert arms["a"].status == "inaccurate" and samples.empty is not late
    assert arms["a"].accuracy_before.rel_fro < 1e-5 if late else arms["a"].accuracy_after is None
    assert arms["a"].reason.startswith("after timing: ") is late


def test_kernels_seen_first_are_expected_of_every_step():
    timer = FakeTimer(kernels=("gemm", "reduce"))
    row = Row("router", "fwd", "eager", ROW.shape)
    arms, _, _ = measured(*library_arms([library("one")], Picks()), row=row, timer=timer)
    assert arms["one"].kernels == ("gemm", "reduce") == arms["one"].calls[0].kernels
    assert timer.expected[0] is None and set(timer.expected[1:]) == {("gemm", "reduce")}
    assert "sequence" not in arms


def test_a_run_of_host_times_alone_has_no_samples():
    t = router_tensors(ROW, "cpu")
    facts, samples = measure_row(replace(bench(), timer=None), ROW, t, references(t), [Arm("a", right())])
    assert facts.arms[0].status == "ok" and samples.empty and facts.positions == {}


def test_bf16x9_where_nothing_emulates_is_no_second_rival():
    libraries = [library("one"), library("emu", native="one")]
    count = []
    libraries.append(library("emu2", native="one", on_run=count.append))
    arms, samples, _ = measured(*library_arms(libraries, Picks()), timer=FakeTimer(kernels=("sgemm",)))
    assert arms["emu"].status == "fell-back" and "9.0 does not emulate BF16x9" in arms["emu"].reason
    assert arms["one"].status == "ok" and "emu" not in set(samples.arm)
    # Once for accuracy and four steps for its kernels: a call is two GEMMs; nothing of it is timed.
    assert len(count) == 2 * 5


@pytest.mark.parametrize(
    ("kernels", "bits", "status"),
    [(("emulated",), "x", "ok"), (("sgemm",), "x", "fell-back"), (("emulated",), "n", "fell-back")],
)
def test_bf16x9_where_it_emulates(kernels, bits, status):
    native = Work(Arm("one", right(), "library"), kernels=("sgemm",), bits="n")
    emulated = Work(Arm("emu", right(), "library", "one"), kernels=kernels, bits=bits)
    conducting._judge_emulated(bench(capability=(10, 0)), [native, emulated])
    assert emulated.status == status


def test_bf16x9_that_fell_back_onto_another_native_algorithm():
    first = Work(Arm("lt_first", right(), "library"), kernels=("sgemm_64",), bits="n")
    best = Work(Arm("lt_best", right(), "library"), kernels=("sgemm_32",), bits="m")
    emulated = Work(Arm("emu_best", right(), "library", "lt_best"), kernels=("sgemm_64",), bits="x")
    conducting._judge_emulated(bench(capability=(10, 0)), [first, best, emulated])
    assert emulated.status == "fell-back"


def test_an_op_whose_kernels_cupti_never_shows_is_an_error():
    timer = FakeTimer(void=lambda n: "no records")
    timer.name = "cupti"
    arms, samples, _ = measured(Arm("a", right()), timer=timer)
    assert arms["a"].status == "error" and samples.empty
    assert arms["a"].reason == "RuntimeError: the op's kernels were not seen: no records"


def test_the_manifest_of_an_ended_run_has_the_tick_that_the_timer_saw_last():
    before = TimerFacts(name="events", dropped_records=2)
    manifest = Manifest.model_construct(timer=before, rows=(), finished="x")
    run = SimpleNamespace(finished=lambda: set())
    ended = _ended(manifest, TimerFacts(name="events", tick_us=0.5, dropped_records=1), run, 1.0)
    assert ended.timer == TimerFacts(name="events", tick_us=0.5, dropped_records=3)


def test_cake_bits_before_and_after():
    arms, _, _ = measured(*cake_arms(), Arm("mine", right()))
    assert arms["cake_det"].bits == arms["cake_det"].bits_after and len(arms["cake_det"].bits) == 64
    assert arms["mine"].bits is None and arms["mine"].bits_after is None
    assert arms["control"].bits is not None


def test_a_lost_context_ends_the_run(monkeypatch):
    def gone(bench):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Bench, "synchronize", gone)
    with pytest.raises(
        ContextLost, match=f"arm bad on {ROW.key} broke the CUDA context .* finished rows are"
    ):
        measured(Arm("bad", raising(1)))


# --- whole runs on the CPU ----------------------------------------------------------------------------------
