"""The groups of a row: every arm visited once in each, in rotated order; groups disturbed by the GPU's clocks
or by a slow host are measured again, and more are made where cake's intervals stay wide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.arms import CAKE
from bench.model import ClockReading, Sample
from bench.schedule import passes, rotation
from bench.statistics import Array, wide
from bench.suites import Row
from bench.timers import Timer
from bench.work import Bench, Work, guard

#: Share of a row's steps that may be void before the arm's reason says so.
VOIDED_SHARE = 0.05
#: How often a group is measured again because the GPU slowed down for heat or a hardware reason.
REPEATS = 2
#: In eager mode a call that takes the host longer than SLOW_HOST times its arm's usual (a quarter of the
#: arm's visits are faster than that), and more than SHOWING_HOST of the interval, is beside a slow host.
#: Groups with such visits are measured again, HOST_ROUNDS times at most, and in them each visit HOST_VISITS
#: times at most. More than SLOW_SHARE of an arm's visits flag it (a ratio forgets a quarter of its groups on
#: either side).
SLOW_HOST, USUAL_HOST, SHOWING_HOST = 1.15, 0.25, 0.5
HOST_ROUNDS, HOST_VISITS, SLOW_SHARE = 2, 8, 0.2

#: The samples of a group, by arm.
Group = dict[str, list[Sample]]


#: Of no arm is known what its calls usually take on the host.
NOT_KNOWN: Mapping[str, float] = {}


@dataclass
class Timing:
    """How the groups of a row went: their orders, the clocks around them, how many were measured again after
    a hardware slowdown, and because the host was slow.
    """

    orders: list[tuple[str, ...]]
    clocks: list[ClockReading] = field(default_factory=list)
    repeated: int = 0
    slow_host: int = 0


def time_groups(bench: Bench, row: Row, works: Sequence[Work], progress: Callable[[float], None]) -> Timing:
    """All groups of a row. ``progress`` is told parts of the preset's groups, adding up to 1."""
    if bench.timer is None or not works:
        progress(1.0)
        return Timing([])
    by_name = {w.arm.name: w for w in works}
    ordered = passes if bench.preset.form == "passes" else rotation
    # Between the kernels of one launch the host has no time.
    watched = [w.arm.name for w in works if row.mode == "eager" and len(w.kernels) > 1]
    timing, groups = Timing([]), list[Group]()
    for times in range(1, bench.preset.at_most + 1):
        timing.orders = ordered(list(by_name), times * bench.preset.groups)
        more = range(len(groups), len(timing.orders))
        for group in more:
            groups.append(_one_cool_group(bench, bench.timer, row, group, timing, by_name))
            progress(1 / len(more) if times == 1 else 0.0)
        _again_beside_slow_host(bench, bench.timer, row, groups, timing, by_name, watched)
        own = [w.arm.name for w in works if w.arm.kind == "cake" and w.alive]
        if not wide({name: _times(name, groups) for name in own}, CAKE):
            break
    usual = usual_host(groups, watched)
    beside = Counter(name for group in groups for name in slow_host(group, usual))
    for name, work in by_name.items():
        work.samples = [step for group in groups for step in group.get(name, ())]
        _check_samples(work)
        if beside[name] > SLOW_SHARE * len(groups):
            work.flag("slow-host")
    return timing


def _times(name: str, groups: Sequence[Group]) -> Array:
    """``[groups, steps]`` of an arm, NaN where a step has no time."""
    return np.array([[np.nan if s.us is None else s.us for s in group[name]] for group in groups])


def _again_beside_slow_host(
    bench: Bench,
    timer: Timer,
    row: Row,
    groups: list[Group],
    timing: Timing,
    works: dict[str, Work],
    watched: Sequence[str],
) -> None:
    """Measure the groups again in which the host was slow for one of the arms watched."""
    for _ in range(HOST_ROUNDS):
        usual = usual_host(groups, watched)
        slow = [i for i, group in enumerate(groups) if slow_host(group, usual)]
        timing.slow_host += len(slow)
        for i in slow:
            again = _one_cool_group(bench, timer, row, i, timing, works, usual)
            groups[i] = {name: again.get(name, steps) for name, steps in groups[i].items()}


def usual_host(groups: Sequence[Group], arms: Sequence[str]) -> dict[str, float]:
    """What the calls of these arms usually take on the host, in us.

    On a shared host a core needs 1.6 times its time from one moment to the next, for 50 to 500 ms: another
    tenant's work beside it.
    """
    times = {name: [_host_and_interval(g[name])[0] for g in groups if name in g] for name in arms}
    return {name: float(np.quantile(us, USUAL_HOST)) for name, us in times.items() if us}


def slow_host(group: Group, usual: Mapping[str, float]) -> list[str]:
    """The arms whose calls in this group took the host longer than usual, and so long that it may show."""
    found = []
    for name in sorted(usual.keys() & group.keys()):
        host, us = _host_and_interval(group[name])
        if host > SLOW_HOST * usual[name] and host > SHOWING_HOST * us:
            found.append(name)
    return found


def _host_and_interval(steps: Sequence[Sample]) -> tuple[float, float]:
    """The medians of what the calls of a visit took on the host and on the device; 0 where not known."""
    host = [s.host_us for s in steps if s.host_us is not None]
    us = [s.us for s in steps if s.us is not None]
    return (float(np.median(host)), float(np.median(us))) if host and us else (0.0, 0.0)


def _one_cool_group(
    bench: Bench,
    timer: Timer,
    row: Row,
    group: int,
    timing: Timing,
    works: dict[str, Work],
    usual: Mapping[str, float] = NOT_KNOWN,
) -> Group:
    """The samples of a group, measured again while the GPU is slowed down, a few times at most."""
    for attempt in range(REPEATS + 1):
        around, samples = _one_group(bench, timer, row, group, timing.orders[group], works, usual)
        timing.clocks += around  # those of a repeated group too: they are why it was
        slow = any(bench.slowed(r) for r in around)
        if not slow or attempt == REPEATS:
            break
        timing.repeated += 1
    for name in samples:
        if slow:
            works[name].flag("thermal")
        if any(bench.capped(r) for r in around):
            works[name].flag("power-cap")
    return samples


def _one_group(
    bench: Bench,
    timer: Timer,
    row: Row,
    group: int,
    order: Sequence[str],
    works: dict[str, Work],
    usual: Mapping[str, float],
) -> tuple[list[ClockReading], Group]:
    readings = [bench.clocks.read(group)]
    samples: Group = {}
    for position, name in enumerate(order):
        work = works[name]
        if not work.alive:
            continue

        def visit(work: Work = work, position: int = position) -> None:
            name = work.arm.name
            if work.prepared and work.prepared.reload:
                work.prepared.reload()
            steps = samples.setdefault(name, [])  # of the way there, on a pass's way back
            for _ in range(HOST_VISITS):
                found = _visit(bench, timer, work, group, position, len(steps))
                if not slow_host({name: found}, usual):
                    break
            steps += found

        guard(bench, row, work, visit)
        if not work.alive:
            samples.pop(name, None)
    readings.append(bench.clocks.read(group))
    return [r for r in readings if r is not None], samples


def _visit(
    bench: Bench, timer: Timer, work: Work, group: int, position: int, first_step: int
) -> list[Sample]:
    times = timer.visit(
        work.launch(group),
        cold=bench.cold,
        untimed=bench.preset.untimed,
        steps=bench.preset.steps,
        expected=work.kernels or None,
    )
    return [
        Sample(work.arm.name, group, position, step, t.us, t.void, t.host_us)
        for step, t in enumerate(times, first_step)
    ]


def _check_samples(work: Work) -> None:
    if not work.alive:
        return
    if all(s.us is None for s in work.samples):
        reason, count = Counter(s.void for s in work.samples).most_common(1)[0]
        work.fail("error", f"none of {len(work.samples)} steps has a time; {count} because: {reason}")
        return
    voids = Counter(s.void for s in work.samples if s.us is None)
    if voids.total() > VOIDED_SHARE * len(work.samples):
        reason, count = voids.most_common(1)[0]
        work.reason = (
            f"{voids.total()} of {len(work.samples)} steps are void, {count} of them because: {reason}"
        )
