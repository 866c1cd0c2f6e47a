"""CUDA events around one launch that waits behind a delay kernel. Only on request, and labelled.

Without the delay, plain event pairs are useless under 40 us: the host's gaps lie inside. With it the host is
ahead of the GPU, so the gaps between an op's kernels are hidden in eager mode too, and the events' own 1 to 3
us are included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

from bench.model import TimerFacts
from bench.timers import StepTime, gpu_device
from bench.timers.tick import estimate_tick

#: Cycles of the delay at first: 200 us at 2 GHz. It doubles, up to 100 times that, when a launch takes
#: longer.
DELAY_CYCLES = 400_000
LONGEST_CYCLES = 100 * DELAY_CYCLES


class EventsTimer:
    """Times ops by events on one CUDA device. It sees no kernels, so it cannot void a step whose kernels
    changed.
    """

    name = "events"

    def __init__(self, device: torch.device | str) -> None:
        self._device = gpu_device(self.name, device)
        self._delay = DELAY_CYCLES
        self._durations_ns: deque[int] = deque(maxlen=2000)
        with torch.cuda.device(self._device):
            self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def facts(self) -> TimerFacts:
        """The tick as far as the times seen until now show it; ``None`` before there are enough."""
        tick = estimate_tick(self._durations_ns)
        return TimerFacts(name="events", tick_us=None if tick is None else tick / 1e3)

    def visit(
        self,
        launch: Callable[[], None],
        *,
        cold: Callable[[], None],
        untimed: int,
        steps: int,
        expected: tuple[str, ...] | None = None,
    ) -> list[StepTime]:
        """As :meth:`bench.timers.Timer.visit`; ``expected`` is not looked at, and the delay runs before the
        op.
        """
        with torch.cuda.device(self._device):
            return [self._step(launch, cold) for _ in range(untimed + steps)][untimed:]

    def close(self) -> None:
        """Nothing is held."""

    def _step(self, launch: Callable[[], None], cold: Callable[[], None]) -> StepTime:
        cold()
        torch.cuda.synchronize()
        torch.cuda._sleep(self._delay)
        self._begin.record()
        launch()
        self._end.record()
        late = self._begin.query()
        torch.cuda.synchronize()
        us = self._begin.elapsed_time(self._end) * 1e3
        if late:
            self._delay = min(2 * self._delay, LONGEST_CYCLES)
            return StepTime(None, "the delay kernel ended before the launch did")
        if us <= 0:
            return StepTime(None, "zero or reversed interval")
        self._durations_ns.append(round(us * 1e3))
        return StepTime(us)
