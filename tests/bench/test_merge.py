"""Merging runs: medians over GPUs, the faster cuBLAS version, what is refused, and what is said."""

from __future__ import annotations

import numpy as np
import pytest
from bench_builders import ROW, arm, manifest, row_facts, samples
from typer.testing import CliRunner

from bench.cli import app
from bench.merge import MergeRefused, merge
from bench.model import SCHEMA, Device
from bench.run import write_cells
from bench.store import StoreError, create_run
from bench.suites import Row, Shape

OTHER = Row("router", "fwd", "eager", Shape(16, 64, 32))
ARMS = {"cake": "cake", "control": "cake", "cake_det": "cake", "lib": "library"}


def make(path, number, times, *, cublas="13.1.0.3", gpu=None, rows=(ROW,), arms=None, again=None, **changes):
    """A run directory ``number`` on GPU ``gpu``, whose arms take ``times`` us."""
    run = create_run(path / f"run{number}")
    device = Device(name="Test GPU", arch="sm_90a", sms=132, uuid=gpu or f"GPU-{number}")
    fields = {"device": device, "run": f"run-{number}", "started": f"2026-01-02T03:04:0{number}+00:00"}
    fields |= {"libraries": {"lib": f"cuBLAS {cublas}, /lib"}, "arms": tuple(ARMS), "git": {"commit": "abc"}}
    fields |= {"finished": "2026-01-02T04:00:00+00:00", "seconds": 60.0}
    run.write_manifest(manifest(rows, **(fields | changes)))
    facts = [
        arms[n] if n in (arms or {}) else arm(n, kind, bits="b", bits_after="b") for n, kind in ARMS.items()
    ]
    for row in rows:
        run.write_row(row_facts(facts, row), samples(times, noise=0.0002, seed=number))
    if again:
        run.write_row(row_facts(facts, rows[0]), samples(again), again=True)
    run.write_json("host.json", {"times": [{"row": ROW.key, "arm": "cake", "us": 5.0 + number}]})
    return run.path


def times(cake, lib, **more):
    return {"cake": cake, "control": cake, "cake_det": cake * 1.1, "lib": lib} | more


def merged(*paths, out):
    run = merge(paths, out, "cake-bench merge")
    cells = write_cells(run)
    return {(c.arm, c.over): c for c in cells.cells if c.op == "bwd"}, run, cells


def test_cells_are_medians_over_gpus(tmp_path):
    runs = [make(tmp_path, i, times(us, 2 * us)) for i, us in enumerate((10.0, 11.0, 20.0), 1)]
    cells, run, _ = merged(*runs, out=tmp_path / "m")
    cake, sota = cells["cake", "cake"], cells["sota", "cake"]
    assert cake.us == pytest.approx(11, rel=1e-3) and cake.devices == 3
    assert sota.ratio == pytest.approx(2, rel=1e-3) and sota.ratio_lo <= 2 <= sota.ratio_hi
    assert sota.ratio == pytest.approx(sota.us / cake.us) and sota.verdict == "faster"
    assert cake.host_us == 7.0  # the median of 6, 7 and 8
    m = run.manifest()
    assert m.rows == (ROW.key,) and len(m.merged) == 3 and m.seconds == 180.0 and m.finished
    assert m.merged[0].startswith("run 1: run-1, here, GPU-1, cuBLAS 13.1.0.3, one process, 1 of 1 rows")
    assert run.row(ROW.key).units == (0,) * 10 + (1,) * 10 + (2,) * 10


def test_gpus_that_disagree_widen_the_interval(tmp_path):
    runs = [make(tmp_path, i, times(10.0, lib)) for i, lib in enumerate((9.8, 10.0, 10.2), 1)]
    cells, *_ = merged(*runs, out=tmp_path / "m")
    sota = cells["sota", "cake"]
    assert sota.ratio_lo < 0.985 and sota.ratio_hi > 1.015 and sota.verdict == "unclear"


def test_a_library_cell_is_of_its_faster_cublas_version(tmp_path):
    a = make(tmp_path, 1, times(10.0, 30.0), cublas="13.1.0.3")
    b = make(tmp_path, 2, times(12.0, 25.0), cublas="13.6.0.1")
    cells, run, _ = merged(a, b, out=tmp_path / "m")
    lib, cake = cells["lib", "cake"], cells["cake", "cake"]
    assert lib.us == pytest.approx(25, rel=1e-3) and lib.devices == 1 and lib.cublas == "13.6.0.1"
    assert cake.us == pytest.approx(11, rel=1e-3) and cake.cublas == "13.1.0.3, 13.6.0.1"
    # Of the cells shown; the interval is of the GPU that ran both, and holds the ratio shown.
    assert lib.ratio == pytest.approx(25 / 11, rel=1e-3) and lib.ratio_lo == pytest.approx(25 / 12, rel=1e-2)
    assert any("`lib` is faster with cuBLAS 13.6.0.1" in note for note in run.manifest().notes)
    assert run.manifest().libraries["lib"] == "cuBLAS 13.1.0.3, /lib / cuBLAS 13.6.0.1, /lib"


def test_two_processes_of_one_gpu_are_units_too(tmp_path):
    runs = [make(tmp_path, i, times(us, 20.0), gpu="GPU-7") for i, us in enumerate((10.0, 10.4), 1)]
    cells, run, _ = merged(*runs, out=tmp_path / "m")
    assert cells["cake", "cake"].us == pytest.approx(10.2, rel=1e-3)
    assert cells["cake", "cake"].devices == 1 and set(run.row(ROW.key).units) == {0, 1}


def test_a_cake_arm_that_fails_on_one_gpu_has_failed(tmp_path):
    bad = arm("cake", "cake", "inaccurate", reason="4e-6 is over the budget")
    a, b = make(tmp_path, 1, times(10.0, 20.0)), make(tmp_path, 2, times(10.0, 20.0), arms={"cake": bad})
    cells, *_ = merged(a, b, out=tmp_path / "m")
    assert cells["cake", "cake"].status == "inaccurate" and cells["cake", "cake"].us is None
    assert cells["cake", "cake"].reason == "run 2: 4e-6 is over the budget"


def test_a_library_that_fails_on_one_gpu_goes_on_with_the_others(tmp_path):
    bad = arm("lib", "library", "error", reason="refused")
    a, b = make(tmp_path, 1, times(10.0, 20.0), arms={"lib": bad}), make(tmp_path, 2, times(10.0, 21.0))
    cells, run, _ = merged(a, b, out=tmp_path / "m")
    assert cells["lib", "cake"].us == pytest.approx(21, rel=1e-3)
    assert f"`lib` is error in run 1: refused ({ROW.key})" in run.manifest().notes


def test_deterministic_bits_that_differ_between_gpus_are_not_equal(tmp_path):
    def run(number, name, bits):
        changed = {name: arm(name, "cake", bits=bits, bits_after=bits)}
        return make(tmp_path, number, times(10.0, 20.0), arms=changed)

    cells, *_ = merged(run(1, "cake_det", "x"), run(2, "cake_det", "y"), out=tmp_path / "m")
    assert cells["cake_det", "cake"].bits_equal is False and cells["cake", "cake"].bits_equal is True
    cells, *_ = merged(run(3, "cake", "x"), run(4, "cake", "y"), out=tmp_path / "n")
    assert cells["cake", "cake"].bits_equal is True  # atomics: only before and after in one process count


def test_rows_of_one_run_alone_are_kept_and_said(tmp_path):
    a, b = make(tmp_path, 1, times(10.0, 20.0), rows=(ROW, OTHER)), make(tmp_path, 2, times(11.0, 20.0))
    _, run, cells = merged(a, b, out=tmp_path / "m")
    assert not cells.missing and {c.op for c in cells.cells} == {"bwd", "fwd"}
    assert f"measured in run 1 alone ({OTHER.key})" in run.manifest().notes


def test_re_measurements_are_merged_too(tmp_path):
    a, b = (make(tmp_path, i, times(10.0, 20.0), again=times(10.0, 20.0)) for i in (1, 2))
    run = merge([a, b], tmp_path / "m", "cake-bench merge")
    assert run.finished(again=True) == {ROW.key}
    assert len(run.row(ROW.key, again=True).blocks) == 2


@pytest.mark.parametrize("states", [("no", "yes"), ("yes", "no"), ("no", "no")])
def test_one_dirty_tree_makes_the_merged_run_dirty(tmp_path, states):
    gits = [{"commit": "abc", "dirty": state} for state in states]
    runs = [make(tmp_path, i, times(10.0, 20.0), git=git) for i, git in enumerate(gits, 1)]
    made = merge(runs, tmp_path / "m", "cake-bench merge").manifest()
    assert made.dirty is ("yes" in states) and made.git["commit"] == "abc"


def test_passes_are_merged_as_passes(tmp_path):
    runs = [make(tmp_path, i, times(10.0, 10.5), form="passes") for i in (1, 2)]
    cells, *_ = merged(*runs, out=tmp_path / "m")
    assert cells["lib", "cake"].slower_passes == 0 and cells["cake_det", "cake"].slower_passes == 0
    assert np.isclose(cells["lib", "cake"].ratio, 1.05, rtol=1e-3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"suite": "dense"}, "suite is router and dense"),
        ({"form": "passes"}, "form is groups and passes"),
        ({"git": {"commit": "def"}}, "commit is abc and def"),
        ({"device": Device(name="Other", arch="sm_90a", sms=132)}, "GPU model is"),
        ({"l2_state": "warm"}, "L2 is cold and warm"),
        ({"instances": 5}, "instances in graph mode is None and 5"),
        ({"pause_ms": 20.0}, "pause before a step in ms is 0.0 and 20.0"),
        (
            {"run": "run-1", "started": "2026-01-02T03:04:01+00:00", "gpu": "GPU-1"},
            "are the same run (run-1)",
        ),
    ],
)
def test_runs_that_do_not_belong_together_are_refused(tmp_path, changes, words):
    a, b = make(tmp_path, 1, times(10.0, 20.0)), make(tmp_path, 2, times(10.0, 20.0), **changes)
    with pytest.raises(MergeRefused) as e:
        merge([a, b], tmp_path / "m", "")
    assert words in str(e.value) and not (tmp_path / "m").exists()


def test_other_refusals(tmp_path):
    a, b = (make(tmp_path, i, times(10.0, 20.0)) for i in (1, 2))
    with pytest.raises(MergeRefused, match="one run alone cannot be merged"):
        merge([a], tmp_path / "m", "")
    m = merge([a, b], tmp_path / "m", "").path
    with pytest.raises(MergeRefused, match="is a merged one"):
        merge([a, m], tmp_path / "n", "")
    path = b / "manifest.json"
    path.write_text(path.read_text().replace(f'"schema_version":{SCHEMA}', '"schema_version":99'))
    path.write_text(path.read_text().replace(f'"schema_version": {SCHEMA}', '"schema_version": 99'))
    with pytest.raises(StoreError, match="schema version 99"):
        merge([a, b], tmp_path / "o", "")


def test_the_command_reports_and_a_merged_run_is_not_resumed(tmp_path):
    runs = [make(tmp_path, i, times(10.0, 20.0)) for i in (1, 2)]
    done = CliRunner().invoke(app, ["merge", *map(str, runs), "--out", str(tmp_path / "m")])
    assert done.exit_code == 0 and done.stdout.splitlines()[-1] == str(tmp_path / "m" / "report.md")
    text = (tmp_path / "m" / "report.md").read_text()
    assert text.startswith("# router suite, preset smoke, merged from 2 runs, on Test GPU (sm_90a)")
    assert text.count("| merged from | run ") == 2 and "by resampling GPUs" in text
    again = CliRunner().invoke(app, ["report", str(tmp_path / "m")])
    assert again.exit_code == 0 and (tmp_path / "m" / "report.md").read_text() == text
    resumed = CliRunner().invoke(app, ["run", "--resume", str(tmp_path / "m"), "--device", "cpu"])
    assert resumed.exit_code == 2 and "is a merged run" in resumed.stderr
