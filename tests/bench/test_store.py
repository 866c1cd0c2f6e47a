from __future__ import annotations

import json
import os

import numpy as np
import pytest
from bench_builders import ROW, arm, manifest, row_facts, samples

from bench.model import SCHEMA, Cells, Picks
from bench.store import (
    StoreError,
    atomic_write,
    create_run,
    finished_rows,
    open_run,
    rows_again,
    sample_arrays,
)


@pytest.fixture
def run(tmp_path):
    run = create_run(tmp_path / "run")
    run.write_manifest(manifest())
    return run


def test_a_row_comes_back_as_written(run):
    facts, lines = row_facts([arm("cake", "cake")]), samples({"cake": 10.0, "lib_a": None})
    run.write_row(facts, lines)
    assert run.finished() == {ROW.key}
    [(read, arrays)] = finished_rows(open_run(run.path), [ROW.key, "router-fwd-eager-T1-H2-N3"])
    assert read == facts
    assert arrays["cake"].shape == (10, 4) and np.isnan(arrays["lib_a"]).all()
    np.testing.assert_array_equal(arrays["cake"].ravel(), lines[lines.arm == "cake"].us.to_numpy(float))


def test_same_samples_same_bytes(run):
    path = run.rows_path / f"{ROW.key}.parquet"
    contents = []
    for _ in range(2):
        run.write_row(row_facts([arm("cake", "cake")]), samples({"cake": 10.0}))
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]


def test_an_infinite_error_survives(run):
    bad = arm("cake", "cake")
    bad = bad.model_copy(
        update={"accuracy_before": bad.accuracy_before.model_copy(update={"rel_fro": float("inf")})}
    )
    run.write_row(row_facts([bad]), samples({"cake": 1.0}))
    assert run.row(ROW.key).arms[0].accuracy_before.rel_fro == float("inf")
    json.loads((run.rows_path / f"{ROW.key}.json").read_text(), parse_constant=pytest.fail)


def test_a_row_without_its_facts_is_not_finished(run):
    run.write_row(row_facts([arm("cake", "cake")]), samples({"cake": 1.0}))
    (run.rows_path / f"{ROW.key}.json").unlink()
    assert run.finished() == set()


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "file"
    atomic_write(path, b"old")

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        atomic_write(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_arm_without_all_groups():
    lines = samples({"cake": 1.0, "lib_a": 2.0})
    arrays = sample_arrays(lines[(lines.arm == "cake") | (lines.group < 3)])
    assert arrays["lib_a"].shape == arrays["cake"].shape
    assert np.isfinite(arrays["lib_a"][:3]).all() and np.isnan(arrays["lib_a"][3:]).all()
    assert sample_arrays(lines.iloc[:0]) == {}


def test_other_schema_version(run):
    path = run.path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 99}))
    with pytest.raises(StoreError) as e:
        open_run(run.path)
    assert str(e.value) == (
        f"{path} has schema version 99, this program reads version {SCHEMA}; measure again, or use "
        "the version of cake-bench that wrote it (see `git` in its manifest)"
    )


def test_damaged_manifest(run):
    path = run.path / "manifest.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"rows": 3}))
    with pytest.raises(StoreError, match=r"manifest.json is damaged: rows: .*; measure again, or put back"):
        open_run(run.path)
    path.write_text("{")
    with pytest.raises(StoreError, match=r"cannot read .*manifest\.json"):
        open_run(run.path)


def test_damaged_samples(run):
    run.write_row(row_facts([arm("cake", "cake")]), samples({"cake": 1.0}))
    (run.rows_path / f"{ROW.key}.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(
        StoreError, match=f"cannot read samples .*; delete {ROW.key.replace('+', '.')}.json beside it"
    ):
        run.samples(ROW.key)


def test_no_run_here(tmp_path):
    with pytest.raises(StoreError, match=r"is no run directory: it has no manifest\.json"):
        open_run(tmp_path)


def test_a_re_measurement_stands_beside_its_row(run):
    once, again = samples({"cake": 10.0}), samples({"cake": 11.0})
    run.write_row(row_facts([arm("cake", "cake")]), once)
    assert run.finished(again=True) == set() and rows_again(run) == {}
    before = (run.rows_path / f"{ROW.key}.parquet").read_bytes()
    run.write_row(row_facts([arm("cake", "cake")]), again, again=True)
    assert run.finished() == run.finished(again=True) == {ROW.key}
    assert (run.rows_path / f"{ROW.key}.parquet").read_bytes() == before
    [(facts, arrays)] = rows_again(run).values()
    assert facts.key == ROW.key
    np.testing.assert_array_equal(arrays["cake"].ravel(), again.us.to_numpy(float))


def test_a_re_measurement_that_is_made_anew_is_unfinished_meanwhile(run, monkeypatch):
    run.write_row(row_facts([arm("cake", "cake")]), samples({"cake": 10.0}), again=True)
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        run.write_row(row_facts([arm("cake", "cake")]), samples({"cake": 11.0}), again=True)
    assert run.finished(again=True) == set()


def test_picks_that_are_damaged_say_what_to_do(run):
    assert run.read_picks() == Picks()
    run.write_json("picks.json", {"searches": [{"kind": "fwd"}]})
    with pytest.raises(StoreError) as e:
        run.read_picks()
    assert str(e.value) == (
        f"{run.path / 'picks.json'} is damaged: searches.0.T: Field required; delete it to have it made "
        f"again with `cake-bench run --resume {run.path}`"
    )


def test_what_went_wrong_first_is_what_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "replace", lambda a, b: (_ for _ in ()).throw(OSError(28, "No space left")))
    monkeypatch.setattr(type(tmp_path), "unlink", lambda *a, **k: (_ for _ in ()).throw(OSError(30, "no")))
    with pytest.raises(OSError, match="No space left"):
        atomic_write(tmp_path / "file", b"new")


def test_a_directory_that_holds_a_run_is_not_taken(run):
    with pytest.raises(StoreError, match="already holds a run; give another --out, or --resume"):
        create_run(run.path)


@pytest.mark.parametrize("name", ["file/run", "file"])
def test_unwritable_directory(tmp_path, name):
    # A file in the way stops root too, which a mode of 0500 does not.
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StoreError, match=r"cannot write to .*; give a directory that can be written with --out DIR"
    ):
        create_run(tmp_path / name)


def test_cells_and_further_json(run):
    with pytest.raises(StoreError, match=r"cells.json does not exist; `cake-bench run --resume"):
        run.cells()
    run.write_cells(Cells(cells=()))
    assert run.cells() == Cells(cells=())
    assert run.read_json("host.json") is None
    run.write_json("host.json", {"a": 1})
    assert run.read_json("host.json") == {"a": 1}
    (run.path / "host.json").write_text("{")
    with pytest.raises(StoreError, match="delete it to have it made again with `cake-bench run --resume"):
        run.read_json("host.json")
