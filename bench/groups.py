"""The groups of a row: every arm visited once in each, in rotated order; groups disturbed by the GPU's clocks
or by a slow host are measured again, and more are made where cake's intervals stay wide.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from bench.arms import CAKE
from bench.model import ClockReading, Flag, Sample
from bench.schedule import passes, rotation
from bench.statistics import Array, wide
from bench.suites import Row
from bench.timers import Timer
from bench.work import Bench, Work, guard

#: Share of a row's steps that may be void before the arm's reason says so.
VOIDED_SHARE = 0.05
#: How often a group is measured again because the GPU slowed down for heat or a hardware reason.
REPEATS = 2
#: In eager mode the host's time between an op's launches is in the interval. A visit is beside a slow host if
#: enqueueing the mark and the flush took longer than SLOW_PACE times the usual, which a quarter of the arm's
#: visits are faster than: the same work for every arm, so that no arm's own host time decides. Where calls
#: take more than SHOWING_HOST of an arm's interval, groups with such visits are measured again, PACE_ROUNDS
#: times at most, and in them each visit PACE_VISITS times at most. More than SLOW_SHARE of an arm's visits
#: flag it (a ratio forgets a quarter of its groups on either side).
SLOW_PACE, USUAL_PACE, SHOWING_HOST = 1.15, 0.25, 0.5
PACE_ROUNDS, PACE_VISITS, SLOW_SHARE = 2, 8, 0.2

#: The samples of a group, by arm.
Group = dict[str, list[Sample]]


#: No arm's visits are made again for the host's pace.
NO_LIMITS: Mapping[str, float] = {}


@dataclass
class Timing:
    """How the groups of a row went: their orders, the clocks around them, the flags of each, how many were
    measured again after a hardware slowdown, and which because the host was slow.
    """

    orders: list[tuple[str, ...]]
    clocks: list[ClockReading] = field(default_factory=list)
    flags: dict[int, list[Flag]] = field(default_factory=dict)
    repeated: int = 0
    slow_host: Counter[int] = field(default_factory=Counter)


def time_groups(bench: Bench, row: Row, works: Sequence[Work], progress: Callable[[float], None]) -> Timing:
    """All groups of a row. ``progress`` is told parts of the preset's groups, adding up to 1."""
    if bench.timer is None or not works:
        progress(1.0)
        return Timing([])
    by_name = {w.arm.name: w for w in works}
    ordered = passes if bench.preset.form == "passes" else rotation
    timing, groups = Timing([]), list[Group]()
    begin, limit = time.monotonic(), bench.preset.row_seconds

    def late() -> bool:
        return limit is not None and time.monotonic() - begin > limit

    for times in range(1, bench.preset.at_most + 1):
        timing.orders = ordered(list(by_name), times * bench.preset.groups)
        more = range(len(groups), len(timing.orders))
        if not _make_instances(bench, row, by_name, timing.orders, more):
            timing.orders = timing.orders[: len(groups)]
            break
        for group in more:
            groups.append(_one_cool_group(bench, bench.timer, row, group, timing, by_name))
            progress(1 / len(more) if times == 1 else 0.0)
        if row.mode == "eager":
            _again_beside_slow_host(bench, bench.timer, row, groups, timing, by_name, late)
        own = [w.arm.name for w in works if w.arm.kind == "cake" and w.alive]
        if late() or not wide({name: _times(name, groups) for name in own}, CAKE):
            break
    for name, work in by_name.items():
        mine = [i for i, group in enumerate(groups) if name in group]
        work.samples = [step for i in mine for step in groups[i][name]]
        _check_samples(work)
        for flag in dict.fromkeys(flag for i in mine for flag in timing.flags[i]):
            work.flag(flag)
        usual = pace_limit(groups, name)
        beside = sum(_pace(groups[i][name]) > usual for i in mine)
        if beside > SLOW_SHARE * len(mine) and row.mode == "eager" and _shows(groups, work):
            work.flag("slow-host")
    return timing


def _make_instances(
    bench: Bench, row: Row, works: Mapping[str, Work], orders: Sequence[Sequence[str]], groups: range
) -> bool:
    """Make the instances of all arms for these groups, so that nothing is done between their visits.

    Each group's are made in the order of its visits (but the first one's are there already), so that no arm
    has a place in memory of its own: made arm by arm, equal arms came out 0.6 and 0.8 % apart in 2 of 87 rows
    on an H200. Of the first groups, an arm that cannot be made is given up, whichever it is when memory ends;
    of more, the row makes do with those before: false.
    """
    for group in groups:
        for work in (works[name] for name in orders[group]):
            if groups.start == 0 and work.alive:
                guard(bench, row, work, partial(work.launch, group))
            elif work.alive:
                try:
                    work.launch(group)
                except Exception:  # memory, most likely
                    guard(bench, row, work, bench.synchronize)
                    return False
    return True


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
    late: Callable[[], bool],
) -> None:
    """Measure the groups again in which the host was slow, where that shows, until it is late."""
    if not any(_shows(groups, work) for work in works.values()):
        return
    for _ in range(PACE_ROUNDS):
        limits = {name: pace_limit(groups, name) for name in works}
        slow = [i for i, group in enumerate(groups) if any(_pace(v) > limits[n] for n, v in group.items())]
        for i in slow:
            if late():
                return
            if timing.slow_host[i] == PACE_ROUNDS:
                continue
            timing.slow_host[i] += 1
            flags = timing.flags[i]
            again = _one_cool_group(bench, timer, row, i, timing, works, limits)
            if "thermal" in timing.flags[i] and "thermal" not in flags:
                timing.flags[i] = flags
                continue
            groups[i] = {name: again.get(name, steps) for name, steps in groups[i].items()}


def _shows(groups: Sequence[Group], work: Work) -> bool:
    return host_shows([group[work.arm.name] for group in groups if work.arm.name in group], work)


def host_shows(visits: Sequence[Sequence[Sample]], work: Work) -> bool:
    """Whether the host's time can be part of an arm's interval: it is one between several kernels, and calls
    are as long as that or nearly.
    """
    host = _median(s.host_us for visit in visits for s in visit)
    us = _median(s.us for visit in visits for s in visit)
    return len(work.kernels) > 1 and host > SHOWING_HOST * us > 0


def pace_limit(groups: Sequence[Group], name: str) -> float:
    """What the mark and the flush may take on the host around an arm's steps, in us: SLOW_PACE times what
    they usually do there (an arm may leave the host's caches cold for them); infinite where the timer does
    not know.

    On a shared host a core needs 1.6 times its time from one moment to the next, for 50 to 500 ms: another
    tenant's work beside it.
    """
    paces = [pace for group in groups if (pace := _pace(group.get(name, ())))]
    return SLOW_PACE * float(np.quantile(paces, USUAL_PACE)) if paces else math.inf


def _pace(visit: Sequence[Sample]) -> float:
    return _median(s.pace_us for s in visit)


def _median(values: Iterable[float | None]) -> float:
    """The median of the values there are, 0 where there is none."""
    known = [v for v in values if v is not None]
    return float(np.median(known)) if known else 0.0


def _one_cool_group(
    bench: Bench,
    timer: Timer,
    row: Row,
    group: int,
    timing: Timing,
    works: dict[str, Work],
    limits: Mapping[str, float] = NO_LIMITS,
) -> Group:
    """The samples of a group, measured again while the GPU is slowed down, a few times at most; each visit
    while the host's pace is beyond the arm's limit.
    """
    for attempt in range(REPEATS + 1):
        around, samples = _one_group(bench, timer, row, group, timing.orders[group], works, limits)
        timing.clocks += around  # those of a repeated group too: they are why it was
        slow = any(bench.slowed(r) for r in around)
        if not slow or attempt == REPEATS:
            break
        timing.repeated += 1
    capped = any(bench.capped(r) for r in around)
    flags: dict[Flag, bool] = {"thermal": slow, "power-cap": capped}
    timing.flags[group] = [flag for flag, there in flags.items() if there]
    return samples


def _one_group(
    bench: Bench,
    timer: Timer,
    row: Row,
    group: int,
    order: Sequence[str],
    works: dict[str, Work],
    limits: Mapping[str, float],
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
            for attempt in range(PACE_VISITS):
                found = _visit(bench, timer, work, group, position, len(steps))
                if _pace(found) <= limits.get(name, math.inf) or attempt + 1 == PACE_VISITS:
                    break
                work.slow_visits += 1
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
        Sample(work.arm.name, group, position, step, t.us, t.void, t.host_us, t.pace_us)
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
