"""What a library call is asked to do, and what it says of itself.

A baseline knows one product of strided views, ``out = a @ b``; the mapping of forward, input gradient and
weight gradient onto it is the caller's (``bench.suites``), so every library sees the same views.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch


class Unsupported(Exception):
    """The library cannot do this product here; the message says why and becomes the cell's reason."""


@dataclass(frozen=True)
class Gemm:
    """One product ``out[M, N] = a[M, K] @ b[K, N]``.

    ``kind`` is ``fwd``, ``dgrad`` or ``wgrad``. ``a``, ``b`` and ``out`` are views on one device with unit
    stride on one axis (transposed operands are ``.t()`` views, never copies).
    """

    kind: str
    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor


def check(gemm: Gemm, device: str) -> None:
    """Raise :class:`Unsupported` unless ``gemm`` is a non-empty FP32 product on one ``device``."""
    views = {"a": gemm.a, "b": gemm.b, "out": gemm.out}
    for name, t in views.items():
        if t.dim() != 2 or t.dtype != torch.float32 or t.device.type != device or t.device != gemm.out.device:
            raise Unsupported(
                f"{name} is {t.dtype} {list(t.shape)} on {t.device}; needs a 2-D torch.float32 view "
                f"on {device}, all three on one device (out is on {gemm.out.device})"
            )
    (m, k), (k2, n) = gemm.a.shape, gemm.b.shape
    if k != k2 or gemm.out.shape != (m, n):
        raise Unsupported(
            f"shapes do not fit: a {list(gemm.a.shape)} @ b {list(gemm.b.shape)} -> "
            f"out {list(gemm.out.shape)}; needs a [M, K], b [K, N], out [M, N]"
        )
    if 0 in (m, n, k):
        raise Unsupported(f"the product is empty: M={m}, N={n}, K={k}; there is no library call to time")


@dataclass(frozen=True)
class Call:
    """The provenance of one library call: enough to make the same call again.

    ``version`` and ``path`` name the library that is really mapped into this process; ``algorithm`` is the
    choice in words (empty where the library keeps it to itself); ``kernels`` are filled in by whoever saw
    them run.
    """

    library: str
    function: str
    version: str = ""
    path: str = ""
    algorithm: str = ""
    kernels: tuple[str, ...] = field(default=())

    def seen(self, kernels: tuple[str, ...]) -> Call:
        """The same call with the kernel names that were observed for it."""
        return replace(self, kernels=kernels)

    def __str__(self) -> str:
        return f"{self.function}[{self.algorithm}]" if self.algorithm else self.function


@dataclass(frozen=True)
class Launch:
    """A library call bound to its tensors: ``run()`` enqueues it on the current stream, no allocation."""

    call: Call
    run: Callable[[], None]


@dataclass(frozen=True)
class Library:
    """A library (or one mode of it) as a source of calls.

    ``candidates(gemm)`` returns launches for the product, the library's own first choice first; it raises
    :class:`Unsupported` where it has none. ``native`` names the library an emulated mode must differ from
    (BF16x9), else is ``None``. ``device`` is ``cuda`` or ``cpu``. ``searched`` libraries choose among several
    algorithms: their first choice and their searched best are separate arms.
    """

    name: str
    device: str
    candidates: Callable[[Gemm], list[Launch]]
    native: str | None = None
    searched: bool = False
