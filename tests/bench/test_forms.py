"""Order-balanced passes and the warm view, from the options of a run to its cells and its resumption."""

from __future__ import annotations

import json

import pytest
import torch
from bench_builders import ROW
from typer.testing import CliRunner

from bench.accuracy import references
from bench.arms import Arm
from bench.cli import app
from bench.conduct import measure_row
from bench.model import TimerFacts
from bench.presets import in_passes, preset_for
from bench.store import open_run
from bench.tensors import router_tensors
from bench.timers import StepTime
from bench.work import Bench

SMOKE = ("--preset", "smoke", "--device", "cpu", "--ops", "fwd")


class Counting:
    """A timer whose steps take 1, 2, 3, ... us; it keeps the untimed and timed steps asked for."""

    name = "events"

    def __init__(self):
        self.count, self.asked = 0, []

    def visit(self, launch, *, cold, untimed, steps, expected=None):
        launch()
        self.asked.append((untimed, steps))
        self.count += steps
        return [StepTime(float(self.count - steps + i + 1), "", ()) for i in range(steps)]

    def facts(self):
        return TimerFacts(name="events")


class NoClocks:
    def read(self, group):
        return None


def right(row, t):
    def run():
        for kind in row.gemms:
            gemm = t.gemm(kind)
            torch.mm(gemm.a, gemm.b, out=gemm.out)

    return run


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def shapes(tmp_path):
    path = tmp_path / "shapes.toml"
    path.write_text("shapes = [{T = 8, H = 64, N = 16}]")
    return path


def test_a_pass_visits_every_arm_there_and_back():
    preset = in_passes(preset_for("full", "cuda"), 3)
    assert (preset.form, preset.groups, preset.steps) == ("passes", 3, 5)
    timer, t = Counting(), router_tensors(ROW, "cpu")
    bench = Bench(
        device=torch.device("cpu"),
        capability=(9, 0),
        timer=timer,
        cold=lambda: None,
        clocks=NoClocks(),
        slowed=lambda r: False,
        capped=lambda r: False,
        preset=preset,
    )
    names = ("cake", "lib", "mine")
    facts, samples = measure_row(bench, ROW, t, references(t), [Arm(n, right, "user") for n in names])
    assert set(timer.asked[len(names) :]) == {(2, 5)}  # after one look at each arm's kernels
    assert {arm: sum(counts) for arm, counts in facts.positions.items()} == dict.fromkeys(names, 6)
    for (arm, number), part in samples.groupby(["arm", "group"]):
        assert list(part["step"]) == list(range(10)), (arm, number)
        assert sorted(set(part["position"]))[0] + sorted(set(part["position"]))[1] == 5
    # A steady drift (each step 1 us longer than the last) moves all arms of a pass alike.
    means = samples.groupby(["group", "arm"])["us"].mean().unstack()
    assert (means.sub(means["cake"], axis=0) == 0).all().all()


def test_too_few_passes():
    with pytest.raises(ValueError, match="passes is 2; needs 3 or more"):
        in_passes(preset_for("full", "cuda"), 2)
    assert in_passes(preset_for("full", "cuda")).groups == 16
    assert in_passes(preset_for("smoke", "cpu")).steps == 2


def test_a_run_in_passes_has_slower_passes_and_goes_on_as_one(tmp_path, shapes):
    out = tmp_path / "run"
    made = invoke("run", *SMOKE, "--shapes", shapes, "--passes", 4, "--out", out)
    assert made.exit_code == 0, made.output
    run = open_run(out)
    assert (run.manifest().form, run.manifest().groups, run.manifest().l2_state) == ("passes", 4, "cold")
    [sota, *_] = [c for c in run.cells().cells if (c.arm, c.over) == ("sota", "cake")]
    assert 0 <= sota.slower_passes <= 4
    assert "Order-balanced passes" in (out / "report.md").read_text()
    assert set(run.samples(run.manifest().rows[0])["group"]) == {0, 1, 2, 3}
    again = invoke("run", "--resume", out)
    assert again.exit_code == 0, again.output
    refused = invoke("run", "--resume", out, "--form", "groups")
    assert refused.exit_code == 2 and "form" in refused.stderr


def test_a_warm_run_flushes_nothing_and_says_so(tmp_path, shapes, monkeypatch):
    flushed = []
    monkeypatch.setattr("bench.l2.L2.flush", lambda self: flushed.append(1))
    monkeypatch.setattr("bench.l2.L2.prove", lambda self, timer: flushed.append(2))
    out = tmp_path / "run"
    made = invoke("run", *SMOKE, "--shapes", shapes, "--warm-l2", "--out", out)
    assert made.exit_code == 0 and not flushed, made.output
    assert "warm L2: cake against the best library call" in made.stdout
    run = open_run(out)
    assert run.manifest().l2_state == "warm" and "warm" in run.manifest().flags
    assert all("warm" in c.flags for c in run.cells().cells)
    assert invoke("run", "--resume", out).exit_code == 0 and not flushed
    cold = tmp_path / "cold"
    invoke("run", *SMOKE, "--shapes", shapes, "--out", cold)
    assert flushed
    refused = invoke("run", "--resume", cold, "--warm-l2")
    assert refused.exit_code == 2 and "L2" in refused.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--form", "circles"), "form is 'circles'; needs groups or passes"),
        (("--form", "groups", "--passes", "4"), "--passes 4 is for --form passes"),
        (("--passes", "1"), "passes is 1; needs 3 or more"),
    ],
)
def test_forms_that_cannot_be(tmp_path, options, words):
    done = invoke("run", *SMOKE, *options, "--out", tmp_path / "run")
    assert done.exit_code == 2 and words in done.stderr and not (tmp_path / "run").exists()


def test_the_json_of_a_run_is_as_ever(tmp_path, shapes):
    made = invoke("run", *SMOKE, "--shapes", shapes, "--form", "passes", "--out", tmp_path / "r", "--json")
    assert json.loads(made.stdout)["exit_code"] == 0
