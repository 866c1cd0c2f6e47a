"""``cake-bench gate`` on real small runs on the CPU: exit codes, re-measurement, where the result goes."""

from __future__ import annotations

import functools
import io
import json
import time
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import cake
from bench import run as running
from bench.cli import app
from bench.model import GateResult
from bench.presets import CPU_PRESETS
from bench.previous import Version
from bench.run import AGAIN_ARMS, conduct
from bench.session import Options
from bench.store import open_run

#: Seconds of work planted in a call: far above what a call of these shapes takes.
SLOWDOWN = 0.002
FWD, BWD = "router-fwd-eager-T8-H64-N16", "router-bwd-eager-T8-H64-N16"


def slowed(op):
    """cake with a planted slowdown in one op: its public function idles before it works."""
    module = ModuleType("slow_cake")
    module.__dict__.update({name: getattr(cake, name) for name in cake.__all__})
    name = {"fwd": "router_forward", "bwd": "router_backward"}[op]
    real = getattr(cake, name)

    @functools.wraps(real)
    def slow(*args, **kwargs):
        until = time.thread_time() + SLOWDOWN
        while time.thread_time() < until:
            pass
        return real(*args, **kwargs)

    setattr(module, name, slow)
    return module


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A small suite, and ``--previous base`` as the working tree's own cake."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    previous(monkeypatch, cake)
    # The thread's own time, in one thread: a busy machine holds whole groups up by the clock on the wall.
    own_time = SimpleNamespace(perf_counter_ns=time.thread_time_ns, get_clock_info=time.get_clock_info)
    monkeypatch.setattr("bench.timers.cpu.time", own_time)
    monkeypatch.setitem(CPU_PRESETS, "smoke", replace(CPU_PRESETS["smoke"], groups=7, steps=3))
    (tmp_path / "shapes.toml").write_text("shapes = [{T = 8, H = 64, N = 16}]")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(threads)


def previous(monkeypatch, module):
    def load(ref, *args):
        return Version(module, ref, "1a2b3c4d5e6f7890", module.__file__)

    module.__dict__.setdefault("__file__", "slow_cake/__init__.py")
    monkeypatch.setattr("bench.session.load_previous", load)


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], terminal_width=200)


def measuring(place, *more):
    options = ("--preset", "smoke", "--device", "cpu", "--shapes", place / "shapes.toml", "--ops", "fwd,bwd")
    return ("--previous", "base", *options, "--out", place / "run", *more)


def test_a_planted_slowdown_is_red_named_and_measured_again(place, monkeypatch):
    monkeypatch.setattr("bench.arms.cake", slowed("fwd"))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(place / "summary.md"))
    result = invoke("gate", *measuring(place, "--junit", place / "out" / "junit.xml"))
    assert result.exit_code == 1, result.output
    assert "gate failed: 1 of 2 rows is slower than base (1a2b3c4d5e6f)" in result.stdout
    assert result.stdout.splitlines()[-1] == str(place / "run" / "report.md")
    assert (place / "run" / "report.md").is_file()

    run = open_run(place / "run")
    assert FWD in run.finished(again=True) and run.manifest().finished
    again = run.row(FWD, again=True)
    assert tuple(a.arm for a in again.arms) == AGAIN_ARMS
    assert set(run.samples(FWD, again=True).arm) == set(AGAIN_ARMS)
    [cell] = [c for c in run.cells().cells if c.arm == "cake_prev" and c.op == "fwd"]
    assert cell.first_verdict == cell.verdict == cell.again.verdict == "slower"

    # The same words everywhere.
    made = GateResult.model_validate_json((run.path / "gate.json").read_text())
    [finding] = [f for f in made.findings if f.kind == "slower"]
    assert finding.row == FWD and finding.again is not None and finding.new_us > 1e6 * SLOWDOWN
    [line] = [text for text in result.stdout.splitlines() if text.startswith("::error")]
    words = line.partition("::")[2].partition("::")[2]
    assert words.startswith("slower: previous/new = ") and "measured again" in words
    assert line.startswith("::error title=gate%3A fwd eager T=8 H=64 N=16::")
    summary = (place / "summary.md").read_text()
    failure = ElementTree.parse(place / "out" / "junit.xml").find(".//failure")
    for text in (summary, (run.path / "gate.md").read_text(), failure.text, result.stdout):
        assert words in text

    # A second look at the run in the same step: the same verdict, and the summary is not written twice.
    second = invoke("gate", run.path, "--json")
    told = json.loads(second.stdout)
    assert second.exit_code == told["exit_code"] == 1
    assert told["findings"][0]["text"] == f"fwd eager T=8 H=64 N=16: {words}"
    assert (place / "summary.md").read_text() == summary and summary.count(words) == 1


def test_faster_is_green(place, monkeypatch):
    previous(monkeypatch, slowed("fwd"))
    result = invoke("gate", *measuring(place, "--ops", "fwd"))
    assert result.exit_code == 0, result.output
    assert "gate passed: 1 row is not slower than base (1a2b3c4d5e6f)" in result.stdout
    assert "1 row confirmed faster: fwd eager T=8 H=64 N=16" in result.stdout
    assert "::" not in result.stdout and not (place / "summary.md").exists()
    assert open_run(place / "run").finished(again=True) == {FWD}


def test_missing_rows_give_2_and_a_report(place, monkeypatch):
    previous(monkeypatch, slowed("fwd"))
    invoke("gate", *measuring(place, "--ops", "fwd"))
    run = open_run(place / "run")
    (run.rows_path / f"{FWD}.json").unlink()
    (run.path / "report.md").unlink()
    result = invoke("gate", run.path)
    assert result.exit_code == 2 and (run.path / "report.md").is_file()
    assert "gate could not measure: 1 of 1 row is missing" in result.stdout
    resumed = invoke("gate", "--resume", run.path)
    assert resumed.exit_code == 0, resumed.output


def test_a_rival_that_fails_changes_nothing(place, monkeypatch):
    previous(monkeypatch, slowed("fwd"))
    arms = place / "mine.py"
    arms.write_text(
        "from bench.arms import Arm\n"
        "def prepare(row, t):\n"
        "    raise OSError('no')\n"
        "ARMS = [Arm('mine', prepare, 'library')]\n"
    )
    result = invoke("gate", *measuring(place, "--ops", "fwd", "--arms", arms))
    assert result.exit_code == 0, result.output
    assert "note: mine is error on 1 row, which decides nothing here" in result.stdout


def test_an_interrupted_re_measurement_is_resumed(place, monkeypatch):
    monkeypatch.setattr("bench.arms.cake", slowed("fwd"))
    real = running.measure_row

    def interrupted(bench, row, tensors, refs, arms, progress):
        if len(list(arms)) == len(AGAIN_ARMS):
            raise KeyboardInterrupt
        return real(bench, row, tensors, refs, arms, progress)

    monkeypatch.setattr(running, "measure_row", interrupted)
    result = invoke("gate", *measuring(place, "--ops", "fwd", "--junit", place / "junit.xml"))
    todo = f"flagged slower, not measured again; have it done: cake-bench gate --resume {place / 'run'}"
    assert result.exit_code == 2 and todo in result.stdout
    assert todo in (place / "run" / "gate.md").read_text() and todo in (place / "junit.xml").read_text()
    assert f"interrupted; finished rows are kept: go on with --resume {place / 'run'}" in result.stdout
    run = open_run(place / "run")
    assert run.manifest().finished is None and run.finished() == {FWD} and not run.finished(again=True)
    before = (run.rows_path / f"{FWD}.parquet").read_bytes()

    monkeypatch.setattr(running, "measure_row", real)
    outcome = conduct(Options(resume=run.path), Console(file=io.StringIO()))
    assert run.finished(again=True) == {FWD} and run.manifest().finished
    assert (run.rows_path / f"{FWD}.parquet").read_bytes() == before
    [cell] = [c for c in outcome.cells.cells if c.arm == "cake_prev"]
    assert cell.verdict == "slower"
    stamp = (run.rows_path / f"{FWD}.again.parquet").stat().st_mtime_ns
    conduct(Options(resume=run.path), Console(file=io.StringIO()))
    assert (run.rows_path / f"{FWD}.again.parquet").stat().st_mtime_ns == stamp


def test_two_runs(place, monkeypatch):
    invoke("run", *measuring(place, "--ops", "bwd"))
    base = open_run(place / "run")
    base.write_manifest(base.manifest().model_copy(update={"run": "base"}))  # both begin in one second
    monkeypatch.setattr("bench.arms.cake", slowed("bwd"))
    options = [str(a) for a in measuring(place, "--ops", "bwd")]
    options[options.index(str(place / "run"))] = str(place / "new")
    invoke("run", *options)
    before = {p.name: p.read_bytes() for p in (place / "run").iterdir() if p.is_file()}
    result = invoke("gate", place / "run", place / "new")
    assert result.exit_code == 1, result.output
    assert "bwd eager T=8 H=64 N=16: slower: previous/new = " in result.stdout
    assert (
        "through " in result.stdout and "note: two runs: compared through the library calls" in result.stdout
    )
    assert json.loads((place / "new" / "gate.json").read_text())["form"] == "across runs"
    assert {p.name: p.read_bytes() for p in (place / "run").iterdir() if p.is_file()} == before


def test_a_run_without_a_previous_version(place):
    arguments = measuring(place, "--ops", "fwd")[2:]
    invoke("run", *arguments)
    result = invoke("gate", place / "run")
    assert result.exit_code == 2
    assert "gate could not measure: the run has no previous version to gate against; measure" in result.stdout


def test_an_unwritable_output_is_2(place, monkeypatch):
    previous(monkeypatch, slowed("fwd"))
    (place / "file").write_text("")
    result = invoke("gate", *measuring(place, "--ops", "fwd", "--junit", place / "file" / "junit.xml"))
    assert result.exit_code == 2 and f"error: cannot write {place / 'file' / 'junit.xml'}: " in result.stderr
    assert result.stdout.splitlines()[-1] == str(place / "run" / "report.md")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to gate: give a run, two runs, or --previous REF to measure one"),
        (("--preset", "smoke"), "nothing to gate: give a run, two runs, or --previous REF to measure one"),
        (("a", "b", "c"), "gate takes one run or two, got 3; compare them with cake-bench compare"),
        (("a", "--ops", "fwd"), "--ops is for measuring, and a is measured already; leave one of them out"),
        (("a", "--arms", "x"), "--arms is for measuring, and a is measured already; leave one of them out"),
        (
            ("absent",),
            "absent is no run directory: it has no manifest.json; give the directory that a run wrote",
        ),
    ],
)
def test_refused(place, monkeypatch, arguments, message):
    monkeypatch.chdir(place)
    result = invoke("gate", *arguments)
    assert result.exit_code == 2 and result.stdout == "" and result.stderr == f"error: {message}\n"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    lines = invoke("gate", *arguments).stderr.splitlines()
    assert lines == [f"error: {message}", f"::error title=cake-bench could not measure::{message}"]
