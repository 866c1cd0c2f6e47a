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
    """One product ``out[M, N] = a[M, K] @ b[K, N]``, or a batch: ``out[B, M, N] = a[B, M, K] @ b[B, K, N]``.

    ``kind`` is ``fwd``, ``dgrad`` or ``wgrad``. ``a``, ``b`` and ``out`` are views on one device with unit
    stride on one of the last two axes (transposed operands are ``.mT`` views, never copies); the matrices of
    a batch lie one batch stride apart, which an input may have 0.
    """

    kind: str
    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor


@dataclass(frozen=True)
class Accepted:
    """The products that a library takes: dtype of both inputs, dtypes of the output, counts of dimensions."""

    inputs: torch.dtype
    outputs: tuple[torch.dtype, ...]
    dims: tuple[int, ...]


FP32 = Accepted(torch.float32, (torch.float32,), (2,))
BF16 = Accepted(torch.bfloat16, (torch.bfloat16, torch.float32), (2, 3))


def check(gemm: Gemm, device: str, accepted: Accepted = FP32) -> None:
    """Raise :class:`Unsupported` unless ``gemm`` is an ``accepted`` product, not empty, on one ``device``."""
    inputs, outputs = (accepted.inputs,), accepted.outputs
    for name, t, dtypes in (("a", gemm.a, inputs), ("b", gemm.b, inputs), ("out", gemm.out, outputs)):
        fits = t.dim() in accepted.dims and t.dtype in dtypes
        if not fits or t.device.type != device or t.device != gemm.out.device:
            dims = " or ".join(f"{n}-D" for n in accepted.dims)
            raise Unsupported(
                f"{name} is {t.dtype} {list(t.shape)} on {t.device}; needs a {dims} "
                f"{' or '.join(map(str, dtypes))} view on {device}, all three on one device "
                f"(out is on {gemm.out.device})"
            )
    (*batch, m, k), (*batch2, k2, n) = gemm.a.shape, gemm.b.shape
    if batch != batch2 or k != k2 or list(gemm.out.shape) != [*batch, m, n]:
        needed = "a [M, K], b [K, N], out [M, N]"
        if 3 in accepted.dims:
            needed += ", or all three with the same batch in front"
        raise Unsupported(
            f"shapes do not fit: a {list(gemm.a.shape)} @ b {list(gemm.b.shape)} -> "
            f"out {list(gemm.out.shape)}; needs {needed}"
        )
    if 0 in (*batch, m, n, k):
        sizes = f"M={m}, N={n}, K={k}" + "".join(f", batch={size}" for size in batch)
        raise Unsupported(f"the product is empty: {sizes}; there is no library call to time")


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
