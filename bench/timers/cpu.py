"""The monotonic clock, for runs with no GPU: host time around the op."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from bench.model import TimerFacts
from bench.timers import StepTime, TimerUnavailable


class CpuTimer:
    """Times ops that are done when they return. It sees no kernels."""

    name = "cpu"

    def __init__(self, device: torch.device | str) -> None:
        if torch.device(device).type != "cpu":
            raise TimerUnavailable(
                f"timer cpu times ops on the CPU, got {device}; use --timer cupti or --timer events there"
            )

    def facts(self) -> TimerFacts:
        """The tick is the resolution that the clock states."""
        return TimerFacts(name="cpu", tick_us=time.get_clock_info("perf_counter").resolution * 1e6)

    def visit(
        self,
        launch: Callable[[], None],
        *,
        cold: Callable[[], None],
        untimed: int,
        steps: int,
        expected: tuple[str, ...] | None = None,
    ) -> list[StepTime]:
        """As :meth:`bench.timers.Timer.visit`; ``expected`` is not looked at."""
        clock = time.perf_counter_ns
        nanoseconds = []
        for _ in range(untimed + steps):
            cold()
            begin = clock()
            launch()
            nanoseconds.append(clock() - begin)
        return [
            StepTime(ns / 1e3) if ns > 0 else StepTime(None, "shorter than the clock's tick")
            for ns in nanoseconds[untimed:]
        ]

    def close(self) -> None:
        """Nothing is held."""
