from __future__ import annotations

import json

import pytest
from bench_versions import OTHER_PARTITION, OTHER_TILE, git, repository
from typer.testing import CliRunner

import cake
from bench import counts
from bench.cli import app
from bench.listing import ARCHITECTURES, Planned, changes, lines, list_version, remade, suite_rows
from bench.previous import load_copy, load_previous
from bench.suites import Shape


@pytest.fixture(scope="module")
def now():
    return list_version()


@pytest.fixture(scope="module")
def repo(tmp_path_factory):
    return repository(tmp_path_factory.mktemp("repo"), OTHER_TILE)


def test_every_architecture_and_row_is_planned(now):
    assert list(now.programs) == ["sm_80", "sm_90a", "sm_100a", "sm_103a", "sm_107a"]
    assert len(suite_rows()) == 54 and len(now.plans) == 5 * 54
    assert all(f.program and f.partition and f.digest for f in now.plans.values())
    assert all(now.programs.values()) and all(now.rules.values())
    assert all(now.used(arch) for arch in now.programs)


def test_the_same_version_plans_the_same(now):
    copy = list_version(load_copy().module)
    assert changes(copy, now) == [] and remade(copy, now) == []
    assert lines(now, copy)[-1] == "all 270 rows plan the same programs"
    assert " -> " not in "".join(lines(now, copy))


def test_a_plan_that_changed_is_named_and_the_rest_counted(now, repo):
    before = list_version(load_previous("main", repo).module)
    found = changes(before, now)
    assert {c.row.kind for c in found} == {"dgrad"} and {c.row.shape.T for c in found} <= {64, 256}
    assert all("program" in c.what and "partition" not in c.what for c in found)
    said = lines(now, before)
    n = sum(len(c.archs) for c in found)
    assert 0 < n <= 60
    assert said[-1] == (
        f"{n} of 270 rows change (program in {n}, plan in {n}); "
        f"all other {270 - n} rows plan the same programs"
    )
    line = next(s for s in said if "dgrad T=64 H=4096 N=256 deterministic:" in s)
    assert "program, plan: router_sm80_128x64" in line and " -> router_" in line


def test_a_partition_that_changed(now, tmp_path):
    before = list_version(load_previous("main", repository(tmp_path / "r", OTHER_PARTITION)).module)
    found = changes(before, now)
    assert {c.row.kind for c in found} == {"fwd"}
    assert all({"partition", "plan"} <= {*c.what} for c in found)


def test_a_program_made_differently_under_its_name(now, tmp_path):
    edit = ("program/registry.py", "SM80_STAGES = 3", "SM80_STAGES = 2")
    before = list_version(load_previous("main", repository(tmp_path / "r", edit)).module)
    assert changes(before, now) == []
    assert remade(before, now)
    assert any(s.startswith("made differently under the same name: router_sm80_") for s in lines(now, before))


def test_fewer_rules_and_programs_before(now, tmp_path):
    edits = [
        ("plan/tiles.py", '("sm80", "bf16x3"): ((64, 64), (128, 64))', '("sm80", "bf16x3"): ((64, 64),)')
    ]
    before = list_version(load_previous("main", repository(tmp_path / "r", *edits)).module)
    first = next(s for s in lines(now, before) if s.startswith("sm_80:"))
    both = f"{now.programs['sm_80'] - 12} -> {now.programs['sm_80']}"  # half of a router's are gone
    assert first.startswith(f"sm_80: programs {both}, rules {now.rules['sm_80']},")


def test_a_version_that_cannot_be_asked_is_no_crash(now, tmp_path):
    edits = [
        (
            "plan/planner.py",
            "def plan(\n    problem: Problem,\n    family: str,",
            "def plan(\n    family: str,\n    problem: Problem,\n    more: int,",
        ),
        ("plan/rules.py", "def shipped(", "def kept("),
        ("plan/planner.py", "rules.shipped(", "rules.kept("),
        ("program/registry.py", "def programs(", "def all_of_them("),
    ]
    before = list_version(load_previous("main", repository(tmp_path / "r", *edits)).module)
    assert before.programs["sm_80"] is None and before.rules["sm_80"] is None
    assert all(f.plan.startswith("no plan (TypeError: ") for f in before.plans.values())
    said = lines(now, before)
    assert "programs unknown -> " in said[0]
    assert said[-1].startswith("270 of 270 rows change (") and said[-1].endswith("no row stays the same")
    assert any(s.startswith("270 rows have no plan (TypeError: ") for s in lines(before))


def test_rows_of_their_own():
    row = Planned("fwd", Shape(7, 64, 8), True)
    made = list_version(cake, {"sm_90a": 132}, [row])
    assert [str(r) for _, r in made.plans] == ["fwd T=7 H=64 N=8 deterministic"]


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments), terminal_width=200)


def test_list():
    result = invoke("list")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 5 and result.stdout.startswith("sm_80: programs ")
    made = json.loads(invoke("list", "--json").stdout)
    assert made["rows"] == len(made["plans"]) == 270 and made["architectures"]["sm_107a"]["sms"] == 212


def test_list_with_a_previous_version(repo, monkeypatch):
    monkeypatch.setattr("bench.previous.load_previous.__defaults__", (repo,))
    commit = git(repo, "rev-parse", "HEAD")
    result = invoke("list", "--previous", "main")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == f"main ({commit[:12]}) -> working tree"
    made = json.loads(invoke("list", "--previous", "main", "--json").stdout)
    assert made["previous"] == {"ref": "main", "commit": commit}
    changed = sum(len(c["archs"]) for c in made["changed"])
    assert changed and made["same"] == 270 - changed and made["remade"] == []
    assert made["changed"][0]["before"]["program"].startswith("router_sm80_128x64")


def test_list_with_an_unknown_ref(repo, monkeypatch):
    monkeypatch.setattr("bench.previous.load_previous.__defaults__", (repo,))
    result = invoke("list", "--previous", "nothing")
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith("error: 'nothing' is unknown to the repository in ")


RULE = """{ op = "fwd", form = "64x64", raster = 8, why = "x" """
DENSE_RULES = (
    "plan/rules/projection_sm80.toml",
    "rules = []",
    f'rules = [{RULE}}}, {RULE}, T = 64 }}, {RULE}, T = [65, 99] }}, {RULE}, T = "ragged" }}]',
)


def test_rules_are_counted_by_suite_op_and_key(tmp_path):
    now = counts.count()
    for arch in ARCHITECTURES:
        by_op = now.rules["router", arch]
        assert sum(sum(c.values()) for c in by_op.values()) == list_version(rows=[]).rules[arch]
    table = counts.rules_table(now)
    assert table[0] == "| suite | architectures | op | exact T | range | ragged | default | all |"
    assert "| dense | sm_80, sm_100a, sm_103a, sm_107a | fwd | 0 | 0 | 0 | 0 | 0 |" in table
    before = counts.count(load_previous("main", repository(tmp_path / "r", DENSE_RULES)).module)
    assert (
        "| dense | sm_80, sm_100a, sm_103a, sm_107a | fwd | 1 -> 0 | 1 -> 0 | 1 -> 0 | 1 -> 0 | 4 -> 0 |"
        in counts.rules_table(now, before)
    )
    # All of what did not change stays one number.
    assert all("->" not in line for line in counts.rules_table(now, before) if "| router |" in line)


def test_programs_are_counted_by_kind():
    now = counts.count()
    assert {arch: sum(c.values()) for arch, c in now.programs.items()} == list_version(rows=[]).programs
    table = counts.programs_table(now)
    assert table[:2] == [
        "| architecture | router | backward | projection | all |",
        "| --- | --: | --: | --: | --: |",
    ]
    assert len(table) == 2 + len(ARCHITECTURES)


def test_what_a_version_does_not_tell_is_unknown(tmp_path):
    edits = [
        ("plan/rules.py", "def shipped(", "def kept("),
        ("plan/planner.py", "rules.shipped(", "rules.kept("),
        ("program/registry.py", "def keys_of(", "def keys_for("),
        ("program/registry.py", "in keys_of(", "in keys_for("),
    ]
    now = counts.count()
    before = counts.count(load_previous("main", repository(tmp_path / "r", *edits)).module)
    assert before.rules["router", "sm_90a"] is None and before.programs["sm_90a"] is None
    assert all(line.count("unknown -> ") == 4 for line in counts.programs_table(now, before)[2:])
    assert any("| router |" in s and "unknown -> 1" in s for s in counts.rules_table(now, before))


def test_list_prints_the_tables_asked_for():
    rules, programs = (invoke("list", option).stdout for option in ("--rules", "--programs"))
    assert rules.startswith("| suite |") and programs.startswith("| architecture |")
    assert invoke("list", "--rules", "--programs").stdout == f"{rules}\n{programs}"
    made = json.loads(invoke("list", "--programs", "--json").stdout)
    assert list(made) == ["after"] and made["after"]["programs"]["sm_80"]["projection"] == 24
