"""Rows of several runs matched."""

from __future__ import annotations

from dataclasses import replace

from reports.matching import match
from reports.rows import load


def test_rows_match_by_gpu_model_only_where_a_run_has_several(small_dir, broken_dir):
    run = load(small_dir)
    assert not any(m.gpu for m in match([run, load(broken_dir)]).rows)
    both = replace(run, rows=(*run.rows, *(replace(r, gpu="NVIDIA Other") for r in run.rows)))
    matched = match([both, run]).rows
    assert [m.gpu for m in matched] == ["NVIDIA H200"] * 2 + ["NVIDIA Other"] * 2
    assert [m.common for m in matched] == [True, True, False, False]
