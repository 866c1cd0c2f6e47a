"""A run directory copied to another machine renders the same Markdown to the byte."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.run import write_cells
from bench.store import open_run
from reports import compare, write_report
from reports.matching import match
from reports.rows import load

ROOT = Path(__file__).resolve().parents[2]
RUNS = ("h200_dir", "broken_dir", "previous_dir", "passes_dir", "fp16x2_dir", "small_dir", "small_again_dir")
#: Makes the cells again, then the reports, then the comparison of the last two.
RENDER = """
import sys, time
from pathlib import Path
from bench.run import write_cells
from bench.store import open_run
from reports import compare, write_report
from reports.matching import match
from reports.rows import load
time.tzset()
runs = [Path(name) for name in sys.argv[1:]]
for run in runs:
    write_cells(open_run(run))
    write_report(run)
Path("comparison.md").write_bytes(compare.document(match([load(r) for r in runs[-2:]])).encode())
"""


def texts(folder: Path) -> dict[str, bytes]:
    kept = [p for p in folder.rglob("*") if p.suffix in (".md", ".png") or p.name == "cells.json"]
    return {str(p.relative_to(folder)): p.read_bytes() for p in kept}


def test_a_copy_renders_the_same_bytes(request, tmp_path):
    here, there = tmp_path / "here", tmp_path / "else where" / "über"
    for name in RUNS:
        shutil.copytree(request.getfixturevalue(name), here / name)
    for run in (paths := [here / name for name in RUNS]):
        for stale in (*run.glob("*.md"), *run.glob("plots/*")):
            stale.unlink()
        write_cells(open_run(run))
        write_report(run)
    (here / "comparison.md").write_bytes(compare.document(match([load(p) for p in paths[-2:]])).encode())
    shutil.copytree(here, there)
    for path in there.rglob("*.md"):
        path.unlink()
    environment = os.environ | {
        "TZ": "Pacific/Kiritimati",
        "LC_ALL": "C",
        "LANG": "C",
        "PYTHONUTF8": "0",
        "PYTHONHASHSEED": "4711",
        "COLUMNS": "40",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", RENDER, *RUNS], cwd=there, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert texts(there) == texts(here)
    said = b"".join(data for name, data in texts(here).items() if name.endswith(".md"))
    assert len(said) > 50_000
    assert str(tmp_path).encode() not in said


@pytest.mark.parametrize(
    "published", sorted((ROOT / "reports" / "published").glob("h200-router-*")), ids=lambda path: path.name
)
def test_a_published_run_gives_its_report_to_the_byte(published, tmp_path):
    """Whatever a later version adds, what is published stays what it says."""
    shutil.copytree(published, tmp_path / published.name)
    run = open_run(tmp_path / published.name)
    write_cells(run)
    write_report(run.path)
    assert (run.path / "report.md").read_bytes() == (published / "report.md").read_bytes()
