from __future__ import annotations

import ctypes

import pytest
import torch

from cake.launch import driver
from cake.launch.router import Params


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without an NVIDIA driver")
def test_no_driver_says_what_to_do():
    driver.driver.cache_clear()
    with pytest.raises(driver.DriverUnavailable, match="use tensors on the CPU|cuda-python"):
        driver.load_kernel(b"", "kernel", device=0)


def test_failed_calls_are_named():
    class Status(int):
        name = "CUDA_ERROR_INVALID_IMAGE"

    with pytest.raises(
        driver.DriverError, match=r"cuModuleLoadData\(router\) failed: CUDA_ERROR_INVALID_IMAGE \(200\)"
    ):
        driver.check("cuModuleLoadData(router)", (Status(200), None))
    assert driver.check("cuInit", (0, 7)) == 7


def test_parameter_block_has_the_layout_of_the_kernel():
    """5 pointers and 4 long longs, then 8 ints, nothing between."""
    assert ctypes.sizeof(Params) == 9 * 8 + 8 * 4
    assert Params.m.offset == 72
