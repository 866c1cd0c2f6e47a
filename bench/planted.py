"""Arms of a selftest: cake, the same again, and cake with slowdowns of known size planted in it.

The spin of a planted arm is calibrated on each row: the planted program with a short and a long spin and cake
are timed in turns, as graphs, which gives what a clock of spinning takes and what is hidden of it behind
stores under way. What was achieved is read from the run's own samples afterwards, not from here.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from scipy.stats import trim_mean

from baselines.gemm import Unsupported
from bench.arms import CAKE, CONTROL, Arm, Prepared, cake_arms, operands
from bench.capture import capture
from bench.suites import Row
from bench.tensors import Tensors
from bench.timers import Timer
from bench.work import Bench
from cake import planted

#: Name of the arm with a planted slowdown, by its target in percent.
PLANTED = {percent: f"{CAKE}_planted_{percent}" for percent in (1, 2, 5)}
#: Clocks of the two spins: about 1 and 3 us, so that the line through them is short on both sides.
SHORT_SPIN, LONG_SPIN = 2_000, 6_000
#: Rounds of the calibration, each with programs loaded anew (where one lies moves its time by 0.3 to 1 %),
#: and steps of each of their visits. There are more rounds until the standard error of the offset is below
#: this share of cake's time, a fifth of the smallest slowdown.
ROUNDS, MOST_ROUNDS, STEPS = 6, 30, 6
OFFSET_ERROR = 0.002
#: Share of the rounds left out at each end.
TRIM = 0.2


@dataclass(frozen=True)
class Calibration:
    """Of one row, in us: cake; what the planted program takes longer with a spin of 0, by the line through
    both spins (less than 0: hidden); what a clock of spinning takes.
    """

    cake_us: float
    offset_us: float
    us_per_clock: float

    def clocks(self, percent: float) -> int:
        """The spin that makes the planted program take so many percent longer than cake; at least 0."""
        return max(round((self.cake_us * percent / 100 - self.offset_us) / self.us_per_clock), 0)


def selftest_arms(bench: Bench, rows: Sequence[Row] = (), plant: bool = True) -> list[Arm]:
    """``cake``, ``control`` and, where asked, an arm for each of :data:`PLANTED`; the same on all rows."""
    own = [arm for arm in cake_arms() if arm.name in (CAKE, CONTROL)]
    if not plant:
        return own
    known: dict[str, Calibration] = {}

    def arm(percent: int) -> Arm:
        def prepare(row: Row, tensors: Tensors) -> Prepared:
            if row.key not in known:
                if bench.timer is None:
                    raise Unsupported("a slowdown is calibrated by the run's timer, which this run has not")
                known[row.key] = calibrate(bench, bench.timer, own[0], row, tensors)
            spin = known[row.key].clocks(percent)
            plain = own[0].bind(row, tensors)
            run, reload = slowed(bench, plain, row, tensors, spin)
            return Prepared(
                run,
                plain.calls,
                program=f"{plain.program}, {spin} clocks slower",
                partition=plain.partition,
                reload=reload,
            )

        return Arm(PLANTED[percent], prepare, "cake")

    return [*own, *(arm(percent) for percent in PLANTED)]


def slowed(
    bench: Bench, plain: Prepared, row: Row, tensors: Tensors, spin: int
) -> tuple[Callable[[], None], Callable[[], None] | None]:
    """The row's op with a spin of so many clocks at its end, and how to have its programs loaded anew; on a
    CPU the caller spins, for nanoseconds.
    """
    op: Any = row.op  # one of cake's: suites.OPS has the same
    if bench.device.type == "cpu":
        return partial(_run_and_spin, plain.run, spin), plain.reload
    if row.mode == "graph":
        return planted.prepare(op, spin=spin, deterministic=False, **operands(row.op, tensors)), None
    eager = planted.Eager(plain.run, op, spin)

    def reload() -> None:
        if plain.reload:
            plain.reload()
        eager.clear()

    return eager, reload


def _run_and_spin(run: Callable[[], None], nanoseconds: int) -> None:
    run()
    end = time.perf_counter_ns() + nanoseconds
    while time.perf_counter_ns() < end:
        pass


def calibrate(bench: Bench, timer: Timer, plain: Arm, row: Row, tensors: Tensors) -> Calibration:
    """Time the row's cake, and as graphs cake and the planted program with a short and a long spin."""
    rounds: dict[str, list[float]] = {}
    for done in range(1, MOST_ROUNDS + 1):
        for name, launch in _launches(bench, plain, row, tensors, done).items():
            visited = timer.visit(launch, cold=bench.cold, untimed=bench.preset.untimed, steps=STEPS)
            times = [step.us for step in visited if step.us is not None]
            rounds.setdefault(name, []).extend([statistics.median(times)] if times else [])
        if done >= ROUNDS and certain(rounds):
            break
    return solve(rounds, bench.device.type)


def certain(rounds: Mapping[str, Sequence[float]]) -> bool:
    """Whether more rounds would tell little more; where some have no time, none would."""
    if "short" not in rounds or len({len(times) for times in rounds.values()}) > 1 or len(rounds["cake"]) < 2:
        return True
    columns = zip(rounds["graph"], rounds["short"], rounds["long"], strict=True)
    offsets = [short - _slope(short, long) * SHORT_SPIN - graph for graph, short, long in columns]
    error = statistics.stdev(offsets) / math.sqrt(len(offsets))
    return error <= OFFSET_ERROR * statistics.median(rounds["cake"])


def _slope(short: float, long: float) -> float:
    return (long - short) / (LONG_SPIN - SHORT_SPIN)


def _launches(
    bench: Bench, plain: Arm, row: Row, tensors: Tensors, turn: int
) -> dict[str, Callable[[], None]]:
    """What is timed in one round, made anew, in an order that turns from round to round."""
    cake = plain.bind(row, tensors)
    if bench.device.type == "cpu":
        return {"cake": cake.run}
    graph = replace(row, mode="graph")
    makers = {
        "graph": lambda: plain.bind(graph, tensors).run,
        "short": lambda: slowed(bench, cake, graph, tensors, SHORT_SPIN)[0],
        "long": lambda: slowed(bench, cake, graph, tensors, LONG_SPIN)[0],
    }
    launches = {name: capture(makers[name]()).replay for name in turned([*makers], turn)}
    return {"cake": launches["graph"] if row.mode == "graph" else cake.run} | launches


def turned(names: Sequence[str], turn: int) -> list[str]:
    """The names from the ``turn``-th on, then those before it."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def solve(rounds: Mapping[str, Sequence[float]], device: str) -> Calibration:
    """The calibration from the times a round of ``cake`` and, on a GPU, ``graph``, ``short`` and ``long``.

    Raises :class:`baselines.gemm.Unsupported` where they make no sense.
    """
    if any(not values for values in rounds.values()):
        raise Unsupported("the calibration has no time")
    us = {name: float(trim_mean(values, TRIM)) for name, values in rounds.items()}
    if device == "cpu":  # a clock of its spin is a nanosecond
        return Calibration(us["cake"], 0.0, 1e-3)
    slope = _slope(us["short"], us["long"])
    if slope <= 0:
        raise Unsupported(
            f"more spinning made the op no longer: {us['short']:.3f} us with {SHORT_SPIN} clocks, "
            f"{us['long']:.3f} us with {LONG_SPIN}"
        )
    return Calibration(us["cake"], us["short"] - slope * SHORT_SPIN - us["graph"], slope)
