from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.cli import app
from bench.model import SCHEMA, Cells
from bench.statistics import JUDGEMENT
from bench.store import RunDir, open_run

ROOT = Path(__file__).resolve().parents[2]

#: An arm so slow that a run of the smoke preset is still under way when it is killed.
SLOW = """
import time
import torch
from bench.arms import Arm
def prepare(row, t):
    def run():
        time.sleep(0.05)
        for kind in row.gemms:
            gemm = t.gemm(kind)
            torch.mm(gemm.a, gemm.b, out=gemm.out)
    return run
ARMS = [Arm("slow", prepare)]
"""


@pytest.fixture
def shapes(tmp_path):
    path = tmp_path / "shapes.toml"
    path.write_text("shapes = [{T = 8, H = 64, N = 16}]")
    return path


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], terminal_width=200)


def refused(result):
    """The one line of an error, without a stack trace."""
    assert result.exit_code == 2 and result.stdout == ""
    assert "Traceback" not in result.stderr
    [line] = [text for text in result.stderr.splitlines() if text]
    return line


def start(*arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "bench", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that puts the tests in the background has their children ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_run_ends_with_the_path_of_its_report(tmp_path, shapes):
    out = tmp_path / ("a-long-name-" * 12)
    result = invoke("run", "--preset", "smoke", "--device", "cpu", "--shapes", shapes, "--out", out)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == str(out / "report.md")
    assert (out / "report.md").is_file()


def test_json_is_one_object_on_stdout(tmp_path, shapes):
    out = tmp_path / "run"
    common = ("--preset", "smoke", "--device", "cpu", "--shapes", shapes, "--ops", "fwd,dgrad")
    result = invoke("run", *common, "--out", out, "--json")
    made = json.loads(result.stdout)
    assert made["exit_code"] == 0 and made["rows"] == 2 and made["missing"] == made["problems"] == []
    assert made["report"] == str(out / "report.md")
    Cells.model_validate_json(Path(made["cells"]).read_text())
    (out / "report.md").unlink()
    again = json.loads(invoke("report", out, "--json").stdout)
    assert again == made and (out / "report.md").is_file()


def test_report_of_an_unfinished_run_exits_2(tmp_path, shapes):
    out = tmp_path / "run"
    invoke("run", "--preset", "smoke", "--device", "cpu", "--shapes", shapes, "--out", out)
    next((out / "rows").glob("*.json")).unlink()
    result = invoke("report", out)
    assert result.exit_code == 2 and (out / "report.md").is_file()


def test_unwritable_output(tmp_path, shapes):
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "run"
    line = refused(invoke("run", "--preset", "smoke", "--device", "cpu", "--shapes", shapes, "--out", out))
    assert line == (
        f"error: cannot write to {out}: Not a directory; give a directory that can be written with --out DIR"
    )


def test_refused_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("CUBLAS_EMULATE_SINGLE_PRECISION", "1")
    line = refused(invoke("run", "--preset", "smoke", "--device", "cpu", "--out", tmp_path / "run"))
    assert line.startswith("error: CUBLAS_EMULATE_SINGLE_PRECISION=1 is set and would silently change")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--timer", "cupti"), "error: timer cupti needs a CUDA device, got cpu; use --timer cpu there"),
        (
            ("--timer", "host"),
            "error: timer host needs a CUDA device: on a CPU a call's latency is its host time; use ",
        ),
        (("--timer", "sundial"), "error: timer is 'sundial'; needs one of cupti, events, cpu, host"),
        (("--arms", "absent.py"), "error: arm file absent.py is not a Python file that exists"),
        (("--shapes", "absent.toml"), "error: cannot read shapes from absent.toml"),
        (("--resume", "absent"), "error: absent is no run directory: it has no manifest.json"),
        (("--resume", "a", "--out", "b"), "error: --out and --resume exclude each other"),
        (("--ops", "up"), "error: op 'up' is unknown; ops are fwd, dgrad, wgrad, bwd, 2fwd+bwd"),
        (("--ops", ""), "error: --ops is '', which names none; leave it out for the preset's choice"),
        (("--modes", " ,"), "error: --modes is ' ,', which names none; leave it out for the preset's choice"),
        (("--modes", "lazy"), "error: mode 'lazy' is unknown; modes are eager, graph"),
        (("--preset", "huge"), "error: preset 'huge' is unknown; presets are full, quick, smoke"),
        (("--suite", "dense2"), "error: suite 'dense2' is unknown; suites are router"),
        (("--device", "tpu"), "error: device is 'tpu'; needs cpu, cuda or cuda:<index>"),
    ],
)
def test_what_a_user_can_mend_is_one_line(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert refused(invoke("run", "--preset", "smoke", "--device", "cpu", *arguments)).startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_device_without_a_driver(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    line = refused(invoke("run", "--device", "cuda", "--out", tmp_path / "run"))
    assert line == (
        "error: device cuda was asked for, but torch finds no usable GPU; "
        "check nvidia-smi, or use --device cpu"
    )


@pytest.fixture
def old_run(tmp_path, shapes):
    """A run that was judged by another rule than this version's, and its files."""
    path = tmp_path / "old"
    invoke("run", "--preset", "smoke", "--device", "cpu", "--shapes", shapes, "--ops", "fwd", "--out", path)
    run = open_run(path)
    rule = run.manifest().judgement | {"sought_effect": 1e-9, "min_effect": 1e6}
    run.write_manifest(run.manifest().model_copy(update={"judgement": rule}))
    return run


def test_a_run_is_reported_by_its_own_rule(old_run):
    before = (old_run.path / "manifest.json").read_bytes()
    result = invoke("report", old_run.path)
    assert result.exit_code == 0, result.output
    assert (old_run.path / "manifest.json").read_bytes() == before
    assert {c.verdict for c in old_run.cells().cells if c.ratio is not None} == {"unclear"}
    assert "by at least 1e+08 %" in (old_run.path / "report.md").read_text()
    assert "note: judged by the rule recorded with the run (min_effect 1e+06, not 0.003" in result.stderr


def test_a_rule_that_this_version_does_not_have_leaves_the_cells_as_they_are(old_run):
    invoke("report", old_run.path)
    m = old_run.manifest()
    old_run.write_manifest(m.model_copy(update={"judgement": {"level": 0.99, "wilcoxon": 1.0}}))
    before = {p: p.read_bytes() for p in old_run.path.rglob("*.json")}
    result = invoke("report", old_run.path)
    assert result.exit_code == 0, result.output
    assert {p: p.read_bytes() for p in old_run.path.rglob("*.json")} == before
    (old_run.path / "cells.json").unlink()
    assert refused(invoke("report", old_run.path)) == (
        f"error: {old_run.path} has no cells, and was judged by a rule that this version does not have; to "
        f"judge a copy by this version's: cake-bench report {old_run.path} --rejudge --out DIR"
    )


def test_another_rule_judges_a_copy(old_run, tmp_path):
    assert refused(invoke("report", old_run.path, "--rejudge")) == (
        "error: --rejudge needs --out DIR: a run keeps the verdicts of its own rule"
    )
    invoke("report", old_run.path)
    before = {p: p.read_bytes() for p in old_run.path.rglob("*") if p.is_file()}
    plain, again = tmp_path / "plain", tmp_path / "again"
    assert invoke("report", old_run.path, "--out", plain).exit_code == 0
    result = invoke("report", old_run.path, "--rejudge", "--out", again)
    assert result.exit_code == 0 and result.stdout.splitlines()[-1] == str(again / "report.md")
    assert {p: p.read_bytes() for p in old_run.path.rglob("*") if p.is_file()} == before
    assert (plain / "report.md").read_bytes() == (old_run.path / "report.md").read_bytes()
    assert open_run(again).manifest().judgement == JUDGEMENT.as_dict()
    assert open_run(again).cells() != open_run(plain).cells()
    assert "already holds a run" in refused(invoke("report", old_run.path, "--out", again))


def test_a_copy_goes_neither_into_its_run_nor_onto_what_is_left_of_another(old_run, tmp_path):
    invoke("report", old_run.path)
    before = {p: p.read_bytes() for p in old_run.path.rglob("*") if p.is_file()}
    inside = old_run.path / "rows" / "copy"
    assert refused(invoke("report", old_run.path, "--out", inside)) == (
        f"error: {inside} is inside {old_run.path}, which stays as it is; give a directory elsewhere"
    )
    (left := tmp_path / "left" / "rows").mkdir(parents=True)
    (left / "router-fwd-eager-T1-H8-N8.json").write_text("{}")
    assert "has rows of another run" in refused(invoke("report", old_run.path, "--out", left.parent))
    assert {p: p.read_bytes() for p in old_run.path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("command", ["compare", "gate"])
def test_a_run_beside_itself_is_refused(old_run, command):
    line = refused(invoke(command, old_run.path, old_run.path))
    assert line.startswith("error: runs 1 and 2 are the same run (router-") and "give each once" in line


def test_damaged_host_times_are_one_line(old_run):
    (old_run.path / "host.json").write_text("{}")
    assert refused(invoke("report", old_run.path)).startswith(
        f"error: {old_run.path / 'host.json'} is damaged (KeyError('times')); delete it"
    )


def test_report_of_no_run(tmp_path):
    assert refused(invoke("report", tmp_path)).startswith(f"error: {tmp_path} is no run directory")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot read {path}: Expecting property name"),
        ("[]", f"{{path}} has schema version None, this program reads version {SCHEMA}; measure again, or"),
        (
            '{"schema_version": 99}',
            f"{{path}} has schema version 99, this program reads version {SCHEMA}; measure again, or use the "
            "version of cake-bench that wrote it (see `git` in its manifest)",
        ),
        (f'{{"schema_version": {SCHEMA}}}', "{path} is damaged: run: Field required; measure again"),
    ],
)
@pytest.mark.parametrize("command", [("report",), ("run", "--resume")])
def test_a_run_that_cannot_be_read(tmp_path, text, message, command):
    path = tmp_path / "manifest.json"
    path.write_text(text)
    assert refused(invoke(*command, tmp_path)).startswith(f"error: {message.format(path=path)}")


def test_a_full_disk_keeps_finished_rows(tmp_path, shapes, monkeypatch):
    write, out = RunDir.write_row, tmp_path / "run"

    def full_at_the_second(run, facts, samples, again=False):
        if run.finished():
            raise OSError(errno.ENOSPC, "No space left on device", "row.parquet")
        write(run, facts, samples)

    monkeypatch.setattr(RunDir, "write_row", full_at_the_second)
    result = invoke("run", "--preset", "smoke", "--device", "cpu", "--shapes", shapes, "--out", out)
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert result.stderr.splitlines()[-1] == (
        "error: row.parquet: No space left on device; "
        f"finished rows are kept: mend that and go on with --resume {out}"
    )
    monkeypatch.undo()
    result = invoke("run", "--resume", out)
    assert result.exit_code == 0, result.output


def test_a_run_directory_that_became_read_only(tmp_path, shapes, monkeypatch):
    out = tmp_path / "run"
    invoke("run", "--preset", "smoke", "--device", "cpu", "--shapes", shapes, "--ops", "fwd", "--out", out)

    def read_only(run, cells):
        raise OSError(errno.EROFS, "Read-only file system", "cells.json")

    monkeypatch.setattr(RunDir, "write_cells", read_only)
    assert refused(invoke("report", out)).startswith("error: cells.json: Read-only file system; ")


@pytest.fixture
def slow_run(tmp_path):
    """A started run of 3 slow rows, once its first row is finished."""
    arms = tmp_path / "slow.py"
    arms.write_text(SLOW)
    out = tmp_path / "run"
    child = start("run", "--preset", "smoke", "--device", "cpu", "--arms", arms, "--out", out)
    until = time.monotonic() + 120
    while not list(out.glob("rows/*.json")):
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < until, "the first row took two minutes"
        time.sleep(0.02)
    yield child, out, arms
    child.kill()
    child.communicate()


def test_a_killed_run_resumes_and_keeps_finished_rows_to_the_byte(slow_run):
    child, out, arms = slow_run
    child.send_signal(signal.SIGKILL)
    child.wait()
    run = open_run(out)
    finished = run.finished()
    assert 1 <= len(finished) < 3
    before = {
        key: [(run.rows_path / f"{key}{s}").read_bytes() for s in (".json", ".parquet")] for key in finished
    }
    stamps = {key: (run.rows_path / f"{key}.parquet").stat().st_mtime_ns for key in finished}

    resumed = start("run", "--resume", out, "--arms", arms)
    stdout, stderr = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, stderr
    assert stdout.splitlines()[-1] == str(out / "report.md")
    after = {
        key: [(run.rows_path / f"{key}{s}").read_bytes() for s in (".json", ".parquet")] for key in finished
    }
    assert after == before
    assert {key: (run.rows_path / f"{key}.parquet").stat().st_mtime_ns for key in finished} == stamps
    manifest = run.manifest()
    assert run.finished() == set(manifest.rows) and manifest.finished
    assert run.cells().missing == ()
    assert not list(out.rglob("*.tmp"))
    slow = [c for c in run.cells().cells if c.arm == "slow"]
    assert len(slow) == 3 and all(c.us and c.us > 50_000 and c.host_us is None for c in slow)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_writes_its_report_and_exits_2(slow_run, number):
    child, out, _ = slow_run
    child.send_signal(number)
    stdout, stderr = child.communicate(timeout=120)
    assert child.returncode == 2, stderr
    assert "Traceback" not in stderr
    assert "not measured: interrupted; finished rows are kept: go on with --resume" in stderr
    assert stdout.splitlines()[-1] == str(out / "report.md")
    run = open_run(out)
    assert run.cells().missing and run.finished() and run.manifest().finished is None


def test_compile_without_a_gpu(tmp_path, monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", reason="no NVRTC bindings")
    from cake.program import registry

    first = registry.programs("sm_80")[0]
    monkeypatch.setattr(registry, "programs", lambda arch: [first])
    result = invoke("compile", "--arch", "sm_90a", "--arch", "sm_80", "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    assert [(m["arch"], m["status"]) for m in made] == [("sm_90a", "ok"), ("sm_80", "ok")]
    assert (tmp_path / "sm_90a" / f"{first.name}.cubin").stat().st_size > 0


def test_compile_for_an_unknown_architecture_says_so_once(monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", reason="no NVRTC bindings")
    from cake.program import registry

    two = registry.programs("sm_80")[:2]
    monkeypatch.setattr(registry, "programs", lambda arch: two)
    result = invoke("compile", "--arch", "sm_999")
    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert line.startswith("[1/2] sm_999: unsupported, NVRTC")


@pytest.mark.parametrize("arch", ["sm_75", "sm_12", "nonsense", ""])
def test_compile_for_what_has_no_program(arch):
    assert refused(invoke("compile", "--arch", "sm_80", "--arch", arch)) == (
        f"error: {arch} has no program: supported are GPUs of compute capability 8.0 (Ampere) and newer, "
        "and the CPU; give an --arch such as sm_80 or sm_90a"
    )


def test_compile_for_the_cpu():
    line = refused(invoke("compile", "--arch", "cpu"))
    assert line == "error: arch is 'cpu'; needs the form sm_90, sm_90a or sm_100f"


def test_a_dense_run_from_the_command_line_is_reported_compared_and_gated(tmp_path):
    common = ("--suite", "dense", "--device", "cpu", "--preset", "smoke", "--layers", "indexer_hw")
    runs = [tmp_path / "one", tmp_path / "two"]
    for out in runs:
        result = invoke("run", *common, "--tokens", "8", "--ops", "dgrad", "--passes", "3", "--out", out)
        assert result.exit_code == 0, result.output
        assert result.stdout.splitlines()[-1] == str(out / "report.md")
    assert open_run(runs[0]).cells().cells[0].layer == "indexer_hw"
    # Runs are known by the second that they began in, and these may take less than one.
    second = open_run(runs[1])
    second.write_manifest(second.manifest().model_copy(update={"run": "dense-second"}))
    assert invoke("compare", *runs).exit_code == 0
    assert invoke("merge", *runs, "--out", tmp_path / "both").exit_code == 0
    gated = json.loads(invoke("gate", *runs, "--json").stdout)
    assert gated["rows"] == [[open_run(runs[0]).cells().cells[0].gpu, "dense-dgrad-eager-indexer_hw-T8"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tokens", "64,x"), "error: --tokens is '64,x'; needs positive integers, e.g. 64,256"),
        (("--layers", ","), "error: --layers is ',', which names none; leave it out for the preset's choice"),
        (("--pause-ms", "2000"), "error: --pause-ms is 2000; needs 0 to 1000"),
    ],
)
def test_refused_dense_options(arguments, message):
    assert refused(invoke("run", "--suite", "dense", "--device", "cpu", *arguments)) == message
