"""Small run directories, rows and libraries for tests of bench."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from baselines.gemm import Call, Launch, Library
from bench.model import SAMPLE_COLUMNS, Accuracy, ArmFacts, CallFacts, Device, Manifest, RowFacts, TimerFacts
from bench.suites import Row, Shape
from bench.tensors import shape_of

ROW = Row("router", "bwd", "eager", Shape(16, 64, 32))
FINE = Accuracy(rel_fro=2e-7, max_abs=1e-6)


def manifest(rows=(ROW,), arms=("cake", "control", "cake_det", "lib_a", "lib_b"), **changes):
    fields = {
        "run": "router-test",
        "command": "cake-bench run",
        "suite": "router",
        "preset": "smoke",
        "started": "2026-01-02T03:04:05+00:00",
        "node": "here",
        "device": Device(name="Test GPU", arch="sm_90a", sms=132),
        "versions": {"torch": "2"},
        "rows": tuple(row.key for row in rows),
        "arms": arms,
        "groups": 10,
        "steps": 4,
        "untimed": 1,
        "timer": TimerFacts(name="cupti", tick_us=0.032),
    }
    return Manifest(**(fields | changes))


def arm(name, kind="library", status="ok", calls=None, **fields):
    if calls is None:
        calls = (
            CallFacts(kind="dgrad", library=name, function="f"),
            CallFacts(kind="wgrad", library=name, function="g"),
        )
    accuracy = {"accuracy_before": FINE, "accuracy_after": FINE} if status == "ok" else {}
    return ArmFacts(arm=name, kind=kind, status=status, calls=calls, **(accuracy | fields))


def row_facts(arms, row=ROW):
    return RowFacts(
        key=row.key,
        suite=row.suite,
        op=row.op,
        mode=row.mode,
        **shape_of(row),
        seed=row.seed,
        arms=tuple(arms),
    )


def samples(times, groups=10, steps=4, noise=0.001, seed=0):
    """Samples of arms around the times (us) given by name; ``None`` gives voided steps."""
    rng = np.random.default_rng(seed)
    lines = []
    for position, (name, us) in enumerate(times.items()):
        for group in range(groups):
            for step in range(steps):
                value = None if us is None else us * (1 + noise * rng.standard_normal())
                lines.append((name, group, position, step, value, "" if us else "no records", None, None))
    return pd.DataFrame(lines, columns=list(SAMPLE_COLUMNS))


def library(
    name, *, native=None, searched=False, scale=(1.0,), dtype=torch.float32, on_run=lambda index: None
):
    """A library whose i-th candidate gives ``scale[i]`` times the product, and tells ``on_run``."""

    def candidates(gemm):
        def launch(index, factor):
            def run():
                on_run(index)
                torch.mm(gemm.a, gemm.b, out=gemm.out)
                gemm.out.mul_(factor)

            return Launch(Call(name, "mm", "1.0", "/lib", f"algorithm {index}"), run)

        return [launch(i, factor) for i, factor in enumerate(scale)]

    return Library(name, "cpu", candidates, native, searched)
