"""Tuning of the dense suite: its arms, what becomes a rule, and the command on a CPU."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
from bench_builders import arm, manifest, samples
from row_builders import bench
from typer.testing import CliRunner

from bench.accuracy import references
from bench.cli import app
from bench.conduct import measure_row
from bench.layers import LAYERS, DenseShape, Layer
from bench.model import Device, RowFacts
from bench.store import create_run
from bench.suites import Row
from bench.tensors import shape_of, tensors_of
from bench.timers import make_timer
from bench.tune import projection_plans, proposed, tune_arms, tuning
from cake.plan import CPU, DeviceSpec
from cake.plan.dense_rules import parse
from reports.tuning import document, gains, headline

H200 = DeviceSpec("sm_90a", 132)
DEVICE = Device(name="NVIDIA H200", arch="sm_90a", sms=132)
ROW = Row("dense", "fwd", "graph", DenseShape(LAYERS["kv_a"], 301), "bf16")


def made(tmp_path, times, row=ROW, **changes):
    """A tuner's run with these times (us) by arm; 20 us for the arms that are not named."""
    m = manifest(rows=(row,), **{"arms": ("cake",), "suite": "dense", "device": DEVICE, **changes})
    names = list(projection_plans(row, H200, m.most))
    run = create_run(tmp_path / f"run-{len(list(tmp_path.iterdir()))}")
    run.write_manifest(m)
    facts = RowFacts(
        key=row.key,
        suite="dense",
        op=row.op,
        mode=row.mode,
        seed=row.seed,
        arms=tuple(arm(name, "cake", calls=()) for name in names),
        **shape_of(row),
    )
    run.write_row(facts, samples({name: times.get(name, 20.0) for name in names}))
    return tuning(run)


def other(keeps: bool) -> str:
    """A candidate of the row that keeps its partition, or one that does not."""
    plans = projection_plans(ROW, H200, 40)
    own = plans["cake"].plan.partition
    return next(
        n for n, c in plans.items() if n not in ("cake", "control") and (c.plan.partition == own) == keeps
    )


def test_arms_are_the_shipped_plan_its_control_and_the_likeliest_ways():
    rows = [ROW, Row("dense", "wgrad", "graph", DenseShape(LAYERS["mla_k"], 64), "bf16")]
    arms = {a.name: a for a in tune_arms(bench(), rows, 2)}
    assert list(arms)[:2] == ["cake", "control"] and "cake_det" not in arms
    assert [arms[name].kind for name in ("cake", "control")] == ["cake", "cake"]
    for row in rows:
        assert {n for n, a in arms.items() if a.does(row)} == set(projection_plans(row, CPU, 2))
    assert len(projection_plans(ROW, H200)) == 2 + 6 and len(projection_plans(ROW, H200, 3)) == 2 + 3


@pytest.mark.parametrize("op", ["fwd", "dgrad", "wgrad"])
def test_arms_go_through_a_row_as_all_arms_do(op):
    row = Row("dense", op, "eager", DenseShape(Layer("mine", 136, 72), 33), "bf16")
    tensors = tensors_of(row, "cpu")
    b = bench(timer=make_timer("cpu", "cpu"))
    facts, measured = measure_row(b, row, tensors, references(tensors), tune_arms(b, [row]))
    assert len(facts.arms) == 4 and [a.status for a in facts.arms] == ["ok"] * 4
    plans = projection_plans(row, CPU)
    for a in facts.arms:
        assert [c.algorithm for c in a.calls] == [str(plans[a.arm].plan)]
    assert measured["us"].notna().all()


@pytest.mark.parametrize("keeps", [True, False])
def test_what_is_faster_becomes_a_rule_that_says_whether_bits_change(tmp_path, keeps):
    name = other(keeps)
    t = made(tmp_path, {name: 18.0}, most=40)
    [row] = t.rows
    assert row.arm == name and row.route == "" and t.exit_code == 0
    entries = tomllib.loads("rules = [\n" + "\n".join(proposed(t, "sm90").splitlines()[1:]) + "\n]")["rules"]
    [entry] = entries
    rule = parse(entry)
    assert rule == parse({**entry, "why": rule.why})
    assert {n: entry[n] for n in ("op", "n", "k", "heads", "out", "T")} == {
        "op": "fwd", "n": 576, "k": 6144, "heads": 1, "out": "bf16", "T": 301,
    }  # fmt: skip
    assert {"form", "splits", "raster"} <= entry.keys()
    assert re.match(r"H200: (20\.0|19\.9)\d -> (18\.0|17\.9)\d us \[1\.1\d\d, 1\.1\d\d\]", rule.why)
    assert rule.why.endswith("; bits change") != keeps
    assert proposed(t, "sm90").startswith("# For cake/plan/rules/projection_sm90.toml, by cake-bench tune.")
    assert headline(t) == "Faster than the shipped rules: 1 of 1 rows." and len(list(gains(t))) == 1
    assert f"## {ROW.key}" in document(t)


def test_what_is_not_faster_than_cake_and_the_control_is_no_rule(tmp_path):
    name = other(True)
    for times in ({name: 18.0, "control": 18.0}, {name: 20.0, "cake": 21.0}, {}):
        [row] = made(tmp_path, times, most=40).rows
        assert row.rule == row.arm == ""


def test_labels_are_in_the_evidence(tmp_path):
    assert "], warm" in made(tmp_path, {other(True): 18.0}, most=40, flags=("warm",)).rows[0].rule


def invoke(*arguments):
    return CliRunner().invoke(app, ["tune", *map(str, arguments)], terminal_width=200)


def test_the_command_measures_and_goes_on(tmp_path):
    out = tmp_path / "tune"
    shapes = tmp_path / "shapes.toml"
    shapes.write_text('shapes = [{layer = "mine", T = 8, K = 64, N = 16}]')
    common = ("--suite", "dense", "--device", "cpu", "--preset", "smoke", "--shapes", shapes)
    result = invoke(*common, "--out", out, "--ops", "fwd,wgrad", "--most", "1")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == str(out / "tuning.md")
    for name in ("rules.toml", "tuning.json", "tuning.md", "manifest.json"):
        assert (out / name).is_file()
    assert not (out / "routes.toml").exists()
    found = json.loads((out / "tuning.json").read_text())
    assert found["suite"] == "dense" and [len(row["tried"]) for row in found["rows"]] == [2, 2]
    assert json.loads((out / "manifest.json").read_text())["form"] == "passes"
    before = {p: p.read_bytes() for p in (out / "rows").iterdir()}
    again = invoke("--resume", out, "--json")  # knows --most itself
    assert again.exit_code == 0 and len(json.loads(again.stdout)["rows"]) == 2, again.output
    assert {p: p.read_bytes() for p in (out / "rows").iterdir()} == before
    assert invoke("--resume", out, "--install").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--suite", "dense", "--install"), "--install is for routes"),
        (("--suite", "dense", "--tokens", "0"), "--tokens is '0'; needs positive integers"),
        (("--suite", "dense", "--layers", "nobody", "--device", "cpu"), "layer 'nobody' is unknown"),
        (("--ops", "bwd"), "op 'bwd' has no plan of its own; ops are fwd, dgrad, wgrad"),
        (("--layers", ","), "--layers is ',', which names none"),
        (("--layers", "q_a", "--device", "cpu"), "--layers and --tokens are for --suite dense"),
    ],
)
def test_what_cannot_be_is_refused(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 2 and words in result.stderr and "Traceback" not in result.output
