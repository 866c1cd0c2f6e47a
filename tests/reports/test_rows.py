from __future__ import annotations

import pytest

from bench.model import Cells
from bench.store import StoreError, create_run, open_run
from reports.rows import group, load


def test_every_row_is_there_once(broken_dir):
    run = load(broken_dir)
    assert sorted(r.key for r in run.rows) == sorted(open_run(broken_dir).manifest().rows)


def test_order_is_by_number_not_by_text(h200_dir):
    run = load(h200_dir)
    assert run.tokens == [64, 256, 1024]
    assert run.ops == ["fwd", "dgrad", "wgrad", "bwd", "2fwd+bwd"]
    shapes = [(r.T, r.H) for r in run.select(mode="eager", op="fwd")]
    assert shapes == sorted(shapes)
    assert shapes[-1] == (1024, 6144)


def test_arms_are_sorted_into_ours_and_theirs(h200_dir):
    run = load(h200_dir)
    assert run.arms[:3] == ["cake", "control", "cake_det"]
    assert "control" not in run.calls
    assert run.rivals[0] == "torch_fp32"
    assert run.rivals[-1] == "sequence"
    assert "cake" not in run.rivals


def test_a_missing_row_says_why(broken_dir):
    row = next(r for r in load(broken_dir).rows if r.missing)
    assert row.why_not("sota") == ("not run", "the run ended before this row was measured")


def test_a_figure_that_needs_a_failed_arm_names_it(broken_dir):
    row = next(r for r in load(broken_dir).rows if r.op == "dgrad" and r.mode == "eager")
    assert row.us("cake") is None
    assert row.ratio("sota") is None
    assert row.why_not("sota") == (
        "no ratio",
        "`cake` is error: CUDA error: an illegal memory access was encountered",
    )


def test_long_reasons_are_one_line_and_cut(small_dir):
    run = open_run(small_dir)
    first, *rest = run.cells().cells
    log = "ptxas error\n  : " * 100
    broken = first.model_copy(update={"status": "error", "us": None, "reason": log})
    row = group(run.manifest(), Cells(cells=(broken, *rest)), ()).rows[0]
    word, reason = row.why_not("cake")
    assert word == "error"
    assert reason.startswith("ptxas error : ptxas error")
    assert reason.endswith(f"(the rest is in rows/{row.key}.json)")
    assert "\n" not in reason


def test_a_damaged_row_key_says_what_is_needed(small_dir):
    manifest = open_run(small_dir).manifest().model_copy(update={"rows": ("router-fwd",)})
    with pytest.raises(ValueError, match=r"row key 'router-fwd': needs suite-op-mode-T<n>-H<n>-N<n>"):
        group(manifest, Cells(cells=()), ())


def test_no_run_and_no_cells_are_clear_errors(tmp_path, small_dir):
    with pytest.raises(StoreError, match="is no run directory"):
        load(tmp_path)
    bare = create_run(tmp_path / "bare")
    bare.write_manifest(open_run(small_dir).manifest())
    with pytest.raises(StoreError, match=r"cells\.json does not exist"):
        load(bare.path)
