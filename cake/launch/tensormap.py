"""Operands as Hopper's copying hardware sees them: encoded once a plan, for any address later."""

from __future__ import annotations

import ctypes
from typing import Any

from ..operand import ITEMSIZE, View
from ..program.registry import Box
from . import driver

#: The driver wants maps at a multiple of this.
ALIGNMENT = 64


class TensorMap(ctypes.Structure):
    """``cake::TensorMap`` of csrc/common/hopper.cuh: 128 bytes that only the driver understands."""

    _fields_ = (("words", ctypes.c_ulonglong * 16),)


def matrix(view: View) -> tuple[tuple[int, int], int]:
    """A view as (elements a line, lines), and the bytes from one line to the next."""
    inner, lines = (view.cols, view.rows) if view.unit == 1 else (view.rows, view.cols)
    size = ITEMSIZE[view.dtype]
    # The stride of a single line is free, but has to be one.
    return (inner, lines), view.ld * size if lines > 1 else -(-inner * size // 16) * 16


class Mapped:
    """An operand's map in a parameter block, at an address that is a multiple of 64; with ``batched`` the map
    has a third axis, of the matrices of a batch.
    """

    def __init__(self, at: int, view: View, box: Box, *, batched: bool = False) -> None:
        self._at, self._view, self._box, self._batched = at, view, box, batched
        self._map: Any = None
        self._address = 0

    def bind(self, address: int) -> None:
        """Let it be the matrix at an address. Raises :class:`DriverError`."""
        if address == self._address:
            return
        api = driver.driver()
        if self._map is None:
            encoded = self._encode(api, address)
            ctypes.memmove(self._at, encoded.getPtr(), ctypes.sizeof(TensorMap))
            self._map = api.CUtensorMap(_ptr=self._at)
        else:
            driver.check("cuTensorMapReplaceAddress", api.cuTensorMapReplaceAddress(self._map, address))
        self._address = address

    def _encode(self, api: Any, address: int) -> Any:
        (inner, lines), stride = matrix(self._view)
        sizes, strides, box = [inner, lines], [stride], [self._box.inner, self._box.lines]
        if self._batched:
            # A matrix that all of a batch share is one; the stride of a single one is free, but set.
            apart = self._view.batch_stride * ITEMSIZE[self._view.dtype]
            sizes, box = [*sizes, self._view.batch if apart else 1], [*box, 1]
            strides = [stride, apart or stride * lines]
        kinds = api.CUtensorMapDataType
        bf16 = self._view.dtype == "bf16"
        swizzle = "NONE" if not self._box.swizzle else f"{self._box.swizzle}B"
        return driver.check(
            f"cuTensorMapEncodeTiled({lines} lines of {inner}, {stride} bytes apart; {self._box})",
            api.cuTensorMapEncodeTiled(
                kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 if bf16 else kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                len(sizes),
                address,
                list(map(api.cuuint64_t, sizes)),
                list(map(api.cuuint64_t, strides)),
                list(map(api.cuuint32_t, box)),
                [api.cuuint32_t(1)] * len(box),
                api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                getattr(api.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
                api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            ),
        )
