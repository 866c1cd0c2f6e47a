"""The GitHub workflows: they parse, and the commands they run exist."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer
import yaml

from bench.cli import app

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def load(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def commands(workflow):
    """Every line of every ``run``, continued lines joined."""
    scripts = [step["run"] for step in steps(workflow) if "run" in step]
    return [line.strip() for s in scripts for line in s.replace("\\\n", " ").splitlines() if line.strip()]


def cli():
    return typer.main.get_command(app)


def test_there_are_two():
    assert [p.name for p in WORKFLOWS] == ["ci.yml", "gate.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_its_shape(path):
    workflow = yaml.safe_load(path.read_text())
    # YAML 1.1 reads the key `on` as true.
    assert (
        workflow["name"] == path.stem and workflow[True] and workflow["permissions"] == {"contents": "read"}
    )
    for job in workflow["jobs"].values():
        assert job["runs-on"] and job["timeout-minutes"]
        needs = job.get("needs", [])
        assert set([needs] if isinstance(needs, str) else needs) <= set(workflow["jobs"])
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/x@v1"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_its_commands_exist(path):
    seen = 0
    for line in commands(yaml.safe_load(path.read_text())):
        words = shlex.split(line)
        if words[0] == "make":
            targets = [w for w in words[1:] if "=" not in w]
            done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
            assert targets and done.returncode == 0, done.stderr
            seen += 1
        elif words[0].endswith("cake-bench"):
            command = cli().commands[words[1]]
            known = {name for p in command.params for name in p.opts}
            assert {w for w in words[2:] if w.startswith("--")} <= known
            seen += 1
    assert seen


def test_the_gate_posts_and_keeps_what_is_red_too():
    jobs = load("gate.yml")["jobs"]
    assert jobs["gate"]["runs-on"] == ["self-hosted", "gpu"]
    [upload] = [s for s in jobs["gate"]["steps"] if s.get("uses", "").startswith("actions/upload-artifact")]
    [gate] = [s for s in jobs["gate"]["steps"] if "cake-bench gate" in s.get("run", "")]
    assert upload["if"] == "always()" and f"--out {upload['with']['path']} " in gate["run"]
    assert "git merge-base" in gate["run"]
    comment = jobs["comment"]
    assert comment["needs"] == "gate" and comment["if"].startswith("always()")
    assert comment["permissions"] == {"pull-requests": "write"}
    [script] = [s["with"]["script"] for s in comment["steps"] if "script" in s.get("with", {})]
    from reports.gate import TEXT

    assert f"run/{TEXT}" in script


def test_make_gate_needs_a_base():
    done = subprocess.run(["make", "-n", "gate", "BASE=main"], cwd=ROOT, capture_output=True, text=True)
    assert 'cake-bench gate --previous "main" --suite router' in done.stdout
