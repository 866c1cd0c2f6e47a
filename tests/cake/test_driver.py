from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
import torch

from cake.launch import driver
from cake.launch.router import BackwardParams, MappedParams, Params, aligned


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without an NVIDIA driver")
def test_no_driver_says_what_to_do():
    driver.driver.cache_clear()
    with pytest.raises(driver.DriverUnavailable, match="use tensors on the CPU|cuda-python"):
        driver.load_kernel(b"", "kernel", device=0)


class Status(int):
    @property
    def name(self):
        return f"CUDA_ERROR_{int(self)}"


def test_failed_calls_are_named():
    with pytest.raises(
        driver.DriverError, match=r"cuModuleLoadData\(router\) failed: CUDA_ERROR_200 \(200\)"
    ):
        driver.check("cuModuleLoadData(router)", (Status(200), None))
    assert driver.check("cuInit", (0, 7)) == 7


def test_a_capture_under_way_is_relaxed_for_the_length_of_a_call():
    class Api:
        class CUstreamCaptureMode:
            CU_STREAM_CAPTURE_MODE_RELAXED = "relaxed"

        mode = "global"

        def cuThreadExchangeStreamCaptureMode(self, mode):
            self.mode, before = mode, self.mode
            return 0, before

    api = Api()
    with pytest.raises(driver.DriverError), driver.relaxed_capture(api):
        assert api.mode == "relaxed"
        raise driver.DriverError("a module that does not load")
    assert api.mode == "global"


class Contexts:
    """A driver whose launches need the thread's context."""

    CUlaunchConfig = SimpleNamespace

    def __init__(self, current, always_fails=False):
        self.current, self.always_fails, self.launched = current, always_fails, []

    def cuLaunchKernelEx(self, config, kernel, arguments, extra):
        if self.always_fails or not self.current:
            return (Status(201),)
        self.launched.append((config.hStream, kernel))
        return (0,)

    def cuCtxGetCurrent(self):
        return 0, self.current

    def cuDeviceGet(self, index):
        return 0, index

    def cuDevicePrimaryCtxRetain(self, handle):
        return 0, 100 + handle

    def cuCtxSetCurrent(self, context):
        self.current = context
        return (0,)


@pytest.mark.parametrize("context", [103, 0], ids=["torch was here", "a new thread"])
def test_a_thread_gets_the_device_s_context_when_a_launch_fails_for_want_of_it(monkeypatch, context):
    api = Contexts(context)
    monkeypatch.setattr(driver, "driver", lambda: api)
    launcher = driver.Launcher("kernel", 3, (1, 1, 1), 32, 0, Params())
    for stream in (7, 7, 9):
        launcher.launch(stream)
    assert api.launched == [(7, "kernel"), (7, "kernel"), (9, "kernel")] and api.current == 103


@pytest.mark.parametrize("context", [103, 0])
def test_a_launch_that_fails_all_the_same_is_an_error(monkeypatch, context):
    api = Contexts(context, always_fails=True)
    monkeypatch.setattr(driver, "driver", lambda: api)
    with pytest.raises(driver.DriverError, match=r"cuLaunchKernelEx failed: CUDA_ERROR_201 \(201\)"):
        driver.Launcher("kernel", 3, (1, 1, 1), 32, 0, Params()).launch(7)


def test_parameter_block_has_the_layout_of_the_kernel():
    """5 pointers, 4 long longs, 11 ints (the last one a planted program's) and 3 bytes, padded to 4."""
    assert ctypes.sizeof(Params) == 9 * 8 + 11 * 4 + 4
    assert (Params.m.offset, Params.spin.offset, Params.out_bf16.offset) == (72, 112, 118)


def test_maps_are_aligned_where_the_kernel_and_the_driver_want_them():
    """See the static_assert in csrc/sm90/gemm.cuh."""
    assert (MappedParams.a.offset, MappedParams.b.offset, ctypes.sizeof(MappedParams)) == (128, 256, 384)
    assert (BackwardParams.wgrad.offset, BackwardParams.dgrad_ctas.offset) == (384, 768)
    for kind in (MappedParams, BackwardParams):
        blocks = [aligned(kind) for _ in range(20)]
        assert all(ctypes.addressof(block) % 64 == 0 for block in blocks)
        assert all(bytes(block) == bytes(ctypes.sizeof(kind)) for block in blocks)
