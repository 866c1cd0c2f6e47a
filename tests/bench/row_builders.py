"""Scripted timers, clocks and arms: one row is measured as a test tells."""

from __future__ import annotations

import torch
from bench_builders import ROW

from bench.accuracy import references
from bench.conduct import measure_row
from bench.model import ClockReading, TimerFacts
from bench.presets import preset_for
from bench.tensors import router_tensors
from bench.timers import StepTime
from bench.work import Bench

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
