"""Whole runs (bench.run) on the CPU."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from row_builders import raising, wrong

from bench.arms import Arm, Prepared
from bench.gate import judge
from bench.model import Cells, Picks
from bench.previous import package_digest
from bench.run import conduct
from bench.session import Options, RunRefused, choose_rows
from bench.store import StoreError, open_run
from bench.suites import row_of


@pytest.fixture
def small(tmp_path):
    shapes = tmp_path / "shapes.toml"
    shapes.write_text("shapes = [{T = 8, H = 64, N = 16}, {T = 3, H = 128, N = 8}]")
    return Options(preset="smoke", device="cpu", out=tmp_path / "run", shapes_file=shapes, ops=("fwd", "bwd"))


def make(options):
    text = io.StringIO()
    return conduct(options, Console(file=text, width=200)), text.getvalue()


def test_a_whole_run(small):
    outcome, text = make(small)
    assert outcome.exit_code == 0 and outcome.problems == ()
    run = open_run(small.out)
    manifest = run.manifest()
    assert (manifest.at_most, manifest.instances, manifest.reloads) == (1, 0, True)
    assert len(manifest.rows) == 4 and run.finished() == set(manifest.rows)
    assert manifest.finished and manifest.flags == ("warm",) and manifest.timer.name == "cpu"
    assert "note: 90 of the 90 rows of the full suite are left out" in text
    assert run.cells() == outcome.cells and outcome.cells.missing == ()
    names = {c.arm for c in outcome.cells.cells}
    libraries = {"torch_fp32", "numpy_fp32", "sequence", "sota"}
    assert names == {"cake", "control", "cake_det", "cake_fp16x2"} | libraries
    assert all(c.us for c in outcome.cells.cells if c.arm != "cake_fp16x2")
    assert all(c.status == "unsupported" for c in outcome.cells.cells if c.arm == "cake_fp16x2")
    assert {c.over for c in outcome.cells.cells} == {"cake", "cake_det"}
    assert outcome.run.manifest().cake_digest == package_digest()
    assert all(c.host_us is None for c in outcome.cells.cells)
    assert not (outcome.run.path / "host.json").exists()  # on a CPU a call's latency is the host's time
    assert all(c.bits_equal for c in outcome.cells.cells if c.arm == "cake_det")
    picks = Picks.model_validate(run.read_json("picks.json"))
    assert [(s.kind, s.T) for s in picks.searches] == [
        (k, t) for t in (8, 3) for k in ("fwd", "dgrad", "wgrad")
    ]
    assert {c.library for s in picks.searches for c in s.candidates} == {"torch_fp32", "numpy_fp32"}
    assert "torch" in manifest.libraries["torch_fp32"]


def test_a_ctrl_c_keeps_finished_rows_and_resume_does_the_rest(small, monkeypatch):
    from bench import run as running

    real, count = running.measure_row, []

    def interrupted(*args, **kwargs):
        count.append(1)
        if len(count) == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(running, "measure_row", interrupted)
    outcome, _ = make(small)
    assert outcome.exit_code == 2 and len(outcome.cells.missing) == 2
    assert outcome.problems == (f"interrupted; finished rows are kept: go on with --resume {small.out}",)
    run = open_run(small.out)
    assert run.manifest().finished is None
    before = {p.name: p.read_bytes() for p in run.rows_path.iterdir()}
    assert len(before) == 4

    outcome, _ = make(Options(resume=small.out))
    assert outcome.exit_code == 0 and run.manifest().finished
    assert len(count) == 5
    after = {p.name: p.read_bytes() for p in run.rows_path.iterdir()}
    assert len(after) == 8 and before.items() <= after.items()


def test_resuming_a_finished_run_measures_nothing(small, monkeypatch):
    make(small)
    monkeypatch.setattr("bench.run.measure_row", None)
    outcome, _ = make(Options(resume=small.out))
    assert outcome.exit_code == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"ops": ("fwd",)},
            "rows: 4 then, 1 now, without router-fwd-eager-T8-H64-N16 and 3 more; go on with "
            "`cake-bench run --resume {path}` and no further options, or start a new run (leave out --resume",
        ),
        ({"preset": "quick"}, "preset was smoke, now quick; form was 3 groups of 2 steps"),
        (
            {"arms_file": "mine.py"},
            "arms: 7 then, 8 now, with mine; go on with `cake-bench run --resume {path}` without --arms and ",
        ),
    ],
)
def test_resuming_as_another_run_is_refused(small, tmp_path, fields, message):
    make(small)
    (tmp_path / "mine.py").write_text(
        "from bench.arms import Arm\nARMS = [Arm('mine', lambda r, t: t.X.sum)]"
    )
    if "arms_file" in fields:
        fields = {"arms_file": tmp_path / "mine.py"}
    with pytest.raises(RunRefused) as e:
        make(replace(Options(resume=small.out), **fields))
    assert str(e.value).startswith(f"cannot resume {small.out}: {message.format(path=small.out)}")


def test_resume_of_another_schema(small):
    make(small)
    path = small.out / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 7}))
    with pytest.raises(StoreError, match="has schema version 7, this program reads version 1; measure again"):
        make(Options(resume=small.out))


def test_a_user_arm_that_raises_half_way(small, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from bench.arms import Arm\n"
        "def prepare(row, t):\n"
        "    if row.op == 'bwd':\n"
        "        raise OSError('half-way')\n"
        "    return lambda: t.out.copy_(t.X @ t.W.t())\n"
        "ARMS = [Arm('mine', prepare)]\n"
    )
    outcome, _ = make(replace(small, arms_file=path))
    mine = [c for c in outcome.cells.cells if c.arm == "mine"]
    assert [c.status for c in mine] == ["ok", "error", "ok", "error"]
    assert mine[1].reason == "OSError: half-way" and mine[0].us and mine[1].us is None
    assert outcome.exit_code == 0  # a user's arm or a rival never decides the exit code


def test_an_inaccurate_cake_arm_exits_1(small, monkeypatch):
    monkeypatch.setattr("bench.session.cake_arms", lambda previous: [Arm("cake", wrong, "cake")])
    outcome, _ = make(replace(small, ops=("bwd",)))
    assert outcome.exit_code == 1
    assert outcome.inaccurate[0].startswith(
        "cake bwd eager T=8 H=64 N=16: inaccurate: relative Frobenius error"
    )


def test_a_cake_arm_that_fails_exits_2(small, monkeypatch):
    monkeypatch.setattr("bench.session.cake_arms", lambda previous: [Arm("cake", raising(1), "cake")])
    outcome, _ = make(replace(small, ops=("fwd",)))
    assert outcome.exit_code == 2
    assert outcome.unmeasured[0] == "cake fwd eager T=8 H=64 N=16: error: RuntimeError: broke at run 1"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"suite": "dense2"}, "suite 'dense2' is unknown; suites are router"),
        ({"ops": ("up",)}, r"op 'up' is unknown; ops are fwd, dgrad, wgrad, bwd, 2fwd\+bwd"),
        ({"modes": ("graph",)}, "mode graph needs a GPU: a CPU has no graphs to capture; use --modes eager"),
        ({"modes": ("lazy",)}, "mode 'lazy' is unknown; modes are eager, graph"),
        ({"device": "tpu"}, "device is 'tpu'; needs cpu, cuda or cuda:<index>"),
        ({"preset": "huge"}, "preset 'huge' is unknown"),
    ],
)
def test_refused_options(small, fields, message):
    with pytest.raises((RunRefused, ValueError), match=message):
        make(replace(small, **fields))


def test_cells_json_is_the_cells_model(small):
    make(small)
    Cells.model_validate_json((small.out / "cells.json").read_text())


def test_prepared_is_exported_for_arm_files():
    assert Prepared(lambda: None).calls == ()


@pytest.mark.gpu
def test_a_whole_run_on_the_gpu(tmp_path):
    shapes = tmp_path / "shapes.toml"
    shapes.write_text("shapes = [{T = 64, H = 1024, N = 256}]")
    outcome, _ = make(Options(preset="smoke", out=tmp_path / "run", shapes_file=shapes))
    assert outcome.exit_code == 0
    own = ["cake", "control", "cake_det"] + ["cake_fp16x2"] * (outcome.run.manifest().device.arch == "sm_90a")
    cake = [c for c in outcome.cells.cells if c.arm in own]
    assert cake and all(c.status == "ok" and c.rel_fro <= 4e-7 for c in cake)
    assert any(c.mode == "graph" for c in cake)
    assert all(c.us for c in outcome.cells.cells if c.arm == "sota")


def test_a_stranger_that_came_while_the_run_went_is_flagged(small, monkeypatch):
    monkeypatch.setattr("bench.run.shared_gpu", lambda device: True)
    outcome, text = make(replace(small, ops=("fwd",)))
    manifest = outcome.run.manifest()
    assert manifest.flags == ("warm", "shared-gpu")
    assert manifest.notes[-1].startswith("another process was on the GPU when the run ended")
    assert all("shared-gpu" in c.flags for c in outcome.cells.cells) and manifest.notes[-1] in text


def test_damaged_picks_are_one_line(small):
    make(small)
    (small.out / "picks.json").write_text('{"searches": 3}')
    next(small.out.glob("rows/*.json")).unlink()
    with pytest.raises(
        StoreError, match=r"picks.json is damaged: searches: .*; delete it to have it made again"
    ):
        make(Options(resume=small.out))


@pytest.fixture
def dense(tmp_path):
    shapes = tmp_path / "layers.toml"
    shapes.write_text(
        "shapes = [{layer = 'one', T = 33, K = 64, N = 24}, {layer = 'two', T = 33, K = 72, N = 24}]"
    )
    return Options(suite="dense", preset="smoke", device="cpu", out=tmp_path / "run", shapes_file=shapes)


def test_a_whole_dense_run(dense):
    outcome, text = make(replace(dense, outs=("bf16", "f32"), pause_ms=0.1))
    assert outcome.exit_code == 0 and outcome.problems == ()
    run = open_run(dense.out)
    manifest = run.manifest()
    assert (manifest.suite, manifest.form, manifest.pause_ms) == ("dense", "passes", 0.1)
    assert manifest.run.startswith("dense-") and "note: 294 of the 294 rows of the full" in text
    assert len(manifest.rows) == 10 and run.finished() == set(manifest.rows)
    assert manifest.arms == ("cake", "control", "cake_det", "torch_bf16")
    cells = outcome.cells.cells
    assert {c.arm for c in cells} == {*manifest.arms, "sota"} and all(c.us for c in cells)
    assert {row_of(c).key for c in cells} == set(manifest.rows)
    assert all(c.top8_equal is None and c.program and c.partition for c in cells if c.arm == "cake")
    assert all(c.bits_equal for c in cells if c.arm == "cake_det")
    assert all(c.slower_passes is not None for c in cells if c.arm == "control")
    picks = Picks.model_validate(run.read_json("picks.json"))
    assert [(s.layer, s.out, s.kind) for s in picks.searches[:5]] == [
        ("one", "bf16", "fwd"),
        ("one", "bf16", "dgrad"),
        ("one", "bf16", "wgrad"),
        ("one", "f32", "dgrad"),
        ("one", "f32", "wgrad"),
    ]


def test_a_dense_run_goes_on_without_its_options(dense):
    make(replace(dense, ops=("dgrad",), pause_ms=0.1))
    run = open_run(dense.out)
    for path in run.rows_path.glob("*two*"):
        path.unlink()
    outcome, _ = make(Options(resume=dense.out))
    assert outcome.exit_code == 0 and run.manifest().pause_ms == 0.1
    assert len(outcome.cells.cells) == 2 * 6  # SOTA is over cake and over cake_det
    with pytest.raises(RunRefused, match="is of suite dense; leave --suite router out, or start a new run"):
        make(Options(resume=dense.out, suite="router"))


def test_a_dense_control_run_is_gated(dense):
    outcome, _ = make(replace(dense, ops=("wgrad",), control_run=True))
    result = judge(outcome.cells, outcome.run.manifest())
    assert len(result.rows) == 2 and not result.of("inaccurate", "bits", "missing")
    assert all(c.bits_equal for c in outcome.cells.cells if c.arm == "cake_prev")


def test_layers_and_tokens_choose_rows_of_the_dense_suite():
    options = Options(suite="dense", layers=("q_a", "mla_v"), tokens=(64, 5), outs=("f32",))
    preset, rows = choose_rows(options, None, "cuda")
    assert (preset.name, len(rows)) == ("full", 8)
    assert rows[0].key == "dense-dgrad-graph-q_a-T64-f32" and rows[-1].key == "dense-wgrad-graph-mla_v-T5-f32"
    assert len(choose_rows(Options(suite="dense", tokens=(64, 256)), None, "cuda")[1]) == 2 * 14 * 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"suite": "conv"}, "suite 'conv' is unknown; suites are router, dense"),
        ({"layers": ("q_z",)}, "layer 'q_z' is unknown; layers are o_proj, q_a"),
        ({"ops": ("bwd",)}, "op 'bwd' is unknown; ops are fwd, dgrad, wgrad"),
        ({"outs": ("f16",)}, "output dtype 'f16' is unknown; output dtypes are bf16, f32"),
        ({"ops": ("fwd",), "outs": ("f32",)}, "no rows: fwd has no FP32 outputs; add --ops dgrad,wgrad or"),
        ({"suite": "router", "layers": ("q_a",)}, "--layers and --tokens are for --suite dense"),
        ({"suite": "router", "outs": ("f32",)}, "output dtype 'f32' is unknown"),
        ({"shapes_file": Path("x"), "tokens": (3,)}, "--shapes names layers and tokens itself"),
    ],
)
def test_dense_options_that_make_no_sense(fields, message):
    with pytest.raises(RunRefused, match=re.escape(message)):
        choose_rows(Options(**({"suite": "dense"} | fields)), None, "cuda")
