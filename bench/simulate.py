"""A simulated GPU and its timer: step times with the noise seen on an H200, to judge the judge where there is
none.

A launch tells the machine how long it takes; a visit then reads its steps as a timer would: a drift that goes
on through the run, groups that are slow as a whole, visits that differ for no reason, high first steps, heavy
tails, outliers up to three times the time, blocks of throttling, and a tick. Some instances of a program
differ from the others for as long as they live: where they lie in memory matters, and no number of steps
removes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.model import TimerFacts
from bench.schedule import rotation
from bench.statistics import Array, wide
from bench.suites import Row, router_rows
from bench.timers import StepTime

#: Of an H200; durations fall on this grid.
TICK_US = 0.032


@dataclass(frozen=True)
class Noise:
    """How a row's times scatter, as shares of its time. The defaults are the middle of what an H200 showed.

    ``step`` scatters steps (heavy tails), ``visit`` whole visits of an arm in a group, ``group`` all arms of
    a group alike; ``drift`` is the change from the run's start to its end, ``position`` from a group's first
    arm to its last. ``first`` are the excesses of the first steps of a visit. ``outliers`` steps in a
    thousand are 3 to 30 % long and one in a hundred of them up to 3 times. ``throttled`` is the chance that a
    visit begins a block of slow ones (5 to 30 %, up to three groups). The share ``odd`` of a program's
    instances scatters by ``bias``, the others by a twentieth of a percent. ``slow_host`` is the factor of a
    host in its slow state, where it stays for about ``host_visits`` visits.
    """

    step: float = 0.006
    visit: float = 0.002
    group: float = 0.003
    drift: float = 0.005
    position: float = 0.001
    first: tuple[float, ...] = (0.008, 0.005)
    outliers: float = 15.0
    throttled: float = 0.0005
    bias: float = 0.004
    odd: float = 0.1
    slow_host: float = 1.0
    host_visits: float = 20.0


class Machine:
    """The simulated GPU during one row of a run: seeded, so that a run can be made again."""

    def __init__(self, noise: Noise, seed: Iterable[int], groups: int = 15, arms: int = 2) -> None:
        self._noise = noise
        self._rng = np.random.default_rng(list(seed))
        self._per_group = arms
        self._visits, self._total = 0, groups * arms
        self._drift = noise.drift * self._rng.standard_normal()
        self._position = noise.position * self._rng.standard_normal()
        self._group = 0.0
        self._slow, self._slow_left = 1.0, 0
        self._host_slow = bool(self._rng.random() < 0.5)
        self._us = math.nan

    def instance(self) -> float:
        """The factor of one more instance of a program: most agree, a few are placed badly."""
        odd = self._rng.random() < self._noise.odd
        return math.exp((self._noise.bias if odd else 0.0005) * float(self._rng.standard_normal()))

    def launch(self, us: float) -> None:
        """Run something that takes ``us`` on a machine without noise."""
        self._us = us

    def visit(self, untimed: int, steps: int) -> Array:
        """The times of ``steps`` steps of what was launched last, after ``untimed`` ones that are not
        shown.
        """
        noise, rng = self._noise, self._rng
        position = self._visits % self._per_group
        if position == 0:
            self._group = noise.group * rng.standard_normal()
        level = self._group + noise.visit * self._heavy(5)
        level += self._drift * self._visits / self._total + self._position * position / self._per_group
        level += math.log(self._throttle() * self._host())
        self._visits += 1
        scatter = noise.step * rng.standard_t(4, untimed + steps) / math.sqrt(2)
        scatter[: len(noise.first)] += noise.first[: untimed + steps]
        odd = rng.random(len(scatter)) < noise.outliers / 1000
        far = rng.random(len(scatter)) < 0.01
        excess = np.where(far, rng.uniform(0.3, 2.0, len(scatter)), rng.uniform(0.03, 0.3, len(scatter)))
        times = self._us * np.exp(level + scatter) * (1 + odd * excess)
        quantised: Array = np.round(times[untimed:] / TICK_US) * TICK_US
        return quantised

    def _heavy(self, freedom: int) -> float:
        """Student's t scaled to a standard deviation of 1."""
        return float(self._rng.standard_t(freedom)) * math.sqrt((freedom - 2) / freedom)

    def _throttle(self) -> float:
        if self._slow_left == 0 and self._rng.random() < self._noise.throttled:
            self._slow_left = int(self._rng.integers(1, 3 * self._per_group + 1))
            self._slow = float(self._rng.uniform(1.05, 1.3))
        elif self._slow_left:
            self._slow_left -= 1
        return self._slow if self._slow_left else 1.0

    def _host(self) -> float:
        if self._noise.slow_host == 1.0:
            return 1.0
        if self._rng.random() < 1 / self._noise.host_visits:
            self._host_slow = not self._host_slow
        return self._noise.slow_host if self._host_slow else 1.0


class SimulatedTimer:
    """A :class:`bench.timers.Timer` that reads a :class:`Machine`; a launch must call its ``launch``."""

    name = "cpu"

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def facts(self) -> TimerFacts:
        """The tick of the simulated stamps."""
        return TimerFacts(name="cpu", tick_us=TICK_US)

    def visit(
        self,
        launch: Callable[[], None],
        *,
        cold: Callable[[], None],
        untimed: int,
        steps: int,
        expected: tuple[str, ...] | None = None,
    ) -> list[StepTime]:
        """As :meth:`bench.timers.Timer.visit`; one launch stands for all steps."""
        cold()
        launch()
        return [StepTime(float(us)) for us in self._machine.visit(untimed, steps)]

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class SimulatedRow:
    """A row as the simulation sees it: its key, its time and its noise."""

    key: str
    us: float
    noise: Noise


#: Times of cake on an H200 at H = 4096, us, T = 64, 256, 1024 (graph mode).
_TIMES = {
    "fwd": (15.3, 23.3, 66.8),
    "dgrad": (11.9, 18.0, 70.1),
    "wgrad": (7.5, 18.6, 61.4),
    "bwd": (24.4, 37.1, 135.1),
    "2fwd+bwd": (55.3, 83.3, 268.3),
}


def router_suite(seed: int = 0) -> list[SimulatedRow]:
    """The 90 rows of the router suite, with the times and the scatter of an H200.

    Where several launches are queued from the host and the GPU is done before the next one comes (eager mode,
    small T), times are the host's: steps scatter by 4 to 9 %, and the host is fast or slow for a while.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for row in router_rows():
        us = _TIMES[row.op][(64, 256, 1024).index(row.shape.T)] * row.router.H / 4096
        noise = Noise(
            step=float(np.clip(0.0055 * np.exp(0.5 * rng.standard_normal()), 0.002, 0.02)),
            visit=float(np.clip(0.002 * np.exp(0.5 * rng.standard_normal()), 0.0006, 0.005)),
            group=float(rng.uniform(0.001, 0.005)),
            odd=0.15 if row.mode == "graph" else 0.02,
        )
        if row.mode == "eager" and len(row.gemms) > 1 and row.shape.T < 1024:
            noise = _host_bound(noise, row, rng)
        rows.append(SimulatedRow(row.key, us, noise))
    return rows


def _host_bound(noise: Noise, row: Row, rng: np.random.Generator) -> Noise:
    """The noise of a row whose time is partly the host's."""
    if row.shape.T == 64 and row.op == "2fwd+bwd":
        return replace(noise, step=0.09, visit=0.04, slow_host=1.5)
    return replace(noise, step=float(rng.uniform(0.02, 0.06)), visit=0.025, slow_host=1.08)


def simulate(
    row: SimulatedRow,
    factors: Mapping[str, float],
    seed: Sequence[int],
    groups: int = 15,
    steps: int = 20,
    untimed: int = 2,
    instances: int | None = None,
    at_most: int = 1,
) -> dict[str, Array]:
    """The samples ``[groups, steps]`` of arms that take ``factor`` times the row's time, visited in rotation.

    Each arm has an instance of its own for every group, or so many ``instances`` that take turns. There are
    up to ``at_most`` times as many groups while intervals over the first arm are wide.
    """
    orders = rotation(list(factors), groups * at_most)
    asked = len(rotation(list(factors), groups))
    machine = Machine(row.noise, seed, len(orders), len(factors))
    timer = SimulatedTimer(machine)
    instances = instances or len(orders)
    times = {
        name: [row.us * factor * machine.instance() for _ in range(instances)]
        for name, factor in factors.items()
    }
    samples = {name: np.empty((len(orders), steps)) for name in factors}
    for group, order in enumerate(orders):
        for name in order:

            def launch(us: float = times[name][group % instances]) -> None:
                machine.launch(us)

            visited = timer.visit(launch, cold=_nothing, untimed=untimed, steps=steps)
            samples[name][group] = [step.us for step in visited]
        done = group + 1
        if done % asked == 0 and not wide({n: s[:done] for n, s in samples.items()}, next(iter(factors))):
            break
    return {name: s[:done] for name, s in samples.items()}


def simulate_run(
    rows: Sequence[SimulatedRow],
    factors: Mapping[str, float],
    run: int,
    seed: int = 0,
    instances: int | None = None,
    at_most: int = 4,
) -> Iterator[tuple[SimulatedRow, dict[str, Array]]]:
    """Every row of one run, each with the samples of its arms."""
    for number, row in enumerate(rows):
        yield row, simulate(row, factors, (seed, run, number), instances=instances, at_most=at_most)


def _nothing() -> None:
    """A simulated L2 is as cold as it will ever be."""
