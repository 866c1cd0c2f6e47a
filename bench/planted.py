"""Arms of a selftest: cake, the same again, and cake with slowdowns of known size planted in it.

The spin of a planted arm is calibrated on each row: cake and the planted program with a short and a long
spin are timed in turns, which gives the time to add and the clocks that it takes. Both spins are long enough
to show: the first 0.1 to 0.3 us of one are hidden behind other CTAs' stores where K is split. What was
achieved is read from the run's own samples afterwards, not from here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from baselines.gemm import Unsupported
from bench.arms import CAKE, CONTROL, Arm, Prepared, cake_arms, operands
from bench.capture import capture
from bench.conduct import Bench
from bench.suites import Row, Tensors
from bench.timers import Timer
from cake import planted

#: Name of the arm with a planted slowdown, by its target in percent.
PLANTED = {percent: f"{CAKE}_planted_{percent}" for percent in (1, 2, 5)}
#: Clocks of the two spins: about 1 and 3 us, so that the line through them is short on both sides.
SHORT_SPIN, LONG_SPIN = 2_000, 6_000
#: Rounds of the calibration, and steps of each of its three visits.
ROUNDS, STEPS = 5, 10


@dataclass(frozen=True)
class Calibration:
    """Of one row, in us: cake, where the line of planted times starts, and what a clock of spinning takes."""

    cake_us: float
    base_us: float
    us_per_clock: float

    def clocks(self, percent: float) -> int:
        """The spin that makes the planted program take so many percent longer than cake; at least 0."""
        wanted = self.cake_us * (1 + percent / 100) - self.base_us
        return max(round(wanted / self.us_per_clock), 0)


def selftest_arms(bench: Bench, plant: bool = True) -> list[Arm]:
    """``cake``, ``control`` and, where asked, an arm for each of :data:`PLANTED`."""
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
            return Prepared(
                slowed(bench, own[0], row, tensors, spin),
                plain.calls,
                program=f"{plain.program}, {spin} clocks slower",
                partition=plain.partition,
                reload=plain.reload,
            )

        return Arm(PLANTED[percent], prepare, "cake")

    return [*own, *(arm(percent) for percent in PLANTED)]


def slowed(bench: Bench, plain: Arm, row: Row, tensors: Tensors, spin: int) -> Callable[[], None]:
    """The row's op with a spin of so many clocks at its end; on a CPU the caller spins, for nanoseconds."""
    if bench.device.type == "cpu":
        run = plain.bind(row, tensors).run

        def busy() -> None:
            run()
            end = time.perf_counter_ns() + spin
            while time.perf_counter_ns() < end:
                pass

        return busy
    make = planted.prepare if row.mode == "graph" else planted.eager
    launch: Callable[[], None] = make(
        row.op,  # type: ignore[arg-type]  # one of cake's ops: suites.OPS has the same
        spin=spin,
        deterministic=False,
        **operands(row.op, tensors),
    )
    return launch


def calibrate(bench: Bench, timer: Timer, plain: Arm, row: Row, tensors: Tensors) -> Calibration:
    """Time cake and the planted program with a short and a long spin in turns, and solve for the clocks."""
    runs = {"cake": plain.bind(row, tensors).run}
    if bench.device.type != "cpu":
        runs["short"] = slowed(bench, plain, row, tensors, SHORT_SPIN)
        runs["long"] = slowed(bench, plain, row, tensors, LONG_SPIN)
    launches = {name: _launch(row, run) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, launch in launches.items():
            visited = timer.visit(launch, cold=bench.cold, untimed=bench.preset.untimed, steps=STEPS)
            times[name] += [step.us for step in visited if step.us is not None]
    return solve(times, bench.device.type)


def solve(times: Mapping[str, Sequence[float]], device: str) -> Calibration:
    """The calibration from the times of ``cake``, ``short`` and ``long``; on a CPU of ``cake`` alone.

    Raises :class:`baselines.gemm.Unsupported` where they make no sense.
    """
    if any(not values for values in times.values()):
        raise Unsupported("the calibration has no time")
    us = {name: statistics.median(values) for name, values in times.items()}
    if device == "cpu":  # a clock of its spin is a nanosecond
        return Calibration(us["cake"], us["cake"], 1e-3)
    slope = (us["long"] - us["short"]) / (LONG_SPIN - SHORT_SPIN)
    if slope <= 0:
        raise Unsupported(
            f"more spinning made the op no longer: {us['short']:.3f} us with {SHORT_SPIN} clocks, "
            f"{us['long']:.3f} us with {LONG_SPIN}"
        )
    return Calibration(us["cake"], us["short"] - slope * SHORT_SPIN, slope)


def _launch(row: Row, run: Callable[[], None]) -> Callable[[], None]:
    run()
    return capture(run).replay if row.mode == "graph" else run
