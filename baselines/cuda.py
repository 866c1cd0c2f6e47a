"""The edge to CUDA that the cuBLAS libraries share: streams and memory by torch, the bindings by nvmath.

Tests put a recording double in the place of both, so nothing here decides anything.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from baselines.gemm import Unsupported

# cudaDataType
CUDA_R_32F = 0
CUDA_R_16BF = 14
CUDA_TYPES = {torch.float32: CUDA_R_32F, torch.bfloat16: CUDA_R_16BF}


class Runtime(Protocol):
    """What a library call needs of a device: its kind, memory, the current device and stream."""

    device: str

    def workspace(self, nbytes: int, index: int) -> torch.Tensor:
        """A byte tensor on device ``index``, aligned to 256 bytes."""

    def on(self, index: int) -> AbstractContextManager[Any]:
        """Make device ``index`` current for a while (a handle belongs to the device it is created on)."""

    def stream(self) -> Callable[[int], int]:
        """The function that gives a device's current stream as an address."""

    def capturing(self) -> bool:
        """Whether the current stream is being captured into a graph."""


class Cuda:
    """:class:`Runtime` on NVIDIA GPUs, through torch."""

    device = "cuda"

    def workspace(self, nbytes: int, index: int) -> torch.Tensor:
        """Device memory from torch's allocator, whose blocks are aligned to 512 bytes (cuBLAS wants 256)."""
        return torch.empty(nbytes, dtype=torch.uint8, device=torch.device("cuda", index))

    def on(self, index: int) -> AbstractContextManager[Any]:
        """Make device ``index`` current within a ``with`` block."""
        return torch.cuda.device(index)

    def stream(self) -> Callable[[int], int]:
        """The getter inside torch: 0.16 us a call, where ``current_stream().cuda_stream`` takes 8.6 us."""
        return torch._C._cuda_getCurrentRawStream

    def capturing(self) -> bool:
        """Whether torch's current stream is being captured."""
        return torch.cuda.is_current_stream_capturing()


def load_bindings(name: str) -> Any:
    """The module ``nvmath.bindings.<name>``; torch is imported by now, so both use the cuBLAS that it mapped.

    Raises ``Unsupported`` where nvmath-python is not installed.
    """
    try:
        return importlib.import_module(f"nvmath.bindings.{name}")
    except ImportError as e:
        raise Unsupported(
            f"cannot import nvmath.bindings.{name} ({e}); pip install 'cake-bench[cuda]' has it"
        ) from e
