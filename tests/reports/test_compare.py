"""Runs side by side: the whole comparison of two small ones, and what is said of rows, arms and verdicts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.cli import app
from reports import compare
from reports.matching import match
from reports.rows import load

GOLDEN = Path(__file__).with_name("golden_compare.md")


def compared(*run_dirs):
    return match([load(d) for d in run_dirs])


def said(c):
    return dict(compare.findings(c))


def test_the_whole_comparison_of_two_small_runs(small_dir, small_again_dir):
    assert compare.document(compared(small_dir, small_again_dir)) == GOLDEN.read_text()


def test_a_run_with_itself_differs_in_nothing(h200_dir):
    found = said(compared(h200_dir, h200_dir))
    assert found["Verdicts that differ"] == ["None in 90 rows that all runs have."]
    assert found["What only some runs have"] == ["All runs have the same 90 rows and the same arms."]
    against = found["SOTA/cake, cells by the control range of their run"]
    assert "eager fwd: above control in every cell of every run (9 of 9)." in against
    assert "eager wgrad: above control 6 / 6, of 9 (run 2 / run 1)." in against
    below = [line for line in against if line.startswith("eager wgrad, T=64 H=4096: run 1 below control, ")]
    assert len(below) == 1 and below[0].count("its control pair") == 2 and below[0].count(" ticks)") == 2


def test_rows_and_arms_of_one_run_alone_are_listed(small_dir, small_again_dir, broken_dir):
    found = said(compared(small_dir, small_again_dir))["What only some runs have"]
    assert found == [
        "Only in run 2: fwd graph T=1024 H=4096.",
        "Arms only in run 1: `cublas_bf16x9`.",
        "Arms only in run 2: `mine`.",
    ]
    three = said(compared(small_dir, small_again_dir, broken_dir))["What only some runs have"]
    assert any(line.startswith("Only in run 3: 18 rows: graph dgrad (2), ") for line in three)
    assert any(line.startswith("`torch_fp32`: run 1 ok, run 2 ok, run 3 error on ") for line in three)


def test_runs_without_a_row_in_common_are_shown_all_the_same(small_dir, cpu_dir):
    text = compare.document(compared(small_dir, cpu_dir))
    assert "No row is in all runs." in text and "none of 20" in text
    assert "Only in run 1: fwd graph T=64 H=4096 and fwd graph T=256 H=4096." in text


def test_rows_of_one_gpu_alone_are_listed_with_it(small_dir):
    run = load(small_dir)
    both = replace(run, rows=(*run.rows, *(replace(r, gpu="NVIDIA Other") for r in run.rows)))
    c = match([both, run])
    assert "Only in run 1: NVIDIA Other: fwd graph T=64 H=4096" in compare.document(c)


def test_the_previous_version_is_compared_too(previous_dir, small_dir):
    found = said(compared(previous_dir, small_dir))
    lines = found["previous/new, cells by the control range of their run"]
    assert any("run 2 has no such cell (not run)" in line for line in lines)


def invoke(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_the_command(small_dir, small_again_dir, tmp_path):
    out = tmp_path / "comparison.md"
    done = invoke(small_dir, small_again_dir, "--out", out)
    assert done.exit_code == 0 and out.read_text() == GOLDEN.read_text()
    assert done.stdout.splitlines()[-1] == str(out) and "Unpaired" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines()[:-1])
    data = json.loads(invoke(small_dir, small_again_dir, "--json").stdout)
    assert data["paired"] is False and [r["label"] for r in data["runs"]] == ["run 1", "run 2"]
    first = data["rows"][0]
    assert first["row"] == "router-fwd-graph-T64-H4096-N256"
    sota = next(c for c in first["cells"] if (c["arm"], c["over"]) == ("sota", "cake"))
    assert [run["verdict"] for run in sota["runs"]] == ["faster", "slower"]
    assert data["rows"][2]["cells"][0]["runs"][0] is None


@pytest.mark.parametrize("number", [1, 2])
def test_what_cannot_be_compared_is_one_line(small_dir, tmp_path, number):
    given = [small_dir] if number == 1 else [small_dir, tmp_path]
    done = invoke(*given)
    assert done.exit_code == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1
    wanted = "one run alone cannot be compared" if number == 1 else "is no run directory"
    assert wanted in done.stderr
