"""Operands as tensor maps: what the driver is told, and when."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from cake.launch import driver
from cake.launch.tensormap import Mapped, TensorMap, matrix
from cake.operand import View
from cake.program.registry import Box


@pytest.mark.parametrize(
    ("view", "lines", "stride"),
    [
        (View(64, 4096, 4104, 1, "f32"), (4096, 64), 4104 * 4),
        (View(4096, 64, 4104, 0, "bf16"), (4096, 64), 4104 * 2),
        (View(1, 5, 0, 1, "f32"), (5, 1), 32),  # one line may have no stride, a map has one of 16s
        (View(7, 1, 0, 0, "bf16"), (7, 1), 16),
    ],
)
def test_a_view_is_lines_along_its_unit_stride(view, lines, stride):
    assert matrix(view) == (lines, stride)


class Api:
    """Encodes the address and the box, and takes another address."""

    class CUtensorMapDataType:
        CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 1
        CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 2

    class CUtensorMapSwizzle:
        CU_TENSOR_MAP_SWIZZLE_NONE = 0
        CU_TENSOR_MAP_SWIZZLE_64B = 64
        CU_TENSOR_MAP_SWIZZLE_128B = 128

    CUtensorMapInterleave = SimpleNamespace(CU_TENSOR_MAP_INTERLEAVE_NONE=0)
    CUtensorMapL2promotion = SimpleNamespace(CU_TENSOR_MAP_L2_PROMOTION_L2_256B=0)
    CUtensorMapFloatOOBfill = SimpleNamespace(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE=0)
    cuuint64_t = cuuint32_t = int

    def __init__(self):
        self.calls: list[tuple] = []

    class CUtensorMap:
        def __init__(self, _ptr):
            self.at = _ptr

    def cuTensorMapEncodeTiled(self, kind, rank, address, dims, strides, box, *rest):
        self.calls.append(("encode", kind, address, dims, strides, box))
        self.memory = (ctypes.c_ulonglong * 16)(address, kind, *dims, *strides, *box)
        return 0, SimpleNamespace(getPtr=lambda: ctypes.addressof(self.memory))

    def cuTensorMapReplaceAddress(self, tensor_map, address):
        self.calls.append(("replace", tensor_map.at, address))
        ctypes.c_ulonglong.from_address(tensor_map.at).value = address
        return (0,)


def test_encoded_once_and_then_only_pointed_elsewhere(monkeypatch):
    api, block = Api(), TensorMap()
    monkeypatch.setattr(driver, "driver", lambda: api)
    mapped = Mapped(ctypes.addressof(block), View(64, 4096, 4096, 1, "f32"), Box(32, 16, 128))
    mapped.bind(4096)
    assert api.calls == [("encode", 1, 4096, [4096, 64], [16384], [32, 16])]
    assert list(block.words[:7]) == [4096, 1, 4096, 64, 16384, 32, 16]
    mapped.bind(8192)
    assert api.calls[1:] == [("replace", ctypes.addressof(block), 8192)] and block.words[0] == 8192


def test_a_map_that_cannot_be_encoded_says_of_what(monkeypatch):
    api = Api()
    status = type("Status", (), {"name": "CUDA_ERROR_INVALID_VALUE", "__int__": lambda self: 1})()
    api.cuTensorMapEncodeTiled = lambda *a: (status, None)
    monkeypatch.setattr(driver, "driver", lambda: api)
    mapped = Mapped(ctypes.addressof(TensorMap()), View(64, 4096, 4096, 1, "f32"), Box(32, 16, 128))
    with pytest.raises(driver.DriverError, match=r"64 lines of 4096, 16384 bytes apart.*INVALID_VALUE"):
        mapped.bind(4096)
