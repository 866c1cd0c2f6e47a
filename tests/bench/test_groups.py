"""The groups of a row (bench.groups): heat, a slow host, void steps, more where cake's intervals are wide."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from bench_builders import ROW
from row_builders import SMOKE, FakeClocks, FakeTimer, bench, measured, right

from bench import conduct as conducting
from bench import groups as grouping
from bench.accuracy import references
from bench.arms import Arm, Prepared
from bench.conduct import measure_row
from bench.tensors import router_tensors
from bench.timers import StepTime


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


def test_no_group_is_measured_again_once_the_row_has_taken_its_time():
    timer = host_timer(lambda visit: 9.0 + 3 * (visit == of_group(1)))
    arms, samples, facts = measured(Arm("a", right()), timer=timer, preset=replace(SMOKE, row_seconds=0.0))
    assert facts.slow_host_groups == 0 and len(samples) == SMOKE.groups * SMOKE.steps
    assert arms["a"].flags == ("slow-host",)  # one of three is more than a fifth


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


def test_instances_are_made_before_the_first_visit_of_their_groups_and_in_its_order(monkeypatch):
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
    # The first group's are what was prepared.
    assert [e for e in events if e.startswith("make")] == ["make a", "make b", "make b", "make a"]


def test_no_groups_are_added_once_the_row_has_taken_its_time():
    timer = FakeTimer()
    timer.visit = Scattered(0.03)
    arms = [Arm(name, right(), "cake") for name in ("cake", "control")]
    for seconds, groups in ((0.0, 4), (3600.0, 12)):
        _, samples, _ = measured(
            *arms, timer=timer, preset=replace(SMOKE, groups=4, at_most=3, row_seconds=seconds)
        )
        assert samples.group.nunique() == groups


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


def test_fewer_instances_than_groups_take_turns(monkeypatch):
    made, ran = [], []

    def prepare(row, t):
        number = len(made)
        made.append(number)
        run = right()(row, t)

        def launch():
            ran.append(number)
            run()

        return launch

    monkeypatch.setattr(conducting, "capture", lambda run: SimpleNamespace(replay=run))
    preset = replace(SMOKE, groups=5, steps=1, untimed=0, instances=2)
    arms, samples, _ = measured(Arm("a", prepare), row=replace(ROW, mode="graph"), preset=preset)
    assert arms["a"].status == "ok" and made == [0, 1]
    orders = samples.group.nunique()
    # Seen once before (4 steps and the first check), then group by group, then each is checked again.
    assert ran[-orders - 2 : -2] == [g % 2 for g in range(orders)] and ran[-2:] == [0, 1]


@pytest.mark.parametrize(("visit_us", "steps"), [(None, 4), (30.0, 4), (8.0, 2), (1.0, 1)])
def test_long_rows_have_as_many_steps_as_fit_into_a_visit(visit_us, steps):
    class Steady(FakeTimer):
        def visit(self, launch, **options):
            return [replace(step, us=3.5) for step in super().visit(launch, **options)]

    preset = replace(SMOKE, groups=3, steps=4, visit_us=visit_us)
    _, samples, _ = measured(Arm("a", right()), timer=Steady(), preset=preset)
    assert samples.groupby("group").size().unique().tolist() == [steps]
