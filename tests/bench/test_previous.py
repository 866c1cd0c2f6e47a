from __future__ import annotations

import functools
import importlib
import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from bench_builders import ROW
from bench_versions import NO_BACKWARD, NO_OPTION, OTHER_PARTITION, OTHER_TILE, PACKAGE, git, repository
from rich.console import Console

import cake
from bench import previous
from bench.accuracy import measure, references
from bench.arms import cake_arms, lacks
from bench.previous import (
    WORKING_TREE,
    PreviousError,
    load_copy,
    load_previous,
    package_digest,
    program_digest,
)
from bench.run import conduct
from bench.session import Options, RunRefused
from bench.store import open_run
from bench.suites import Row, Shape
from bench.tensors import router_tensors

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def repo(tmp_path_factory):
    return repository(tmp_path_factory.mktemp("repo"), OTHER_TILE)


@pytest.fixture(scope="module")
def other_bits(tmp_path_factory):
    return repository(tmp_path_factory.mktemp("bits"), OTHER_PARTITION)


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CAKE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_ref_is_imported_beside_the_working_trees_cake(repo):
    version = load_previous("main", repo)
    commit = git(repo, "rev-parse", "HEAD")
    assert version.facts == {"ref": "main", "commit": commit}
    assert version.module.__name__ == version.path.name == f"cake_{commit[:12]}"
    assert version.path.parent.name == commit and version.path.parents[1].name == "previous"
    assert sys.modules["cake"] is cake and version.module is not cake
    assert version.module.router_forward is not cake.router_forward
    inside = [m for n, m in sys.modules.items() if n.startswith(f"{version.module.__name__}.")]
    assert inside and all(Path(m.__file__).is_relative_to(version.path) for m in inside if m.__file__)
    assert load_previous(commit[:10], repo).module is version.module


def test_its_kernels_are_cached_under_its_own_name(repo):
    module = load_previous("main", repo).module
    assert sys.modules[f"{module.__name__}.program.compiler"]._ROOT == module.__name__


def test_it_computes(repo):
    module = load_previous("main", repo).module
    X, W = torch.randn(16, 64), torch.randn(32, 64)
    assert torch.equal(module.router_forward(X, W), cake.router_forward(X, W))


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("nothing", "'nothing' is unknown to the repository in .*; give a branch, a tag or a commit"),
        ("", "'' is no git ref"),
        ("--all", "'--all' is no git ref"),
        ("main:cake", "'main:cake' is unknown to the repository"),
    ],
)
def test_unknown_refs(repo, ref, message):
    with pytest.raises(PreviousError, match=message):
        load_previous(ref, repo)


def test_a_ref_without_the_package(tmp_path, empty_cache):
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "nothing yet")
    with pytest.raises(PreviousError, match=r"main \(\w{12}\) has no cake/ to compare with"):
        load_previous("main", tmp_path)
    (tmp_path / "cake").mkdir()
    (tmp_path / "cake" / "notes.txt").write_text("x")
    git(tmp_path, "add", "cake")
    git(tmp_path, "commit", "-q", "-m", "no package")
    with pytest.raises(PreviousError, match="is no package: it has no __init__.py"):
        load_previous("main", tmp_path)
    left = [p for p in (empty_cache / "previous").rglob("*") if p.name.startswith((".cake", "cake"))]
    assert left == []


def test_no_repository(tmp_path, empty_cache, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(
        PreviousError, match="cannot resolve 'main': .* not a git repository .* run it in a clone"
    ):
        load_previous("main", tmp_path)


def test_without_git_a_commit_that_is_in_the_cache_is_found(repo, monkeypatch):
    version = load_previous("main", repo)
    monkeypatch.setattr(previous, "_git", lambda *a: None)
    for ref in (version.commit, version.commit[:8]):
        assert load_previous(ref, repo).commit == version.commit
    with pytest.raises(PreviousError, match="cannot resolve 'main': there is no git here"):
        load_previous("main", repo)


def test_a_package_that_cannot_be_imported(tmp_path):
    broken = repository(tmp_path / "r", ("__init__.py", "from .router", "from .gone"))
    with pytest.raises(PreviousError, match="cannot be imported beside this one: ModuleNotFoundError"):
        load_previous("main", broken)
    assert not [n for n in sys.modules if n.startswith(f"cake_{git(broken, 'rev-parse', 'HEAD')[:12]}")]


def test_a_cache_that_cannot_be_written(repo, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CAKE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(PreviousError, match="Not a directory; set CAKE_CACHE_DIR to a directory"):
        load_previous("main", repo)


def test_processes_that_ask_at_the_same_time_all_get_it(repo, tmp_path):
    script = (
        "import pathlib, sys; from bench.previous import load_previous\n"
        "v = load_previous('main', pathlib.Path(sys.argv[1]))\n"
        "print(v.module.__file__, v.module.router_forward)"
    )
    environment = {**os.environ, "CAKE_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(repo)], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    said = {child.communicate(timeout=120)[0].split()[0] for child in children}
    assert all(child.returncode == 0 for child in children)
    [path] = said
    assert [p.name for p in Path(path).parents[1].iterdir()] == [Path(path).parent.name]


def test_a_copy_of_the_working_tree_takes_the_same_route():
    version = load_copy()
    assert version.ref == WORKING_TREE and version.path.name == f"cake_{version.commit[:12]}"
    files = {p.relative_to(version.path) for p in version.path.rglob("*") if p.is_file()}
    wanted = {p.relative_to(PACKAGE) for p in PACKAGE.rglob("*") if p.is_file()}
    assert {p for p in wanted if "__pycache__" not in p.parts} <= files
    assert version.module is not cake and load_copy().module is version.module


def test_another_text_of_the_package_is_another_copy(tmp_path):
    changed = repository(tmp_path / "r", OTHER_TILE)
    assert load_copy(changed / "cake").commit != load_copy().commit
    assert package_digest(changed / "cake") == load_copy(changed / "cake").commit


def test_what_programs_are_made_of(tmp_path):
    copy = load_copy().module
    key = cake.prepare_router("fwd", X=torch.ones(8, 64), W=torch.ones(8, 64)).plans[0].program
    assert program_digest(cake, key) == program_digest(copy, key) is not None
    comment = repository(tmp_path / "c", ("csrc/sm80/router.cu", "#include", "// a remark\n#include"))
    assert program_digest(load_previous("main", comment).module, key) == program_digest(cake, key)
    code = repository(
        tmp_path / "d", ("csrc/common/bf16x3.cuh", "#pragma once", "#pragma once\n#define OTHER 1")
    )
    assert program_digest(load_previous("main", code).module, key) != program_digest(cake, key)
    assert program_digest(cake, "no key") is None
    assert program_digest(torch, key) is None


# --- the arm ------------------------------------------------------------------------------------------------


def arms_of(module):
    return {a.name: a for a in cake_arms(module)}


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("op", ["fwd", "dgrad", "wgrad", "bwd", "2fwd+bwd"])
def test_the_arm_does_every_op(repo, op, mode):
    module = load_previous("main", repo).module
    row = Row("router", op, mode, ROW.shape)
    t = router_tensors(row, "cpu")
    prepared = arms_of(module)["cake_prev"].bind(row, t)
    for run in (prepared.run, prepared.deterministic().run):
        for kind in row.gemms:
            t.output(kind).fill_(float("nan"))
        run()
        assert measure(row, t, references(t)).rel_fro < 4e-7
    new = arms_of(module)["cake"].bind(row, t)
    assert ("dgrad" in row.gemms) == (new.program != prepared.program)
    assert new.partition == prepared.partition and new.digest and prepared.digest


@pytest.mark.parametrize("forgets", ["    forget_kernels()\n", ""])
def test_every_version_loads_its_programs_anew_before_an_eager_visit(
    tmp_path, empty_cache, monkeypatch, forgets
):
    keeps = (
        "router.py",
        "    WORKSPACES.clear()\n    forget_kernels()\n",
        f"    WORKSPACES.clear()\n{forgets}",
    )
    module = load_previous("main", repository(tmp_path / "r", keeps)).module
    loaded = importlib.import_module(f"{module.__name__}.launch.router")
    monkeypatch.setattr(loaded, "_kernel", functools.cache(lambda key: object()))
    row = Row("router", "fwd", "eager", Shape(16, 64, 16))
    prepared = cake_arms(module)[-1].bind(row, router_tensors(row, "cpu"))
    first = loaded._kernel("a program")
    assert prepared.reload is not None
    prepared.reload()
    assert loaded._kernel("a program") is not first


def test_only_versions_that_are_compared_give_deterministic_bits():
    t = router_tensors(ROW, "cpu")
    assert all(a.bind(ROW, t).deterministic is None for a in cake_arms()[:3])
    arms = arms_of(load_copy().module)
    assert list(arms) == ["cake", "control", "cake_det", "cake_fp16x2", "cake_prev"]
    on_cpu = {n: a.bind(ROW, t) for n, a in arms.items() if n != "cake_fp16x2"}
    assert {n for n, p in on_cpu.items() if p.deterministic} == {"cake", "cake_prev"}


def test_what_an_older_version_lacks_is_unsupported(tmp_path):
    from baselines.gemm import Unsupported

    module = load_previous("main", repository(tmp_path / "r", NO_OPTION, NO_BACKWARD)).module
    arm = arms_of(module)["cake_prev"]

    def why(op, mode="eager"):
        row = Row("router", op, mode, ROW.shape)
        with pytest.raises(Unsupported) as e:
            arm.bind(row, router_tensors(row, "cpu"))
        return str(e.value)

    assert why("wgrad") == "router_wgrad of this version has no option deterministic"
    assert why("bwd") == why("bwd", "graph")
    assert why("bwd").startswith(
        "this version says: ValueError: op='bwd'; needs one of fwd, dgrad, wgrad, 2fwd"
    )
    row = Row("router", "wgrad", "graph", ROW.shape)
    arm.bind(row, router_tensors(row, "cpu")).run()
    del module.prepare_router
    assert why("fwd", "graph") == "this version has no prepare_router"


def test_a_function_that_takes_anything_lacks_nothing():
    package = SimpleNamespace(takes_all=lambda **options: None, router_forward=cake.router_forward)
    assert lacks(package, {"takes_all": ("speed",)}) == ""
    expected = "router_forward of this version has no option speed"
    assert lacks(package, {"router_forward": ("out", "speed")}) == expected


# --- whole runs ---------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path):
    shapes = tmp_path / "shapes.toml"
    shapes.write_text("shapes = [{T = 8, H = 1024, N = 16}]")
    return {"preset": "smoke", "device": "cpu", "out": tmp_path / "run", "shapes_file": shapes}


def make(monkeypatch, root=None, **options):
    if root is not None:
        monkeypatch.setattr("bench.session.load_previous", lambda ref: load_previous(ref, root))
    outcome = conduct(Options(**options), Console(file=io.StringIO()))
    return outcome, {(c.arm, c.op): c for c in outcome.cells.cells if c.over == "cake"}


def test_a_run_with_a_previous_version(repo, small, monkeypatch):
    """Host times too, by a real child process."""
    outcome, cells = make(monkeypatch, repo, **small, previous="main", ops=("fwd", "dgrad"))
    assert outcome.exit_code == 0, outcome.unmeasured
    manifest = open_run(small["out"]).manifest()
    assert manifest.previous == {"ref": "main", "commit": git(repo, "rev-parse", "HEAD")}
    assert manifest.arms[:5] == ("cake", "control", "cake_det", "cake_fp16x2", "cake_prev")
    assert not manifest.control_run
    fwd, dgrad = cells["cake_prev", "fwd"], cells["cake_prev", "dgrad"]
    assert fwd.changed == () and fwd.bits_equal is True and fwd.us and fwd.ratio
    assert dgrad.changed == ("program", "plan") and dgrad.bits_equal is True
    assert cells["cake", "fwd"].changed == ()
    facts = {a.arm: a for a in open_run(small["out"]).row(manifest.rows[0]).arms}
    assert facts["cake"].det_bits == facts["cake_prev"].det_bits and len(facts["cake"].det_bits) == 64
    assert facts["cake_det"].det_bits is None
    det = (facts["cake"].det_program, facts["cake"].det_program_digest, facts["cake"].det_partition)
    assert det == (facts["cake_det"].program, facts["cake_det"].program_digest, facts["cake_det"].partition)
    assert all(det)

    # It is resumed with the commit, though the branch has moved on.
    next(open_run(small["out"]).rows_path.glob("*.json")).unlink()
    outcome, _ = make(monkeypatch, repo, resume=small["out"])
    assert outcome.exit_code == 0 and outcome.cells.missing == ()
    with pytest.raises(RunRefused, match="arms|previous|control run"):
        make(monkeypatch, resume=small["out"], control_run=True)


def test_other_bits_are_named(other_bits, small, monkeypatch):
    _, cells = make(monkeypatch, other_bits, **small, previous="main", ops=("fwd", "wgrad"))
    fwd, wgrad = cells["cake_prev", "fwd"], cells["cake_prev", "wgrad"]
    assert fwd.bits_equal is False and fwd.changed == ("plan", "partition", "bits")
    assert wgrad.bits_equal is True and wgrad.changed == ()


def test_a_control_run(small, monkeypatch):
    outcome, cells = make(monkeypatch, **small, control_run=True, ops=("fwd",))
    assert outcome.exit_code == 0
    manifest = open_run(small["out"]).manifest()
    assert manifest.control_run and manifest.previous["ref"] == WORKING_TREE
    assert cells["cake_prev", "fwd"].changed == () and cells["cake_prev", "fwd"].bits_equal is True


def test_a_control_run_has_no_ref(small, monkeypatch):
    with pytest.raises(RunRefused, match="leave --previous out"):
        make(monkeypatch, **small, control_run=True, previous="HEAD")


def test_a_deterministic_call_that_fails_leaves_the_arm_alone(small, monkeypatch):
    copy = load_copy().module
    real = copy.router_forward

    def failing(*a, deterministic, **k):
        if deterministic:
            raise RuntimeError("not today")
        return real(*a, deterministic=False, **k)

    monkeypatch.setattr(copy, "router_forward", failing)
    _, cells = make(monkeypatch, **small, control_run=True, ops=("fwd",))
    cell = cells["cake_prev", "fwd"]
    assert cell.status == "ok" and cell.bits_equal is None and cell.changed == ()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_two_versions_on_a_gpu(mode):
    """Both compile under their own names and give the same bits."""
    row = Row("router", "2fwd+bwd", mode, Shape(64, 4096))
    t = router_tensors(row, "cuda")
    outputs = []
    for arm in (arms_of(load_copy().module)[n] for n in ("cake", "cake_prev")):
        arm.bind(row, t).deterministic().run()
        torch.cuda.synchronize()
        outputs.append([t.output(k).clone() for k in ("fwd", "dgrad", "wgrad")])
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))
