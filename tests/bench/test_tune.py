"""Tuning: which plans are arms, what becomes a route or a rule, and the command on a CPU."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace

import pytest
from bench_builders import arm, manifest, row_facts, samples
from row_builders import bench
from typer.testing import CliRunner

import cake
from bench.accuracy import references
from bench.cli import app
from bench.conduct import measure_row
from bench.model import Device
from bench.previous import without_routes
from bench.store import create_run
from bench.suites import Row, Shape
from bench.tensors import router_tensors
from bench.timers import make_timer
from bench.tune import found_routes, proposed, routes_with, row_plans, tune_arms, tuning
from cake.launch import routes as installed
from cake.plan import CPU, DeviceSpec, Routes, plan
from cake.plan.routes import Target, key_of, text
from cake.plan.rules import find, parse, shipped

H200 = DeviceSpec("sm_90a", 132)
TARGET = Target("Test GPU", H200, "abc")
ROW = Row("router", "fwd", "graph", Shape(64, 4096, 256))
WGRAD = Row("router", "wgrad", "graph", Shape(256, 4096, 256))
CPU_ROW = Row("router", "fwd", "graph", Shape(64, 4096, 256))


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch, tmp_path):
    monkeypatch.setattr(installed, "_tables", {})
    monkeypatch.setenv("CAKE_CACHE_DIR", str(tmp_path / "cache"))


def made(tmp_path, times, row=ROW, statuses=None, noise=0.001, **changes):
    """A tuner's run with these times (us) by arm; 20 us for the arms that are not named."""
    fields = {"arms": ("cake",), **changes}
    m = manifest(rows=(row,), **fields)
    spec = CPU if m.device.arch == "cpu" else H200
    names = list(row_plans(row, spec))
    us = {name: times.get(name, 20.0) for name in names}
    run = create_run(tmp_path / f"run-{len(list(tmp_path.iterdir()))}")
    run.write_manifest(m)
    status = {name: (statuses or {}).get(name, "ok") for name in names}
    facts = [
        arm(name, "cake", status[name], calls=(), reason="" if status[name] == "ok" else "why")
        for name in names
    ]
    timed = {name: t for name, t in us.items() if status[name] == "ok"}
    run.write_row(row_facts(facts, row), samples(timed, noise=noise))
    return tuning(run)


def test_arms_are_the_plans_of_their_rows():
    arms = {a.name: a for a in tune_arms(bench(), [CPU_ROW, replace(CPU_ROW, op="wgrad")])}
    assert list(arms)[:3] == ["cake", "control", "cake_det"]
    assert {name: a.kind for name, a in arms.items() if a.kind == "cake"} == dict.fromkeys(
        ["cake", "control"], "cake"
    )
    # fwd at T = 64 uses atomics, wgrad does not: only there is a deterministic call another plan.
    assert arms["cake_det"].does(CPU_ROW) and not arms["cake_det"].does(replace(CPU_ROW, op="wgrad"))
    for row in (CPU_ROW, replace(CPU_ROW, op="wgrad")):
        assert {n for n, a in arms.items() if a.does(row)} == set(row_plans(row, CPU))


@pytest.mark.parametrize("op", ["fwd", "dgrad", "wgrad"])
def test_arms_go_through_a_row_as_all_arms_do(op):
    row = Row("router", op, "eager", Shape(130, 1024, 64))
    tensors = router_tensors(row, "cpu")
    b = bench(timer=make_timer("cpu", "cpu"))
    facts, measured = measure_row(b, row, tensors, references(tensors), tune_arms(b, [row]))
    assert len(facts.arms) >= 3 and [a.status for a in facts.arms] == ["ok"] * len(facts.arms)
    plans = row_plans(row, CPU)
    for a in facts.arms:
        assert [c.algorithm for c in a.calls] == [str(plans[a.arm].plan)]
    assert measured["us"].notna().all()


def test_the_base_is_the_shipped_rule_whatever_routes_there_are():
    cake.set_routes([{"op": "fwd", "tile": "128x64", "hold": 4, "raster": 77, "why": "a test"}], device="cpu")
    row = Row("router", "fwd", "eager", Shape(130, 1024, 64))
    [base] = [a for a in tune_arms(bench(), [row]) if a.name == "cake"]
    assert base.bind(row, router_tensors(row, "cpu")).program == "router_sm80_64x64_kk_f32_f32"


FASTER = "64x64 hold 1 raster 1"
OTHER = "64x40 hold 1 raster 1 splits 8"


def test_the_fastest_of_what_is_faster_becomes_a_route_with_its_evidence(tmp_path):
    t = made(
        tmp_path,
        {FASTER: 18.0, OTHER: 19.0},
        device=Device(name="Test GPU", arch="sm_90a", sms=132, driver="1.2"),
    )
    [row] = t.rows
    assert row.arm == FASTER and [x.name for x in row.tried[:2]] == [FASTER, OTHER]
    assert [x.verdict for x in row.tried[:2]] == ["faster", "faster"] and row.tried[2].verdict == "same"
    entry = tomllib.loads(f"r = {row.route}")["r"]
    why = entry.pop("why")
    assert entry == {
        "op": "fwd", "n": 256, "k": 4096, "out": "f32", "emulation": "bf16x3", "T": 64, "tile": "64x64",
        "hold": 1, "raster": 1,
    }  # fmt: skip
    assert why.startswith("20.00 -> 18.0") and "us, 1.11" in why and "[1.1" in why
    assert why.endswith("Test GPU, driver 1.2, 2026-01-02") and t.exit_code == 0
    # On that GPU the next call plans what was measured.
    p = row_plans(ROW, H200)["cake"].plan.problem
    table = Routes("sm90", found_routes(t, TARGET))
    assert plan(p, "sm90", deterministic=False, routes=table) == row_plans(ROW, H200)[FASTER].plan


def test_a_route_may_cut_k_otherwise_a_rule_may_not(tmp_path):
    [row] = made(tmp_path, {FASTER: 19.0, OTHER: 18.0}).rows
    assert row.arm == OTHER and "splits = 8" in row.route
    assert 'tile = "64x64"' in row.rule and "splits" not in row.rule
    [row] = made(tmp_path, {OTHER: 18.0}).rows
    assert row.route and row.rule == ""


def test_a_proposed_rule_can_be_pasted(tmp_path):
    t = made(tmp_path, {FASTER: 18.0})
    said = proposed(t, "sm90").splitlines()
    assert said[0].startswith("# For cake/plan/rules/sm90.toml")
    entries = tomllib.loads("rules = [\n" + "\n".join(said[1:]) + "\n]")["rules"]
    table = (*shipped("sm90"), *(parse(e, "sm90") for e in entries))
    assert find(table, "fwd", 64, 256, 4096, "f32").tile == (64, 64)
    assert find(table, "fwd", 65, 256, 4096, "f32") == find(shipped("sm90"), "fwd", 65, 256, 4096, "f32")


def test_on_atomics_a_rule_is_judged_against_the_deterministic_call(tmp_path):
    """It may be slower than atomics and still better than what a deterministic call does now."""
    on_cpu = {"device": Device(name="CPU", arch="cpu", sms=2)}
    plans = row_plans(CPU_ROW, CPU)
    twin = next(name for name, c in plans.items() if c.deterministic and name != "cake_det")
    [row] = made(tmp_path, {"cake_det": 25.0, twin: 23.0}, CPU_ROW, **on_cpu).rows
    assert row.route == "" and f'tile = "{twin.split()[0]}"' in row.rule and "25.0" in row.rule
    # Faster than atomics too: but a call that may use them would use them.
    [row] = made(tmp_path, {"cake_det": 25.0, twin: 15.0}, CPU_ROW, **on_cpu).rows
    assert row.route == "" and row.rule


def test_what_is_not_faster_than_the_control_is_no_route(tmp_path):
    assert made(tmp_path, {FASTER: 18.0, "control": 18.0}).rows[0].route == ""
    assert made(tmp_path, {FASTER: 20.0, "cake": 21.0}).rows[0].route == ""


def test_nothing_faster_is_no_route(tmp_path):
    t = made(tmp_path, {})
    assert t.rows[0].route == t.rows[0].rule == t.rows[0].arm == "" and found_routes(t, TARGET) == ()


@pytest.mark.parametrize(("status", "code"), [("inaccurate", 1), ("error", 2), ("unsupported", 2)])
def test_a_plan_that_fails_has_no_time_and_decides_the_exit_code(tmp_path, status, code):
    t = made(tmp_path, {FASTER: 18.0}, statuses={FASTER: status})
    assert t.rows[0].route == "" and t.exit_code == code
    assert t.of(status) == (f"{ROW.key} {FASTER}: {status}: why",)
    assert t.rows[0].tried[-1].us is None


def test_labels_of_the_run_are_in_the_evidence(tmp_path):
    assert ", warm, 2026-01-02" in made(tmp_path, {FASTER: 18.0}, flags=("warm",)).rows[0].route


def test_a_row_that_is_missing_is_not_measured(tmp_path):
    run = create_run(tmp_path / "run")
    run.write_manifest(manifest(rows=(ROW,)))
    t = tuning(run)
    assert t.missing == (ROW.key,) and t.exit_code == 2


def test_installing_replaces_what_was_tuned_and_keeps_the_rest(tmp_path):
    faster, other = made(tmp_path, {FASTER: 18.0}), made(tmp_path, {"64x64 hold 1 raster 2": 18.0}, WGRAD)
    first = routes_with((), faster, TARGET)
    both = routes_with(first, other, TARGET)
    assert [r.op for r in both] == ["fwd", "wgrad"]
    assert routes_with(both, made(tmp_path, {}), TARGET) == both[1:]
    # A row that could not be measured says nothing.
    failed = made(tmp_path, {}, statuses={"cake": "error"})
    assert routes_with(both, failed, TARGET) == both


def invoke(*arguments):
    return CliRunner().invoke(app, ["tune", *map(str, arguments)], terminal_width=200)


@pytest.fixture
def shapes(tmp_path):
    path = tmp_path / "shapes.toml"
    path.write_text("shapes = [{T = 8, H = 64, N = 16}]")
    return path


def test_the_command_measures_and_goes_on(tmp_path, shapes):
    out = tmp_path / "tune"
    common = ("--device", "cpu", "--preset", "smoke", "--shapes", shapes)
    result = invoke(*common, "--out", out, "--rules", "--rows", "*-fwd-*,*-wgrad-*")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == str(out / "tuning.md")
    for name in ("routes.toml", "rules.toml", "tuning.json", "tuning.md", "cells.json"):
        assert (out / name).is_file()
    keys = [row["row"] for row in json.loads((out / "tuning.json").read_text())["rows"]]
    assert keys == ["router-fwd-eager-T8-H64-N16", "router-wgrad-eager-T8-H64-N16"]
    cake.set_routes(out / "routes.toml", device="cpu")
    before = {p: p.read_bytes() for p in (out / "rows").iterdir()}
    again = invoke("--resume", out, "--json")
    found = json.loads(again.stdout)
    assert again.exit_code == found["exit_code"] == 0, again.output
    assert found["files"]["report"] == str(out / "tuning.md") and [r["row"] for r in found["rows"]] == keys
    assert {p: p.read_bytes() for p in (out / "rows").iterdir()} == before


def test_what_is_installed_is_what_the_next_process_finds(tmp_path, shapes, monkeypatch):
    from bench import tune

    out = tmp_path / "tune"
    target = installed.target_of("cpu")
    path = installed.path_of(target)
    row = Row("router", "fwd", "eager", Shape(8, 64, 16))
    rule = row_plans(row, CPU)["cake"].rule
    with monkeypatch.context() as patch:
        patch.setattr(tune, "found_routes", lambda t, target: (replace(rule, why="made up"),))
        result = invoke("--device", "cpu", "--preset", "smoke", "--shapes", shapes, "--out", out, "--install")
    assert result.exit_code == 0 and f"installed: {path}" in result.stdout
    monkeypatch.setattr(installed, "_tables", {})  # as a new process has them
    assert [r.why for r in cake.routes("cpu").rules] == ["made up"] and cake.routes("cpu").source == str(path)
    # Nothing is faster any more: no file that could grow stale.
    with monkeypatch.context() as patch:
        patch.setattr(tune, "found_routes", lambda t, target: ())
        assert invoke("--resume", out, "--install").exit_code == 0
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--timer", "host"), "timer host measures no plan"),
        (("--out", "a", "--resume", "b"), "--out and --resume exclude each other"),
        (("--resume", "none"), "none is no run directory"),
        (("--rows", "nothing", "--preset", "smoke", "--device", "cpu", "--out", "x"), "is called nothing"),
    ],
)
def test_what_cannot_be_is_refused(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 2 and words in result.stderr and "Traceback" not in result.output


def test_an_ordinary_run_says_that_there_are_routes_and_a_comparison_sets_them_aside(tmp_path, shapes):
    target = installed.target_of("cpu")
    path = installed.path_of(target)
    path.parent.mkdir(parents=True)
    path.write_text(text((row_plans(CPU_ROW, CPU)["cake"].rule,), target))
    common = ["run", "--device", "cpu", "--preset", "smoke", "--shapes", str(shapes), "--ops", "fwd"]
    result = CliRunner().invoke(app, [*common, "--out", str(tmp_path / "a")], terminal_width=200)
    assert f"deterministic=False follows 1 route of this device, from {path}" in result.stderr.replace(
        "\n", ""
    )
    result = CliRunner().invoke(
        app, [*common, "--control-run", "--out", str(tmp_path / "b")], terminal_width=200
    )
    assert "follows" not in result.stderr and cake.routes("cpu").rules == ()


def test_versions_without_routes_are_left_alone():
    without_routes("cpu", json)


def test_the_key_of_a_row_is_that_of_its_routes():
    assert key_of(row_plans(ROW, H200)["cake"].rule) == ("fwd", 256, 4096, "f32", "bf16x3", 64, 64)
