"""Bound plans: what the parameter block holds when a kernel is enqueued. No GPU: the driver is a stand-in."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cake.candidates import problem
from cake.launch import driver, router
from cake.launch.router import (
    BackwardParams,
    BoundBackward,
    BoundPlan,
    MappedParams,
    Params,
    Workspaces,
    inverse,
    parameters,
)
from cake.plan.backward import joined
from cake.plan.planner import by_rule, plan
from cake.plan.rules import parse
from cake.program.registry import program
from tests.cake.test_tensormap import Api

CPU = torch.device("cpu", 0)


class Launcher:
    """Keeps a copy of the block as it is at every launch."""

    def __init__(self, kernel, device, grid, threads, smem_bytes, parameters, *, pdl, cooperative):
        self.grid, self.threads, self.cooperative = grid, threads, cooperative
        self._at, self._kind = ctypes.addressof(parameters), type(parameters)
        self.seen: list[ctypes.Structure] = []
        self.stream = 0

    def move(self, stream):
        self.stream = stream

    def enqueue(self):
        self.seen.append(self._kind.from_buffer_copy(ctypes.string_at(self._at, ctypes.sizeof(self._kind))))
        return (0,)


@pytest.fixture
def api(monkeypatch):
    api = Api()
    monkeypatch.setattr(driver, "driver", lambda: api)
    monkeypatch.setattr(driver, "Launcher", Launcher)
    monkeypatch.setattr(driver, "bind_thread", lambda index: api.calls.append(("bind", index)))
    monkeypatch.setattr(router, "_kernel", lambda key, index: (program(key), None))
    monkeypatch.setattr(router, "WORKSPACES", Workspaces())
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False, raising=False)
    return api


def test_a_program_without_boxes_gets_pointers(api):
    bound = BoundPlan(plan(problem("fwd", 64, 4096, 256), "sm80"), CPU, pdl=False)
    for at in ((16, 32, 48), (64, 32, 48)):
        bound.launch(at, 0)
    first, second = bound._idle[0].launcher.seen
    assert isinstance(first, Params) and (first.a, first.b, first.out) == (16, 32, 48)
    assert (second.a, second.b, second.out, second.k) == (64, 32, 48, 4096)
    assert second.partial and second.counter and api.calls == [("bind", 0)] * 2


def test_a_program_with_boxes_gets_maps_and_a_driver_call_only_where_a_pointer_changed(api):
    bound = BoundPlan(plan(problem("fwd", 64, 4096, 256), "sm90", sms=132), CPU, pdl=False)
    assert bound._idle[0].launcher.cooperative and bound._idle[0].launcher.threads == 384
    for at in ((16, 32, 48), (16, 32, 48), (64, 32, 80)):
        bound.launch(at, 0)
    assert [call[0] for call in api.calls] == ["bind", "encode", "encode", "bind", "replace"]
    last = bound._idle[0].launcher.seen[-1]
    assert isinstance(last, MappedParams) and (last.params.m, last.params.n, last.params.k) == (64, 256, 4096)
    assert (last.a.words[0], last.b.words[0], last.params.out) == (64, 32, 80)
    assert [block.a.words[0] for block in bound._idle[0].launcher.seen] == [16, 16, 64]


def test_an_address_that_the_driver_refuses_is_asked_for_again(api, monkeypatch):
    bound = BoundPlan(plan(problem("fwd", 64, 4096, 256), "sm90", sms=132), CPU, pdl=False)
    bound.launch((16, 32, 48), 0)
    refusal = type("Status", (), {"name": "CUDA_ERROR_INVALID_VALUE", "__int__": lambda self: 1})()
    with monkeypatch.context() as m:
        m.setattr(api, "cuTensorMapReplaceAddress", lambda *a: (refusal,))
        with pytest.raises(driver.DriverError, match="cuTensorMapReplaceAddress"):
            bound.launch((64, 32, 48), 0)
    bound.launch((64, 32, 48), 0)
    assert [block.a.words[0] for block in bound._idle[0].launcher.seen] == [16, 64]


def test_a_thread_that_meets_another_one_has_a_block_of_its_own(api):
    """A launch in the middle of a launch, as when threads take turns between any two instructions."""
    bound = BoundPlan(plan(problem("fwd", 64, 4096, 256), "sm90", sms=132), CPU, pdl=False)
    (first,) = bound._idle
    enqueue = first.launcher.enqueue

    def meanwhile():
        bound.launch((64, 32, 80), 7)
        return enqueue()

    first.launcher.enqueue = meanwhile
    bound.launch((16, 32, 48), 0)
    assert len(bound._idle) == 2 and bound._idle[1] is first
    for block, at, stream in ((first, (16, 32, 48), 0), (bound._idle[0], (64, 32, 80), 7)):
        (seen,) = block.launcher.seen
        assert (seen.a.words[0], seen.b.words[0], seen.params.out) == at
        assert block.launcher.stream == stream and seen.params.partial


def test_a_launch_that_fails_leaves_its_block_to_the_next_one(api):
    bound = BoundPlan(plan(problem("fwd", 64, 4096, 256), "sm90", sms=132), CPU, pdl=False)
    (block,) = bound._idle

    def refuse(status):
        raise driver.DriverError(f"cuLaunchKernelEx failed: {status}")

    block.launcher.enqueue, block.launcher.retry = lambda: (719,), refuse
    with pytest.raises(driver.DriverError, match="719"):
        bound.launch((16, 32, 48), 0)
    assert bound._idle == [block]


def test_both_gradients_have_their_own_maps_and_dw_the_workspace(api):
    dgrad, wgrad = (plan(problem(kind, 1024, 4096, 256), "sm90", sms=132) for kind in ("dgrad", "wgrad"))
    both = joined(dgrad, wgrad, 132)
    assert both is not None and both.wgrad == replace(wgrad, hold=2, reduction="direct")
    bound = BoundBackward(both, CPU, pdl=False)
    bound.launch(((16, 32, 48), (16, 64, 80)), 0)
    (block,) = bound._idle[0].launcher.seen
    assert isinstance(block, BackwardParams) and bound._idle[0].launcher.grid == (sum(both.ctas), 1, 1)
    assert (block.dgrad.a.words[0], block.dgrad.b.words[0], block.dgrad.params.out) == (16, 32, 48)
    assert (block.wgrad.a.words[0], block.wgrad.b.words[0], block.wgrad.params.out) == (16, 64, 80)
    assert block.dgrad_ctas == both.ctas[0] and block.wgrad.params.hold == 2
    assert block.wgrad.params.partial and not block.dgrad.params.partial


def divide(x, divisor, reciprocal):
    """``cake::divide`` of csrc/common/raster.cuh."""
    quotient = x * reciprocal >> 32
    return quotient + (x - quotient * divisor >= divisor)


@given(x=st.integers(0, 2**32 - 1), divisor=st.integers(1, 2**31 - 1))
def test_kernels_divide_exactly(x, divisor):
    assert divide(x, divisor, inverse(divisor)) == x // divisor


@given(rows=st.integers(1, 300), columns=st.integers(1, 300), height=st.integers(1, 400), data=st.data())
def test_kernels_find_a_tile_where_the_raster_has_it(rows, columns, height, data):
    """``cake::locate`` of csrc/common/raster.cuh, with a plan's parameters."""
    rule = {"op": "dgrad", "tile": "64x64", "hold": 1, "raster": height, "why": "a test"}
    made = by_rule(problem("dgrad", rows * 64, columns * 64, 64), "sm80", parse(rule, "sm80"))
    p = parameters(made)
    assert (p.tiles_m, p.tiles_n, p.raster) == (rows, columns, min(height, rows))
    tile = data.draw(st.integers(0, rows * columns - 1))
    first = divide(tile, p.raster * p.tiles_n, p.band_inverse) * p.raster
    left, inside = rows - first, tile - first * columns
    band, reciprocal = (p.raster, p.raster_inverse) if left >= p.raster else (left, p.rest_inverse)
    column = divide(inside, band, reciprocal)
    assert (first + inside - column * band, column) == made.raster.locate(tile, rows, columns)
