from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

import bench.host as host
from bench.host import HostTimesFailed, collect, host_times, measure, time_calls
from bench.layers import DenseShape, Layer
from bench.previous import load_copy
from bench.suites import Row, Shape

SMALL = Row("router", "fwd", "eager", Shape(8, 64, 16))

ARMS = """
    import torch
    from baselines.gemm import Unsupported
    from bench.arms import Arm

    def fine(row, t):
        return lambda: torch.mm(t.X, t.W.t(), out=t.out)

    def broken(row, t):
        def run():
            raise RuntimeError("no luck")
        return run

    def unsupported(row, t):
        raise Unsupported("not here")

    def deadly(row, t):
        import os
        return lambda: os._exit(9)

    def loud(row, t):
        print("a library prints")
        return lambda: None

    ARMS = [Arm(f.__name__, f) for f in (broken, deadly, loud, unsupported, fine)]
"""


def child(script: str) -> list[str]:
    """A command that runs a script with ``job``, ``say`` and ``skip`` at hand, in place of the real child."""
    prelude = (
        "import json, os, sys, time\njob = json.load(sys.stdin)\nskip = {tuple(k) for k in job['skip']}\n"
        "def say(**m): print(json.dumps(m), flush=True)\n"
    )
    return [sys.executable, "-c", prelude + textwrap.dedent(script)]


def test_messages_become_times_and_problems() -> None:
    problems: list[str] = []
    times = collect(
        {},
        child("""
            print("noise from a library")
            say(row="r", arm="a"); say(row="r", arm="a", us=5.5)
            say(row="r", arm="b"); say(row="r", arm="b", error="ValueError: no")
            say(row="r", arm="c"); say(row="r", arm="c", unsupported="not here")
        """),
        problems,
    )
    assert times == {("r", "a"): 5.5}
    assert problems == ["b on r: ValueError: no"]


def test_an_arm_that_takes_the_child_with_it_costs_its_own_figure_only() -> None:
    problems: list[str] = []
    times = collect(
        {},
        child("""
            for arm in "abcd":
                if ("r", arm) in skip: continue
                say(row="r", arm=arm)
                if arm == "b": print("bus error", file=sys.stderr); os._exit(7)
                if arm == "c": say(fatal="context lost"); sys.exit(3)
                say(row="r", arm=arm, us=1.0)
        """),
        problems,
    )
    assert times == {("r", "a"): 1.0, ("r", "d"): 1.0}
    assert problems == ["b on r: the process ended: bus error", "c on r: the process ended: context lost"]


def test_a_hanging_child_is_stopped() -> None:
    problems: list[str] = []
    script = """
        for arm in "ab":
            if ("r", arm) in skip: continue
            say(row="r", arm=arm)
            if arm == "a": time.sleep(60)
            say(row="r", arm=arm, us=2.0)
    """
    assert collect({}, child(script), problems, stall=2.0) == {("r", "b"): 2.0}
    assert problems == ["a on r: the process ended: nothing heard for 2 s"]


def test_a_child_that_cannot_start_is_an_error() -> None:
    with pytest.raises(HostTimesFailed, match=r"the measuring process ended: ArmsError: bad file"):
        collect({}, child('say(fatal="ArmsError: bad file"); sys.exit(3)'))
    with pytest.raises(HostTimesFailed, match="No module named"):
        collect({}, [sys.executable, "-c", "import no_such_module"])


def test_restarts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "RESTARTS", 1)
    problems: list[str] = []
    script = """
        for arm in "abcdef":
            if ("r", arm) in skip: continue
            say(row="r", arm=arm); os._exit(1)
    """
    assert collect({}, child(script), problems) == {}
    assert problems[-1] == "gave up after 1 restarts of the measuring process"


def test_calls_are_batched_and_the_device_drained_between() -> None:
    log: list[str] = []
    us = time_calls(lambda: log.append("call"), lambda: log.append("sync"))
    expected = ["call"] * host.WARM_CALLS + ["sync"]
    for _ in range(host.BATCHES):
        expected += ["call"] * host.BATCH + ["sync"]
    assert log == expected
    assert us > 0


@pytest.fixture
def arms_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(ARMS))
    return path


def test_a_job_in_this_process(tmp_path: Path, arms_file: Path) -> None:
    job = {
        "rows": [SMALL.key],
        "arms": ["broken", "unsupported", "fine", "torch_fp32"],
        "device": "cpu",
        "picks": str(tmp_path / "none.json"),
        "arms_file": str(arms_file),
        "workspace_bytes": 1 << 20,
        "skip": [[SMALL.key, "torch_fp32"]],
    }
    messages = list(measure(json.loads(json.dumps(job))))
    results = {m["arm"]: m for m in messages if len(m) > 2}
    assert results.keys() == {"broken", "unsupported", "fine"}
    assert results["broken"]["error"] == "RuntimeError: no luck"
    assert results["unsupported"]["unsupported"] == "not here"
    assert results["fine"]["us"] > 0


def test_a_real_child_measures_on_a_cpu(tmp_path: Path, arms_file: Path) -> None:
    problems: list[str] = []
    arms = ["torch_fp32", "broken", "deadly", "loud", "fine"]
    times = host_times([SMALL], arms, "cpu", tmp_path / "picks.json", arms_file, problems)
    assert times.keys() == {(SMALL.key, "torch_fp32"), (SMALL.key, "loud"), (SMALL.key, "fine")}
    assert all(us > 0 for us in times.values())
    assert problems == [
        f"broken on {SMALL.key}: RuntimeError: no luck",
        f"deadly on {SMALL.key}: the process ended: exit code 9",
    ]


def test_a_job_of_dense_rows(tmp_path: Path) -> None:
    job = {
        "rows": [Row("dense", "dgrad", "eager", DenseShape(Layer("mine", 64, 24), 33), "bf16").key],
        "arms": ["cake", "cake_fp16x2", "torch_bf16"],
        "device": "cpu",
        "picks": str(tmp_path / "none.json"),
        "arms_file": None,
        "workspace_bytes": 1 << 20,
    }
    results = {m["arm"]: m for m in measure(job) if len(m) > 2}
    assert results.keys() == {"cake", "torch_bf16"} and all(m["us"] > 0 for m in results.values())


def test_a_job_of_no_rows() -> None:
    assert list(measure({"rows": [], "device": "cpu"})) == []


def test_a_job_with_a_previous_version(tmp_path: Path) -> None:
    job = {
        "rows": [SMALL.key],
        "arms": ["cake", "cake_prev"],
        "device": "cpu",
        "picks": str(tmp_path / "none.json"),
        "arms_file": None,
        "workspace_bytes": 1 << 20,
        "previous": str(load_copy().path),
    }
    results = {m["arm"]: m for m in measure(json.loads(json.dumps(job))) if len(m) > 2}
    assert results["cake"]["us"] > 0 and results["cake_prev"]["us"] > 0


@pytest.mark.gpu
def test_a_real_child_measures_on_a_gpu(tmp_path: Path) -> None:
    rows = [Row("router", "bwd", mode, Shape(64, 256, 64)) for mode in ("eager", "graph")]
    problems: list[str] = []
    times = host_times(rows, ["cake", "torch_fp32"], "cuda", tmp_path / "picks.json", None, problems)
    assert problems == []
    assert times.keys() == {(row.key, arm) for row in rows for arm in ("cake", "torch_fp32")}
    assert all(us > 0 for us in times.values())
