"""One row's work (bench.conduct) with scripted timers and clocks, and whole runs (bench.run) on the CPU."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from bench_builders import ROW, library
from rich.console import Console

from bench import conduct as conducting
from bench import groups as grouping
from bench.accuracy import references
from bench.arms import Arm, Prepared, cake_arms, library_arms
from bench.conduct import measure_row
from bench.model import Cells, ClockReading, Manifest, Picks, Sample, TimerFacts
from bench.presets import preset_for
from bench.previous import package_digest
from bench.run import _ended, conduct
from bench.session import Options, RunRefused
from bench.store import StoreError, open_run
from bench.suites import Row, router_tensors
from bench.timers import StepTime
from bench.work import Bench, ContextLost, Work

SMOKE = preset_for("smoke", "cpu")


class FakeTimer:
    """Runs every step and says it took 1, 2, 3, ... us; ``void`` steps have no time."""

    name = "events"

    def __init__(self, kernels=(), void=lambda count: ""):
        self.kernels, self.void, self.count, self.expected = kernels, void, 0, []

    def facts(self):
        return TimerFacts(name="events")

    def visit(self, launch, *, cold, untimed, steps, expected=None):
        self.expected.append(expected)
        times = []
        for _ in range(untimed + steps):
            cold()
            launch()
            self.count += 1
            void = self.void(self.count)
            times.append(StepTime(None if void else float(self.count), void, self.kernels))
        return times[untimed:]

    def close(self):
        pass


class FakeClocks:
    """Gives throttle reasons by the number of the reading."""

    def __init__(self, reasons=lambda count: ()):
        self.reasons, self.count = reasons, 0

    def read(self, group):
        self.count += 1
        return ClockReading(
            group=group, sm_mhz=1980, mem_mhz=1, power_w=1, temp_c=1, reasons=self.reasons(self.count)
        )


def bench(timer=None, clocks=None, **fields):
    return Bench(
        **{
            "device": torch.device("cpu"),
            "capability": (9, 0),
            "timer": timer or FakeTimer(),
            "cold": lambda: None,
            "clocks": clocks or FakeClocks(),
            "slowed": lambda r: "hw_thermal" in r.reasons,
            "capped": lambda r: "sw_power_cap" in r.reasons,
            "preset": SMOKE,
        }
        | fields
    )


def right(calls=None):
    def prepare(row, t):
        def run():
            if calls is not None:
                calls.append(1)
            for kind in row.gemms:
                gemm = t.gemm(kind)
                torch.mm(gemm.a, gemm.b, out=gemm.out)

        return run

    return prepare


def wrong(row, t):
    def run():
        right()(row, t)()
        t.dW[0, 0] += 1

    return run


def raising(at):
    """An arm that raises at its ``at``-th run, 0 for in prepare."""

    def prepare(row, t):
        if at == 0:
            raise RuntimeError("cannot be prepared")
        run, count = right()(row, t), []

        def counted():
            count.append(1)
            if len(count) >= at:
                raise RuntimeError(f"broke at run {at}")
            run()

        return counted

    return prepare


def measured(*arms, row=ROW, **fields):
    t = router_tensors(row, "cpu")
    facts, samples = measure_row(bench(**fields), row, t, references(t), arms)
    return {a.arm: a for a in facts.arms}, samples, facts


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


def test_a_hot_group_is_repeated_and_then_stands():
    clocks = FakeClocks(lambda count: ("hw_thermal",) if count <= 2 else ())
    arms, samples, facts = measured(Arm("a", right()), clocks=clocks)
    assert facts.repeated_groups == 1 and arms["a"].flags == ()
    assert len(samples) == SMOKE.groups * SMOKE.steps and len(facts.clocks) == 2 * SMOKE.groups + 2
    assert facts.clocks[0].reasons == ("hw_thermal",)  # why the group was repeated stays on record


def test_heat_that_stays_is_flagged_and_keeps_its_time():
    arms, samples, facts = measured(Arm("a", right()), clocks=FakeClocks(lambda count: ("hw_thermal",)))
    assert facts.repeated_groups == grouping.REPEATS * SMOKE.groups
    assert arms["a"].flags == ("thermal",) and arms["a"].status == "ok" and samples.us.notna().all()


def test_the_power_cap_is_a_label_without_repeats():
    arms, _, facts = measured(Arm("a", right()), clocks=FakeClocks(lambda count: ("sw_power_cap",)))
    assert facts.repeated_groups == 0 and arms["a"].flags == ("power-cap",)


def host_timer(pace_us, kernels=("one", "two"), host_us=9.0):
    """Every step takes 10 us on the device and ``host_us`` on the host, and mark and flush what ``pace_us``
    says for the visit's number.
    """
    timer = FakeTimer(kernels)
    visits = iter(range(10**6))

    def visit(launch, *, steps, **_):
        launch()
        return [StepTime(10.0, "", kernels, host_us, pace_us(next(visits)))] * steps

    timer.visit = visit
    return timer


def of_group(number):
    """The visit that is this group's, of one arm: one visit before showed its kernels."""
    return number + 1


def test_a_group_beside_a_slow_host_is_measured_again_after_the_others():
    timer = host_timer(lambda visit: 9.0 + 3 * (visit == of_group(1)))
    arms, samples, facts = measured(Arm("a", right()), timer=timer)
    assert facts.slow_host_groups == 1 and (arms["a"].flags, arms["a"].slow_visits) == ((), 0)
    assert len(samples) == SMOKE.groups * SMOKE.steps and (samples.pace_us == 9.0).all()
    assert list(samples.group) == sorted(samples.group)


def test_in_a_group_measured_again_a_visit_is_made_until_the_host_is_fast():
    again = of_group(SMOKE.groups)
    timer = host_timer(lambda visit: 9.0 + 3 * (visit in (of_group(1), again, again + 1)))
    arms, samples, facts = measured(Arm("a", right()), timer=timer)
    assert facts.slow_host_groups == 1 and (arms["a"].flags, arms["a"].slow_visits) == ((), 2)
    assert (samples.pace_us == 9.0).all()


def test_a_host_that_stays_slow_is_flagged_and_the_times_are_kept():
    always = (of_group(1), *range(of_group(SMOKE.groups), 100))
    timer = host_timer(lambda visit: 9.0 + 3 * (visit in always))
    arms, samples, facts = measured(Arm("a", right()), timer=timer)
    assert facts.slow_host_groups == 1
    assert arms["a"].flags == ("slow-host",) and samples.us.notna().all()


@pytest.mark.parametrize(
    ("host", "kernels", "mode"),
    [(9.0, ("one",), "eager"), (4.9, ("one", "two"), "eager"), (9.0, ("one", "two"), "graph")],
    ids=["one kernel", "too short to show", "a graph"],
)
def test_where_the_host_cannot_show_its_speed_is_no_matter(host, kernels, mode, monkeypatch):
    monkeypatch.setattr(conducting, "capture", lambda run: SimpleNamespace(replay=run))
    timer = host_timer(lambda visit: 9.0 + 3 * (visit == of_group(1)), kernels, host)
    arms, _, facts = measured(Arm("a", right()), row=replace(ROW, mode=mode), timer=timer)
    assert (facts.slow_host_groups, arms["a"].flags) == (0, ())


def test_an_arm_that_is_slow_on_the_host_now_and_then_keeps_those_visits():
    """What an arm costs the host is the arm's: only the host's pace, the same for all, decides."""
    timer, visits = FakeTimer(("one", "two")), iter(range(10**6))

    def visit(launch, *, steps, **_):
        launch()
        us = 20.0 if next(visits) % 3 else 10.0
        return [StepTime(us, "", timer.kernels, us, 9.0)] * steps

    timer.visit = visit
    _, samples, facts = measured(Arm("a", right()), timer=timer, preset=replace(SMOKE, groups=6))
    assert facts.slow_host_groups == 0 and (samples.us == 20.0).mean() == pytest.approx(2 / 3)


def test_voided_steps_are_counted():
    arms, samples, _ = measured(Arm("a", right()), timer=FakeTimer(void=lambda n: "no records" * (n % 2)))
    assert arms["a"].status == "ok" and arms["a"].voided == samples.us.isna().sum() > 0
    arms, _, _ = measured(Arm("a", right()), timer=FakeTimer(void=lambda n: "no records"))
    assert arms["a"].status == "error"
    assert arms["a"].reason == "none of 6 steps has a time; 6 because: no records"


@pytest.mark.parametrize(("every", "told"), [(10, True), (40, False)])
def test_many_voided_steps_are_told_in_the_reason(every, told):
    def void(count):
        return "no records" if count % every == 0 else ""

    arms, _, _ = measured(
        Arm("a", right()), timer=FakeTimer(void=void), preset=replace(SMOKE, groups=10, steps=10)
    )
    assert arms["a"].status == "ok" and arms["a"].voided > 0
    assert bool(arms["a"].reason) is told
    if told:
        assert arms["a"].reason.startswith(f"{arms['a'].voided} of 100 steps are void, ")
        assert arms["a"].reason.endswith("because: no records")


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


class Scattered:
    """Cake's visits alternate between two times ``apart`` of each other (a share)."""

    def __init__(self, apart):
        self.apart, self.visits = apart, 0

    def __call__(self, launch, *, steps, **_):
        launch()
        self.visits += 1
        return [StepTime(100.0 * (1 + self.apart * (self.visits % 3 == 0)), "", ())] * steps


@pytest.mark.parametrize(("apart", "times"), [(0.0, 1), (0.03, 3)])
def test_more_groups_are_made_while_cake_s_intervals_are_wide(apart, times):
    timer = FakeTimer()
    timer.visit = Scattered(apart)
    told = []
    arms = [Arm(name, right(), "cake") for name in ("cake", "control")]
    t = router_tensors(ROW, "cpu")
    preset = replace(SMOKE, groups=4, at_most=3)
    b = bench(timer=timer, preset=preset)
    facts, samples = measure_row(b, ROW, t, references(t), arms, told.append)
    assert samples.group.nunique() == 4 * times and sum(told) == pytest.approx(1.0)
    assert facts.positions["cake"] == (2 * times, 2 * times)


def test_a_row_makes_do_with_the_groups_it_has_where_no_more_instances_can_be_made(monkeypatch):
    made = []

    def prepare(row, t):
        made.append(1)
        if len(made) > 10:
            raise MemoryError("no room for one more")
        return right()(row, t)

    monkeypatch.setattr(conducting, "capture", lambda run: SimpleNamespace(replay=run))
    timer = FakeTimer()
    timer.visit = Scattered(0.03)
    arms, samples, facts = measured(
        Arm("cake", right(), "cake"),
        Arm("control", prepare, "cake"),
        row=replace(ROW, mode="graph"),
        timer=timer,
        preset=replace(SMOKE, groups=4, at_most=4),
    )
    assert {a.status for a in arms.values()} == {"ok"}
    assert samples.group.nunique() == 8 and facts.positions["cake"] == (4, 4)


def test_instances_are_made_before_the_first_visit_of_their_groups(monkeypatch):
    events = []

    def prepare(name):
        def make(row, t):
            events.append(f"make {name}")
            run = right()(row, t)

            def launch():
                events.append(name)
                run()

            return launch

        return make

    monkeypatch.setattr(conducting, "capture", lambda run: SimpleNamespace(replay=run))
    preset = replace(SMOKE, groups=2, steps=1, untimed=0)
    arms = [Arm(name, prepare(name)) for name in ("a", "b")]
    measured(*arms, row=replace(ROW, mode="graph"), preset=preset)
    first = max(i for i, event in enumerate(events) if event.startswith("make"))
    assert events[first + 1 : first + 5] == ["a", "b", "b", "a"]


def test_the_intervals_of_others_make_no_more_groups():
    timer = FakeTimer()
    timer.visit = Scattered(0.03)
    _, samples, _ = measured(
        Arm("cake", right(), "cake"),
        Arm("a", right()),
        timer=timer,
        preset=replace(SMOKE, groups=4, at_most=3),
    )
    assert samples.group.nunique() == 4


def test_programs_are_reloaded_before_every_visit():
    reloads = []

    def prepare(row, t):
        return Prepared(right()(row, t), reload=lambda: reloads.append(1))

    _, samples, _ = measured(Arm("a", prepare), Arm("b", right()))
    assert len(reloads) == samples[samples.arm == "a"].group.nunique() == 4


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


@pytest.fixture
def small(tmp_path):
    shapes = tmp_path / "shapes.toml"
    shapes.write_text("shapes = [{T = 8, H = 64, N = 16}, {T = 3, H = 128, N = 8}]")
    return Options(preset="smoke", device="cpu", out=tmp_path / "run", shapes_file=shapes, ops=("fwd", "bwd"))


def make(options):
    text = io.StringIO()
    return conduct(options, Console(file=text, width=200)), text.getvalue()


def test_a_whole_run(small):
    outcome, text = make(small)
    assert outcome.exit_code == 0 and outcome.problems == ()
    run = open_run(small.out)
    manifest = run.manifest()
    assert (manifest.at_most, manifest.instances, manifest.reloads) == (1, 0, True)
    assert len(manifest.rows) == 4 and run.finished() == set(manifest.rows)
    assert manifest.finished and manifest.flags == ("warm",) and manifest.timer.name == "cpu"
    assert "note: 90 of the 90 rows of the full suite are left out" in text
    assert run.cells() == outcome.cells and outcome.cells.missing == ()
    names = {c.arm for c in outcome.cells.cells}
    assert names == {"cake", "control", "cake_det", "torch_fp32", "numpy_fp32", "sequence", "sota"}
    assert all(c.us for c in outcome.cells.cells)
    assert outcome.run.manifest().cake_digest == package_digest()
    assert all(c.host_us is None for c in outcome.cells.cells)
    assert not (outcome.run.path / "host.json").exists()  # on a CPU a call's latency is the host's time
    assert all(c.bits_equal for c in outcome.cells.cells if c.arm == "cake_det")
    picks = Picks.model_validate(run.read_json("picks.json"))
    assert [(s.kind, s.T) for s in picks.searches] == [
        (k, t) for t in (8, 3) for k in ("fwd", "dgrad", "wgrad")
    ]
    assert {c.library for s in picks.searches for c in s.candidates} == {"torch_fp32", "numpy_fp32"}
    assert "torch" in manifest.libraries["torch_fp32"]


def test_a_ctrl_c_keeps_finished_rows_and_resume_does_the_rest(small, monkeypatch):
    from bench import run as running

    real, count = running.measure_row, []

    def interrupted(*args, **kwargs):
        count.append(1)
        if len(count) == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(running, "measure_row", interrupted)
    outcome, _ = make(small)
    assert outcome.exit_code == 2 and len(outcome.cells.missing) == 2
    assert outcome.problems == (f"interrupted; finished rows are kept: go on with --resume {small.out}",)
    run = open_run(small.out)
    assert run.manifest().finished is None
    before = {p.name: p.read_bytes() for p in run.rows_path.iterdir()}
    assert len(before) == 4

    outcome, _ = make(Options(resume=small.out))
    assert outcome.exit_code == 0 and run.manifest().finished
    assert len(count) == 5
    after = {p.name: p.read_bytes() for p in run.rows_path.iterdir()}
    assert len(after) == 8 and before.items() <= after.items()


def test_resuming_a_finished_run_measures_nothing(small, monkeypatch):
    make(small)
    monkeypatch.setattr("bench.run.measure_row", None)
    outcome, _ = make(Options(resume=small.out))
    assert outcome.exit_code == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"ops": ("fwd",)},
            "rows: 4 then, 1 now, without router-fwd-eager-T8-H64-N16 and 3 more; go on with "
            "`cake-bench run --resume {path}` and no further options, or start a new run (leave out --resume",
        ),
        ({"preset": "quick"}, "preset was smoke, now quick; form was 3 groups of 2 steps"),
        (
            {"arms_file": "mine.py"},
            "arms: 6 then, 7 now, with mine; go on with `cake-bench run --resume {path}` without --arms and ",
        ),
    ],
)
def test_resuming_as_another_run_is_refused(small, tmp_path, fields, message):
    make(small)
    (tmp_path / "mine.py").write_text(
        "from bench.arms import Arm\nARMS = [Arm('mine', lambda r, t: t.X.sum)]"
    )
    if "arms_file" in fields:
        fields = {"arms_file": tmp_path / "mine.py"}
    with pytest.raises(RunRefused) as e:
        make(replace(Options(resume=small.out), **fields))
    assert str(e.value).startswith(f"cannot resume {small.out}: {message.format(path=small.out)}")


def test_resume_of_another_schema(small):
    make(small)
    path = small.out / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 7}))
    with pytest.raises(StoreError, match="has schema version 7, this program reads version 1; measure again"):
        make(Options(resume=small.out))


def test_a_user_arm_that_raises_half_way(small, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from bench.arms import Arm\n"
        "def prepare(row, t):\n"
        "    if row.op == 'bwd':\n"
        "        raise OSError('half-way')\n"
        "    return lambda: t.out.copy_(t.X @ t.W.t())\n"
        "ARMS = [Arm('mine', prepare)]\n"
    )
    outcome, _ = make(replace(small, arms_file=path))
    mine = [c for c in outcome.cells.cells if c.arm == "mine"]
    assert [c.status for c in mine] == ["ok", "error", "ok", "error"]
    assert mine[1].reason == "OSError: half-way" and mine[0].us and mine[1].us is None
    assert outcome.exit_code == 0  # a user's arm or a rival never decides the exit code


def test_an_inaccurate_cake_arm_exits_1(small, monkeypatch):
    monkeypatch.setattr("bench.session.cake_arms", lambda previous: [Arm("cake", wrong, "cake")])
    outcome, _ = make(replace(small, ops=("bwd",)))
    assert outcome.exit_code == 1
    assert outcome.inaccurate[0].startswith(
        "cake bwd eager T=8 H=64 N=16: inaccurate: relative Frobenius error"
    )


def test_a_cake_arm_that_fails_exits_2(small, monkeypatch):
    monkeypatch.setattr("bench.session.cake_arms", lambda previous: [Arm("cake", raising(1), "cake")])
    outcome, _ = make(replace(small, ops=("fwd",)))
    assert outcome.exit_code == 2
    assert outcome.unmeasured[0] == "cake fwd eager T=8 H=64 N=16: error: RuntimeError: broke at run 1"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"suite": "dense2"}, "suite 'dense2' is unknown; suites are router"),
        ({"ops": ("up",)}, r"op 'up' is unknown; ops are fwd, dgrad, wgrad, bwd, 2fwd\+bwd"),
        ({"modes": ("graph",)}, "mode graph needs a GPU: a CPU has no graphs to capture; use --modes eager"),
        ({"modes": ("lazy",)}, "mode 'lazy' is unknown; modes are eager, graph"),
        ({"device": "tpu"}, "device is 'tpu'; needs cpu, cuda or cuda:<index>"),
        ({"preset": "huge"}, "preset 'huge' is unknown"),
    ],
)
def test_refused_options(small, fields, message):
    with pytest.raises((RunRefused, ValueError), match=message):
        make(replace(small, **fields))


def test_cells_json_is_the_cells_model(small):
    make(small)
    Cells.model_validate_json((small.out / "cells.json").read_text())


def test_prepared_is_exported_for_arm_files():
    assert Prepared(lambda: None).calls == ()


@pytest.mark.gpu
def test_a_whole_run_on_the_gpu(tmp_path):
    shapes = tmp_path / "shapes.toml"
    shapes.write_text("shapes = [{T = 64, H = 1024, N = 256}]")
    outcome, _ = make(Options(preset="smoke", out=tmp_path / "run", shapes_file=shapes))
    assert outcome.exit_code == 0
    cake = [c for c in outcome.cells.cells if c.arm in ("cake", "control", "cake_det")]
    assert cake and all(c.status == "ok" and c.rel_fro <= 4e-7 for c in cake)
    assert any(c.mode == "graph" for c in cake)
    assert all(c.us for c in outcome.cells.cells if c.arm == "sota")


def test_a_stranger_that_came_while_the_run_went_is_flagged(small, monkeypatch):
    monkeypatch.setattr("bench.run.shared_gpu", lambda device: True)
    outcome, text = make(replace(small, ops=("fwd",)))
    manifest = outcome.run.manifest()
    assert manifest.flags == ("warm", "shared-gpu")
    assert manifest.notes[-1].startswith("another process was on the GPU when the run ended")
    assert all("shared-gpu" in c.flags for c in outcome.cells.cells) and manifest.notes[-1] in text


def test_damaged_picks_are_one_line(small):
    make(small)
    (small.out / "picks.json").write_text('{"searches": 3}')
    next(small.out.glob("rows/*.json")).unlink()
    with pytest.raises(
        StoreError, match=r"picks.json is damaged: searches: .*; delete it to have it made again"
    ):
        make(Options(resume=small.out))
