from __future__ import annotations

import io
import json
import shutil

import pytest
from rich.console import Console

from reports import write_report
from reports.terminal import print_summary


def printed(run_dir) -> str:
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    print_summary(run_dir, console)
    return console.file.getvalue()


@pytest.mark.parametrize("name", ["h200_dir", "cpu_dir", "broken_dir", "small_dir", "fp16x2_dir"])
def test_fits_80_columns_without_colour(request, name):
    run_dir = request.getfixturevalue(name)
    text = printed(run_dir)
    assert "\x1b" not in text
    assert "…" not in text
    assert all(len(line.rstrip()) <= 80 for line in text.splitlines() if str(run_dir) not in line)


def test_says_what_the_report_says(h200_dir):
    report = write_report(h200_dir)
    text = printed(h200_dir)
    flat = " ".join(text.split())
    assert "cake against the best library call: faster in 84 of 90 rows, same in 3, slower in 3" in flat
    assert "slower rows, as SOTA/cake | SOTA/cake_det" in flat
    assert "slower wgrad eager (3 of 9): T=64 H=4096 0.9" in flat
    assert f"\n{report.parent / 'plots'}\n" in text and str(report) not in text
    lines = [line for line in text.splitlines() if line.split()[:2] == ["graph", "2fwd+bwd"]]
    assert len(lines) == 1 and len(lines[0].split()) == 7


def test_fp16x2_has_a_headline_a_column_and_its_slower_rows(fp16x2_dir):
    flat = " ".join(printed(fp16x2_dir).split())
    assert "cake_fp16x2 against the best library call: faster in 1 of 2 rows, same in 0, slower in 1" in flat
    assert "slower rows, as SOTA/cake | SOTA/cake_det | SOTA/cake_fp16x2, in brackets where" in flat
    assert "fp16x2/cake" in flat


def test_rows_without_a_ratio_are_named(broken_dir):
    flat = " ".join(printed(broken_dir).split())
    assert "not measured dgrad eager: T=64 H=4096 (no ratio); T=256 H=4096 (no ratio)" in flat
    assert "note: The run did not finish" in flat


def test_a_users_arm_that_failed_is_named(previous_dir, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(previous_dir, copy)
    path = copy / "cells.json"
    cells = json.loads(path.read_text())
    for cell in cells["cells"]:
        if cell["arm"] == "mine":
            cell.update(
                status="error", reason="RuntimeError: no such kernel", us=None, ratio=None, verdict=None
            )
    path.write_text(json.dumps(cells))
    assert "your arm mine: error on all 2 rows: RuntimeError: no such kernel." in " ".join(
        printed(copy).split()
    )
    assert "your arm" not in printed(previous_dir)
