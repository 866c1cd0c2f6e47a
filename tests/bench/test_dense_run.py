"""A run of the dense suite, from its options to its cells, on the CPU."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console

from bench.layers import DenseShape, Layer
from bench.run import conduct
from bench.session import Options, RunRefused, choose_rows
from bench.suites import Row

ROW = Row("dense", "wgrad", "eager", DenseShape(Layer("mine", 136, 72), 33), "bf16")


def options(out, **fields) -> Options:
    return Options(suite="dense", preset="smoke", device="cpu", out=out, **fields)


def test_a_run_has_the_cells_of_its_layers(tmp_path):
    outcome = conduct(options(tmp_path / "run", ops=("dgrad",), pause_ms=1.0), Console(quiet=True))
    assert outcome.exit_code == 0 and len(outcome.run.manifest().rows) == 2
    cells = json.loads((tmp_path / "run" / "cells.json").read_text())["cells"]
    first = next(c for c in cells if c["arm"] == "sota" and c["over"] == "cake")
    named = ("suite", "op", "layer", "T", "K", "N", "H", "out", "status")
    assert tuple(first[n] for n in named) == ("dense", "dgrad", "plain", 33, 136, 72, None, "bf16", "ok")
    assert first["call"].startswith("torch_bf16") and first["slower_passes"] is not None
    manifest = outcome.run.manifest()
    assert (manifest.suite, manifest.form, manifest.pause_ms, manifest.budget) == (
        "dense",
        "passes",
        1.0,
        4e-3,
    )
    assert manifest.arms == ("cake", "control", "cake_det", "torch_bf16")
    again = conduct(Options(resume=tmp_path / "run"), Console(quiet=True))
    assert again.run.manifest().rows == manifest.rows
    with pytest.raises(RunRefused, match="pause before a step"):
        conduct(Options(resume=tmp_path / "run", pause_ms=0.0), Console(quiet=True))


def test_rows_by_layers_tokens_and_outputs():
    chosen = replace(options(None), preset="full", layers=("q_a",), tokens=(5, 64), outs=("bf16", "f32"))
    _, rows = choose_rows(chosen, None, "cpu")
    assert [r.key for r in rows[:5]] == [
        "dense-fwd-eager-q_a-T5",
        "dense-dgrad-eager-q_a-T5",
        "dense-wgrad-eager-q_a-T5",
        "dense-dgrad-eager-q_a-T5-f32",
        "dense-wgrad-eager-q_a-T5-f32",
    ]
