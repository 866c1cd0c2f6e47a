"""Synthetic run directories with made-up times, written and judged by the store and cells of real runs."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bench.cells import make_cells
from bench.model import (
    Accuracy,
    ArmFacts,
    CallFacts,
    ClockReading,
    Device,
    L2Proof,
    Manifest,
    RowFacts,
    TimerFacts,
)
from bench.statistics import JUDGEMENT
from bench.store import create_run, finished_rows
from bench.suites import ROUTER_SHAPES, Row, Shape, router_rows

H200_ARMS = {
    "cake": "cake",
    "control": "cake",
    "cake_det": "cake",
    "torch_fp32": "library",
    "cublas_fp32": "library",
    "cublaslt_fp32_first": "library",
    "cublaslt_fp32_best": "library",
    "cublas_bf16x9": "library",
    "cublaslt_bf16x9": "library",
    "sequence": "library",
}
CPU_ARMS = {
    "cake": "cake",
    "control": "cake",
    "cake_det": "cake",
    "torch_fp32": "library",
    "numpy_fp32": "library",
}
#: The library's GEMM times on an H200 by (H, T): fwd, dgrad, wgrad.
H200_US = {
    (4096, 64): (13.2, 10.9, 6.6),
    (4096, 256): (23.6, 17.0, 16.8),
    (4096, 1024): (57.9, 48.5, 53.4),
    (5120, 64): (18.0, 12.1, 8.4),
    (5120, 256): (28.9, 22.9, 23.4),
    (5120, 1024): (69.2, 69.9, 68.9),
    (6144, 64): (18.1, 13.0, 8.4),
    (6144, 256): (32.7, 23.2, 24.0),
    (6144, 1024): (79.9, 77.7, 81.8),
}
FUNCTIONS = {"torch_fp32": "torch.mm", "numpy_fp32": "numpy.matmul", "cublas_fp32": "cublasSgemm"}

#: What an arm does on a row: its time in us, or its status and the reason.
Outcome = float | tuple[str, str]


def noise(*parts: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(parts).encode()))


def calls(row: Row, arm: str) -> tuple[CallFacts, ...]:
    if arm == "sequence":
        return tuple(
            calls(row, "cublas_fp32" if k == "dgrad" else "cublaslt_fp32_best")[0] for k in row.gemms
        )
    library = arm.removesuffix("_first").removesuffix("_best")
    algorithm = f"id 21 tile {arm[-4:]}" if "lt" in arm else ""
    return tuple(
        CallFacts(kind=k, library=library, function=FUNCTIONS.get(arm, "cublasLtMatmul"), algorithm=algorithm)
        for k in row.gemms
    )


def facts_of(row: Row, arm: str, kind: str, outcome: Outcome) -> ArmFacts:
    status, reason = ("ok", "") if isinstance(outcome, float) else outcome
    rel = {"cake": 1.8e-7}.get(kind, 3.1e-7) * float(noise("error", row.seed, arm, row.op).uniform(0.9, 1.1))
    checked = status in ("ok", "inaccurate", "fell-back")
    error = Accuracy(
        rel_fro=5.1e-6 if status == "inaccurate" else rel,
        max_abs=1e-5,
        top8_equal=True if "fwd" in row.gemms else None,
    )
    bits = f"{zlib.crc32(repr((row.seed, row.op, arm)).encode()):08x}" if kind == "cake" and checked else None
    return ArmFacts(
        arm=arm,
        kind=kind,
        status=status,
        reason=reason,
        calls=() if kind == "cake" or status == "unsupported" else calls(row, arm),
        accuracy_before=error if checked else None,
        accuracy_after=error if checked else None,
        bits=bits,
        bits_after=bits,
        program="sm80_bf16x3" if kind == "cake" else None,
        partition="split 8" if kind == "cake" else None,
    )


def samples_of(row: Row, outcomes: dict[str, Outcome], groups: int, steps: int, spread: float, tick: float):
    rng = noise("samples", row.key)
    frames = []
    drift = rng.normal(1, spread / 2, (groups, 1))
    for position, (arm, us) in enumerate(outcomes.items()):
        if not isinstance(us, float):
            continue
        times = us * drift * rng.normal(1, spread, (groups, steps))
        times = np.round(np.maximum(np.round(times / tick), 1) * tick, 3)
        group, step = np.divmod(np.arange(groups * steps), steps)
        frames.append(
            pd.DataFrame(
                {
                    "arm": arm,
                    "group": group,
                    "position": position,
                    "step": step,
                    "us": times.ravel(),
                    "void": "",
                }
            )
        )
    columns = ["arm", "group", "position", "step", "us", "void"]
    return pd.concat(frames) if frames else pd.DataFrame(columns=columns)


def build(
    path: Path,
    rows: Sequence[Row],
    arms: dict[str, str],
    outcome: Callable[[Row, str], Outcome],
    *,
    device: Device,
    timer: TimerFacts,
    l2: L2Proof | None,
    spread: float,
    groups: int,
    steps: int,
    left: int = 0,
    host_us: dict[str, float] | None = None,
    **manifest,
) -> Path:
    """Write a run directory; the last ``left`` rows are not measured."""
    run = create_run(path)
    keys = tuple(r.key for r in rows)
    run.write_manifest(
        m := Manifest(
            **{
                "run": path.name,
                "suite": "router",
                "started": "2026-01-02T03:04:05Z",
                "finished": None if left else "2026-01-02T03:10:05Z",
                "seconds": None if left else 360.2,
                "node": "node-1",
                "device": device,
                "rows": keys,
                "arms": tuple(arms),
                "groups": groups,
                "steps": steps,
                "timer": timer,
                "l2": l2,
                "judgement": JUDGEMENT.as_dict(),
                **manifest,
            }
        )
    )
    for row in rows[: len(rows) - left]:
        outcomes = {arm: outcome(row, arm) for arm in arms if arm != "sequence" or len(row.gemms) > 1}
        clocks = [
            ClockReading(
                group=g,
                sm_mhz=1980,
                mem_mhz=3201,
                power_w=410.0 + g,
                temp_c=45,
                reasons=("sw_power_cap",) if g == 3 and row.shape.T == 1024 else (),
            )
            for g in range(groups)
        ]
        s = row.shape
        row_facts = RowFacts(
            key=row.key,
            suite="router",
            op=row.op,
            mode=row.mode,
            T=s.T,
            H=s.H,
            N=s.N,
            seed=row.seed,
            arms=tuple(facts_of(row, a, arms[a], o) for a, o in outcomes.items()),
            clocks=tuple(clocks) if device.driver else (),
        )
        run.write_row(row_facts, samples_of(row, outcomes, groups, steps, spread, timer.tick_us or 0.001))
    host = {}
    for row in rows:
        per_gemm = 1 if row.mode == "graph" else len(row.gemms)
        for arm, us in (host_us or {}).items():
            host[row.key, arm] = us * per_gemm * float(noise("host", row.key, arm).uniform(0.98, 1.03))
    run.write_cells(make_cells(m, finished_rows(run, keys), host))
    return path


def h200_us(row: Row, arm: str) -> Outcome:
    if "bf16x9" in arm:
        native = "cublas_fp32" if arm == "cublas_bf16x9" else "cublaslt_fp32"
        return ("fell-back", f"same kernels and bits as {native}: compute capability 9.0 does not emulate")
    best = dict(zip(("fwd", "dgrad", "wgrad"), H200_US[row.shape.H, row.shape.T], strict=True))
    gap = 2.5 if row.mode == "eager" and len(row.gemms) > 1 else 0.3
    library = sum(best[k] for k in row.gemms) + gap * (len(row.gemms) - 1)
    if arm in ("cake", "control", "cake_det", "cake_fp16x2"):
        gain = {64: 1.75, 256: 2.0, 1024: 2.2}[row.shape.T]
        if row.mode == "eager" and row.op == "wgrad" and row.shape.T == 64:
            gain = 0.97
        if row.mode == "graph" and row.op == "wgrad" and row.shape.T == 64:
            gain = 1.003
        return library / gain * {"cake_det": 1.06, "cake_fp16x2": 0.7}.get(arm, 1.0)
    slower = {"torch_fp32": 1.05, "cublas_fp32": 1.02, "cublaslt_fp32_first": 1.04, "cublaslt_fp32_best": 1.0}
    if row.op == "dgrad":
        slower |= {"cublas_fp32": 0.995}
    if arm == "sequence":
        return library * 0.99
    return library * slower[arm]


H200 = {
    "command": "cake-bench run --suite router --preset full --out runs/h200",
    "preset": "full",
    "device": Device(
        name="NVIDIA H200",
        arch="sm_90a",
        sms=132,
        memory_gb=140.4,
        l2_mb=60,
        driver="580.159.04",
        power_limit_w=700.0,
    ),
    "timer": TimerFacts(name="cupti", tick_us=0.032, check_us=52.03, check_events_us=53.4),
    "l2": L2Proof(cold_us=11.2, warm_us=5.6, expected_ratio=1.5, proven=True),
    "versions": {
        "python": "3.12.3",
        "torch": "2.11.0+cu130",
        "CUDA": "13.0",
        "NVRTC": "13.0.88",
        "CUPTI": "13.0.85",
    },
    "libraries": {"cublas": "13.1.0.3, /usr/lib/libcublas.so.13"},
    "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": "no"},
    "spread": 0.004,
    "untimed": 2,
    "instances": 5,
    "reloads": True,
    "workspace_bytes": 32 * 2**20,
    "host_us": {
        "cake": 7.1,
        "cake_det": 7.4,
        "torch_fp32": 22.5,
        "cublas_fp32": 6.2,
        "cublaslt_fp32_first": 6.5,
        "cublaslt_fp32_best": 6.5,
        "sequence": 6.3,
    },
}
CPU = {
    "command": "cake-bench run --suite router",
    "preset": "quick",
    "device": Device(name="Example CPU @ 2.00GHz", arch="x86_64", sms=2, memory_gb=16, l2_mb=32),
    "timer": TimerFacts(name="cpu", tick_us=0.03),
    "l2": None,
    "flags": ("warm",),
    "versions": {"python": "3.11.9", "torch": "2.13.0+cpu", "numpy": "2.3.0"},
    "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": "yes"},
    "spread": 0.02,
    "untimed": 1,
    "groups": 10,
    "steps": 2,
}


def cpu_us(row: Row, arm: str) -> Outcome:
    torch_us = row.shape.T * row.shape.H * row.shape.N * len(row.gemms) / 30e3
    return torch_us * {"torch_fp32": 1.0, "numpy_fp32": 1.04}.get(arm, 2.6)


def broken_us(row: Row, arm: str) -> Outcome:
    if row.op == "dgrad" and row.mode == "eager":
        if arm == "cake":
            return ("error", "CUDA error: an illegal memory access was encountered")
        if arm == "torch_fp32":
            return ("unsupported", "torch.mm has no kernel for this view")
    if row.op == "bwd" and arm == "cublaslt_fp32_best":
        return ("inaccurate", "relative Frobenius error 5.1e-6 is over the budget 2e-6")
    if row.op == "fwd" and not arm.startswith("c"):
        return ("error", "the library raised | refused")
    if row.op == "fwd" and arm.startswith("cublas"):
        return ("error", "the library raised | refused")
    return h200_us(row, arm)


def build_h200(path: Path) -> Path:
    return build(path, router_rows(), H200_ARMS, h200_us, groups=15, steps=20, **H200)


def build_cpu(path: Path) -> Path:
    shapes = [Shape(64, 4096), Shape(64, 5120), Shape(64, 6144), Shape(256, 4096)]
    return build(path, router_rows(shapes, modes=("eager",)), CPU_ARMS, cpu_us, **CPU)


def build_broken(path: Path) -> Path:
    rows = router_rows(ROUTER_SHAPES[:2])
    changes = {
        "device": Device(name="NVIDIA Example", arch="sm_99", sms=10, driver="1.2"),
        "timer": TimerFacts(name="events", tick_us=0.5),
        "l2": L2Proof(cold_us=5.0, warm_us=4.9, expected_ratio=1.5, proven=False),
        "flags": ("warm",),
        "host_us": None,
    }
    return build(path, rows, H200_ARMS, broken_us, groups=5, steps=4, left=3, **{**H200, **changes})


def build_small(path: Path) -> Path:
    """Two rows, noiseless: small enough to expect its whole report as text."""
    rows = router_rows([Shape(64, 4096), Shape(256, 4096)], ops=("fwd",), modes=("graph",))
    arms = {a: H200_ARMS[a] for a in ("cake", "control", "cake_det", "torch_fp32", "cublas_bf16x9")}
    return build(path, rows, arms, h200_us, groups=3, steps=2, **{**H200, "spread": 0.0})


def build_fp16x2(path: Path) -> Path:
    """`build_small` with `cake_fp16x2`, which loses to the library at T=256."""
    rows = router_rows([Shape(64, 4096), Shape(256, 4096)], ops=("fwd",), modes=("graph",))
    own = ("cake", "control", "cake_det", "cake_fp16x2")
    arms = dict.fromkeys(own, "cake") | {"torch_fp32": "library"}

    def outcome(row: Row, arm: str) -> Outcome:
        us = h200_us(row, arm)
        assert isinstance(us, float)
        return us * (4.0 if row.shape.T == 256 and arm == "cake_fp16x2" else 1.0)

    host_us = {"cake": 7.1, "cake_det": 7.4, "cake_fp16x2": 7.2, "torch_fp32": 22.5}
    fields = {**H200, "spread": 0.0, "host_us": host_us}
    return build(path, rows, arms, outcome, groups=3, steps=2, **fields)


def build_previous(path: Path) -> Path:
    """Two noiseless rows with a previous version, once slower and once faster, and a user's arm."""
    rows = router_rows([Shape(64, 4096), Shape(256, 4096)], ops=("fwd",), modes=("graph",))
    arms = {"cake": "cake", "control": "cake", "cake_prev": "cake", "torch_fp32": "library", "mine": "user"}

    def outcome(row: Row, arm: str) -> Outcome:
        if arm == "mine":
            return 5.0
        factor = (1.1 if row.shape.T == 64 else 0.95) if arm == "cake_prev" else 1.0
        us = h200_us(row, "cake" if arm == "cake_prev" else arm)
        return us * factor if isinstance(us, float) else us

    return build(path, rows, arms, outcome, groups=3, steps=2, **{**H200, "spread": 0.0, "host_us": None})


@pytest.fixture(scope="session")
def previous_dir(tmp_path_factory) -> Path:
    return build_previous(tmp_path_factory.mktemp("runs") / "previous")


@pytest.fixture(scope="session")
def fp16x2_dir(tmp_path_factory) -> Path:
    return build_fp16x2(tmp_path_factory.mktemp("runs") / "fp16x2")


@pytest.fixture(scope="session")
def h200_dir(tmp_path_factory) -> Path:
    return build_h200(tmp_path_factory.mktemp("runs") / "h200")


@pytest.fixture(scope="session")
def cpu_dir(tmp_path_factory) -> Path:
    return build_cpu(tmp_path_factory.mktemp("runs") / "cpu")


@pytest.fixture(scope="session")
def broken_dir(tmp_path_factory) -> Path:
    return build_broken(tmp_path_factory.mktemp("runs") / "broken")


@pytest.fixture(scope="session")
def small_dir(tmp_path_factory) -> Path:
    return build_small(tmp_path_factory.mktemp("runs") / "small")


def build_small_again(path: Path) -> Path:
    """`build_small`'s rows and one more on another node, noiseless: one slower, other arms."""
    shapes = [Shape(64, 4096), Shape(256, 4096), Shape(1024, 4096)]
    rows = router_rows(shapes, ops=("fwd",), modes=("graph",))
    arms = {a: H200_ARMS[a] for a in ("cake", "control", "cake_det", "torch_fp32")} | {"mine": "user"}

    def outcome(row: Row, arm: str) -> Outcome:
        if arm == "mine":
            return 5.0
        us = h200_us(row, arm)
        assert isinstance(us, float)
        return us * (2.5 if row.shape.T == 64 and arm in ("cake", "control", "cake_det") else 1.0)

    changes = {"node": "node-2", "libraries": {"cublas": "13.6.0.1, /opt/libcublas.so.13"}, "spread": 0.0}
    return build(path, rows, arms, outcome, groups=3, steps=2, **{**H200, **changes})


def build_passes(path: Path, **changes) -> Path:
    """Two rows in order-balanced passes with a previous version, 2 % slower and 1 % faster."""
    rows = router_rows([Shape(64, 4096), Shape(1024, 4096)], ops=("fwd",), modes=("graph",))
    arms = {"cake": "cake", "control": "cake", "cake_prev": "cake", "torch_fp32": "library"}

    def outcome(row: Row, arm: str) -> Outcome:
        us = h200_us(row, "cake" if arm == "cake_prev" else arm)
        assert isinstance(us, float)
        return us * ((1.02 if row.shape.T == 1024 else 0.99) if arm == "cake_prev" else 1.0)

    fields = {**H200, "spread": 0.001, "form": "passes", "host_us": None, **changes}
    return build(path, rows, arms, outcome, groups=16, steps=10, **fields)


@pytest.fixture(scope="session")
def small_again_dir(tmp_path_factory) -> Path:
    return build_small_again(tmp_path_factory.mktemp("runs") / "again")


@pytest.fixture(scope="session")
def passes_dir(tmp_path_factory) -> Path:
    return build_passes(tmp_path_factory.mktemp("runs") / "passes")


@pytest.fixture(scope="session")
def warm_dir(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "warm"
    return build_passes(path, form="groups", l2_state="warm", l2=None, flags=("warm",))
