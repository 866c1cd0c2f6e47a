"""The tables of runs side by side."""

from __future__ import annotations

from dataclasses import replace

from reports.compare_tables import setup, summary, times
from reports.matching import match
from reports.rows import load


def test_the_later_run_comes_first_in_counts(h200_dir, small_dir):
    c = match([load(small_dir), load(h200_dir)])
    line = next(line for line in summary(c).lines if line[:2] == ("graph", "fwd"))
    assert line[-1] == "9 of 9 / 2 of 2"
    assert times(c).columns[2].title == "us, run 2 / run 1"


def test_what_tells_the_runs_apart_is_shown(small_dir):
    run = load(small_dir)
    changes = {"git": {"commit": "abc", "dirty": "yes"}, "instances": None, "reloads": None}
    other = replace(run, manifest=run.manifest.model_copy(update=changes))
    lines = {line[0]: line[1:] for line in setup(match([run, other])).lines}
    assert lines["commit"] == (run.manifest.git["commit"], "abc (dirty)")
    assert lines["instances in graph mode"] == ("5", "not recorded")
    assert lines["programs reloaded in eager mode"] == ("true", "not recorded")
    assert "instances in graph mode" not in {line[0] for line in setup(match([run, run])).lines}
