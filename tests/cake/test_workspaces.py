"""Workspaces: one a stream, growing, bounded; the allocator knows of every stream that works on one."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

import cake
from cake.launch import router
from cake.launch.router import BoundPlan, Workspace, Workspaces
from cake.plan import DeviceSpec, ProgramKey, plan
from cake.program.registry import program
from tests.cake.test_planner import problem

CPU = torch.device("cpu", 0)


@pytest.fixture
def capturing(monkeypatch):
    state = SimpleNamespace(now=False)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: state.now, raising=False)
    return state


@pytest.fixture
def bound(monkeypatch):
    monkeypatch.setattr(router, "_kernel", lambda key, index: (program(key), None))
    monkeypatch.setattr(router.driver, "Launcher", lambda *a, **k: None)
    monkeypatch.setattr(router, "WORKSPACES", Workspaces())
    return BoundPlan(plan(problem("fwd", 64, 256, 4096), "sm80"), CPU, pdl=False)


def test_one_a_stream_and_it_grows_to_the_largest_need():
    spaces = Workspaces()
    first = spaces.get(8, 2, CPU, 1)
    assert spaces.get(4, 2, CPU, 1) is first
    assert spaces.get(8, 2, CPU, 2) is not first
    grown = spaces.get(4, 6, CPU, 1)
    assert (grown.floats, grown.counters) == (8, 6)
    assert spaces.get(8, 2, CPU, 1) is grown


def test_bounded_and_cleared(monkeypatch):
    monkeypatch.setattr(router, "MAX_WORKSPACES", 2)
    spaces = Workspaces()
    kept = [spaces.get(1, 2, CPU, stream) for stream in range(1, 6)]
    assert len(spaces) == 2
    assert spaces.get(1, 2, CPU, 5) is kept[4]
    spaces.clear()
    assert len(spaces) == 0
    assert spaces.get(1, 2, CPU, 5) is not kept[4]


def test_the_default_stream_is_not_asked_whether_it_is_captured(capturing, bound):
    """CUDA refuses to capture it; another stream may be captured meanwhile."""
    kept = bound._stream_space(0)
    capturing.now = True
    assert bound._stream_space(0) is kept


def test_a_launch_keeps_its_stream_s_workspace_and_a_capture_gets_one_of_its_own(capturing, bound):
    kept = bound._stream_space(1)
    assert bound._stream_space(1) is kept
    capturing.now = True
    assert len({id(x) for x in [kept, *(bound._stream_space(1) for _ in range(2))]}) == 3
    capturing.now = False
    assert bound._stream_space(1) is kept


def test_an_outgrown_workspace_is_let_go(capturing, bound):
    old = weakref.ref(bound._stream_space(1))
    assert old() is not None
    grown = router.WORKSPACES.get(2 * bound.plan.partial_floats, bound.plan.counters, CPU, 1)
    gc.collect()
    assert old() is None and bound._stream_space(1) is grown


def test_what_a_capture_got_is_not_kept_where_it_came_first(capturing, bound):
    capturing.now = True
    own = bound._stream_space(1)
    capturing.now = False
    assert bound._stream_space(1) is not own


def test_the_allocator_is_told_of_every_stream_once(monkeypatch):
    recorded: list[tuple[str, int]] = []
    space = Workspace(4, 2, CPU)
    for name in ("_partial", "_counter"):
        monkeypatch.setattr(
            space,
            name,
            SimpleNamespace(device=CPU, record_stream=lambda s, name=name: recorded.append((name, s))),
        )
    for stream in (7, 7, 9, 7):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device, stream=stream: stream)
        space.used_on(stream)
    assert recorded == [("_partial", 7), ("_counter", 7), ("_partial", 9), ("_counter", 9)]


def test_clearing_all_caches_forgets_loaded_programs(monkeypatch):
    loads = []
    monkeypatch.setattr(router, "device_spec", lambda index: DeviceSpec("sm_90a", 132))
    monkeypatch.setattr(router, "compile_cubin", lambda *a, **k: b"")
    monkeypatch.setattr(router.driver, "load_kernel", lambda *a, **k: loads.append(1))
    cake.clear_caches()
    key = ProgramKey("sm80", 64, 64, True, True, "f32", "f32")
    for _ in range(2):
        router._kernel(key, 0)
    assert len(loads) == 1
    cake.clear_caches()
    router._kernel(key, 0)
    assert len(loads) == 2
    cake.clear_caches()
