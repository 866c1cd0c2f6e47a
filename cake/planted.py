"""Launches with a slowdown of known size planted in them, to test a benchmark's verdict with. Not for use.

The program of an op's last GEMM is compiled so that the CTA that comes last spins for ``spin`` clocks after
its stores. The bits are those of the plain launch; finding out who is last costs a little too, so what was
really planted is to be measured. GPU only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .launch.entry import Entry, Options
from .router import OPS, Op, PreparedRouter, _backward, _call, prepare_router


def prepare(op: Op, *, spin: int, **arguments: Any) -> PreparedRouter:
    """:func:`cake.prepare_router` with the same arguments, planted. Raises ``ValueError`` on a CPU."""
    *before, (entry, tensors) = prepare_router(op, **arguments).steps
    _check(spin, tensors[0])
    last = Entry(entry.kind, *tensors, entry.options._replace(spin=spin))
    return PreparedRouter(op, [*before, (last, tensors)])


def eager(
    op: Op,
    *,
    spin: int,
    X: torch.Tensor | None = None,
    W: torch.Tensor | None = None,
    G: torch.Tensor | None = None,
    out: Any,
    deterministic: bool = True,
) -> Callable[[], None]:
    """The eager calls of an op as one callable, planted; arguments as for :func:`cake.prepare_router`."""
    plain = Options(deterministic, "bf16x3", None, False)
    slow = plain._replace(spin=spin)
    prepare_router(op, X=X, W=W, G=G, out=out, deterministic=deterministic)  # all checks
    assert op in OPS
    x, w, g = (torch.empty(0) if t is None else t for t in (X, W, G))
    _check(spin, w if op in ("fwd", "dgrad") else x)

    def step() -> None:
        _call("fwd", x, w, out[0], None, plain)
        _call("fwd", x, w, out[0], None, plain)
        _backward(g, x, w, out[1:], None, plain, slow)

    calls: dict[str, Callable[[], Any]] = {
        "fwd": lambda: _call("fwd", x, w, out, None, slow),
        "dgrad": lambda: _call("dgrad", g, w, out, None, slow),
        "wgrad": lambda: _call("wgrad", g, x, out, None, slow),
        "bwd": lambda: _backward(g, x, w, out, None, plain, slow),
        "2fwd+bwd": step,
    }
    return calls[op]


def _check(spin: int, tensor: torch.Tensor) -> None:
    if not tensor.is_cuda:
        raise ValueError(
            f"a slowdown can be planted in GPU programs only; the tensors are on {tensor.device}"
        )
    if type(spin) is not int or not 0 <= spin < 2**31:
        raise ValueError(f"spin={spin!r}; needs a number of clocks from 0 to 2^31 - 1")
