"""BF16 projection GEMMs: forward and both gradients of a layer, or any product, one matrix or a batch.

``X[..., T, K]`` tokens, ``W[..., N, K]`` weights, ``G[..., T, N]`` the gradient of the output; leading
dimensions are one batch, such as heads. All are views: unit stride on one axis of the matrix, the other
strides and the base address multiples of 16 bytes, N a positive multiple of 8, T and K any size. Nothing is
copied. Operands are BF16, sums FP32, the output BF16 or FP32.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from . import operand
from .launch.calls import Calls, Given
from .launch.entry import addresses, current_stream, own_workspace, product
from .launch.projection import ProjectionEntry
from .operand import OPERANDS, AnyKind
from .plan.dense import ProjectionPlan

ProjectionOp = Literal["fwd", "dgrad", "wgrad"]

#: The GEMMs of a layer.
OPS: tuple[ProjectionOp, ...] = ("fwd", "dgrad", "wgrad")
#: What an output may be; the first one is what it is unasked.
OUTPUTS = (torch.bfloat16, torch.float32)
#: Entries the eager cache keeps.
MAX_ENTRIES = 512

#: kind -> the axis of each operand along which the sum runs, and the letter of its length.
_SHARED: dict[AnyKind, tuple[int, int, str]] = {
    "fwd": (-1, -1, "K"),
    "dgrad": (-1, -2, "N"),
    "wgrad": (-2, -2, "T"),
    "gemm": (-1, -2, "K"),
}


class Options(NamedTuple):
    """The keyword options of a call that decide its plan, in the four places of :class:`Calls`."""

    deterministic: bool
    transposed_out: bool
    splits: None = None
    pdl: None = None


def _output_shape(
    kind: AnyKind, first: torch.Tensor, second: torch.Tensor, transposed_out: bool
) -> tuple[int, ...]:
    a, b = product(kind, first, second)
    m, n = a.shape[-2], b.shape[-1]
    return (*first.shape[:-2], *((n, m) if transposed_out else (m, n)))


def _output_dtypes(kind: AnyKind, asked: torch.dtype | None) -> tuple[torch.dtype, ...]:
    """What an output may be: the first one is that of a new output."""
    if asked is None:
        return OUTPUTS
    if asked not in OUTPUTS:
        raise TypeError(f"out_dtype={asked} for {OPERANDS[kind][2]}; needs bfloat16 or float32")
    return (asked,)


def _check_inputs(kind: AnyKind, first: torch.Tensor, second: torch.Tensor) -> None:
    """Types, devices, shapes and N of a GEMM's inputs (errors as in :mod:`cake.operand`)."""
    name1, name2, _ = OPERANDS[kind]
    for name, t in ((name1, first), (name2, second)):
        operand.check_tensor(name, t, (torch.bfloat16,), batched=True)
    operand.check_same_device({name1: first, name2: second})
    shared1, shared2, letter = _SHARED[kind]
    if first.shape[shared1] != second.shape[shared2]:
        raise ValueError(
            f"{name1}{list(first.shape)} and {name2}{list(second.shape)} disagree about {letter}: "
            f"{first.shape[shared1]} and {second.shape[shared2]}"
        )
    if first.shape[:-2] != second.shape[:-2]:
        raise ValueError(
            f"{name1}{list(first.shape)} and {name2}{list(second.shape)} disagree about their batch: "
            f"{list(first.shape[:-2])} and {list(second.shape[:-2])} (expand() the one that is shared)"
        )
    if kind == "gemm":
        operand.check_n(name2, second.shape[-1], "columns", f"{name2} with zero columns")
    else:
        n = second.shape[-2] if kind == "fwd" else first.shape[-1]
        operand.check_n("W" if kind == "fwd" else "G", n, "features", "W with zero rows")


def _check_out(
    kind: AnyKind,
    first: torch.Tensor,
    second: torch.Tensor,
    out: torch.Tensor,
    asked: torch.dtype | None,
    transposed_out: bool,
) -> None:
    """Type, device and shape of a caller's output."""
    name1, name2, name = OPERANDS[kind]
    operand.check_tensor(name, out, _output_dtypes(kind, asked), batched=True)
    shape = _output_shape(kind, first, second, transposed_out)
    operand.check_shape(name, out, shape, f"from {name1}{list(first.shape)} and {name2}{list(second.shape)}")
    operand.check_same_device({name: out, name1: first})


class Entries(Calls[ProjectionEntry]):
    """The bounded cache of eager calls, and what makes the entries."""

    def options(self, given: Given) -> Options:
        """As a named tuple."""
        return Options(*given)

    def check(
        self,
        kind: AnyKind,
        first: torch.Tensor,
        second: torch.Tensor,
        out: torch.Tensor | None,
        out_dtype: torch.dtype | None,
        options: Options,
    ) -> None:
        """Types, devices, shapes and N."""
        _check_inputs(kind, first, second)
        if out is None:
            _output_dtypes(kind, out_dtype)
        else:
            _check_out(kind, first, second, out, out_dtype, options.transposed_out)

    def new_output(
        self,
        kind: AnyKind,
        first: torch.Tensor,
        second: torch.Tensor,
        out_dtype: torch.dtype | None,
        options: Options,
    ) -> torch.Tensor:
        """BF16 unless asked for in FP32."""
        shape = _output_shape(kind, first, second, options.transposed_out)
        return operand.new_output(shape, _output_dtypes(kind, out_dtype)[0], first.device)

    def make(
        self,
        kind: AnyKind,
        first: torch.Tensor,
        second: torch.Tensor,
        out: torch.Tensor,
        options: Options,
    ) -> ProjectionEntry:
        """A planned projection."""
        return ProjectionEntry(kind, first, second, out, options.deterministic, options.transposed_out)


entries = Entries(MAX_ENTRIES)


def dense_projection_gemm(
    A: torch.Tensor,
    B: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    transposed_out: bool = False,
    deterministic: bool = True,
) -> torch.Tensor:
    """``out[..., M, N] = A[..., M, K] @ B[..., K, N]`` of BF16 views, ``out[..., N, M]`` its transpose where
    ``transposed_out``.

    ``out_dtype`` is BF16 (default) or FP32; ``out`` a new tensor if not given, else of that type, or of
    either: a view is written in place, the rest of its buffer stays. Leading dimensions of A, B and out are
    equal and one batch with one stride; an input may be one matrix for all of it (``expand``). N is a
    positive multiple of 8, M and K any size: K = 0 gives zeros. ``deterministic=True``: the same bits every
    time; ``deterministic=False`` may sum in any order. Sums are FP32, rounded once: FP32 outputs are within a
    relative Frobenius error of 5e-5 of FP64, BF16 ones within 1e-2, absolute and relative; non-finite
    operands give non-finite results in the rows and columns they reach. Autograd does not see the call: the
    result has no gradient. Raises ``TypeError`` or ``ValueError`` naming the tensor, what it has and what is
    needed.
    """
    return entries.call("gemm", A, B, out, out_dtype, (deterministic, transposed_out, None, None))


def projection_forward(
    X: torch.Tensor,
    W: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    deterministic: bool = True,
) -> torch.Tensor:
    """A layer's output ``out[..., T, N] = X[..., T, K] @ W[..., N, K]^T``.

    Options and errors as :func:`dense_projection_gemm`.
    """
    return entries.call("fwd", X, W, out, out_dtype, (deterministic, False, None, None))


def projection_dgrad(
    G: torch.Tensor,
    W: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    deterministic: bool = True,
) -> torch.Tensor:
    """Input gradient ``dX[..., T, K] = G[..., T, N] @ W[..., N, K]``.

    A new ``dX`` has a row stride that is a multiple of 16 bytes. Options and errors as
    :func:`dense_projection_gemm`.
    """
    return entries.call("dgrad", G, W, out, out_dtype, (deterministic, False, None, None))


def projection_wgrad(
    G: torch.Tensor,
    X: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    deterministic: bool = True,
) -> torch.Tensor:
    """Weight gradient ``dW[..., N, K] = G[..., T, N]^T @ X[..., T, K]``.

    A new ``dW`` has a row stride that is a multiple of 16 bytes. Options and errors as
    :func:`dense_projection_gemm`.
    """
    return entries.call("wgrad", G, X, out, out_dtype, (deterministic, False, None, None))


class PreparedProjection:
    """A projection bound to its tensors: calling it enqueues it on the current stream, allocating nothing.

    ``outputs`` is the tensor written, by its name (``out``, ``dX``, ``dW``); ``plans`` has its plan, and none
    where nothing is to be multiplied. It owns its workspace and can be captured from its first call on, on
    any stream; one replay or call may be in flight at a time. A graph that captured it works on its tensors
    and workspace: keep it as long as that.
    """

    def __init__(
        self, entry: ProjectionEntry, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor
    ) -> None:
        self.op = entry.kind
        self.outputs = {OPERANDS[entry.kind][2]: out}
        self.plans: tuple[ProjectionPlan, ...] = () if entry.plan is None else (entry.plan,)
        floats, counters = (entry.plan.partial_floats, entry.plan.counters) if entry.plan else (0, 0)
        entry.bind(own_workspace(entry.kind, first.device, floats, counters))
        self._entry, self._tensors, self._at = entry, (first, second, out), addresses(first, second, out)
        self._device = first.device

    def __call__(self) -> None:
        """Run it once."""
        self._entry.run(*self._tensors, self._at, current_stream(self._device))


def prepare_projection(
    op: ProjectionOp,
    *,
    X: torch.Tensor | None = None,
    W: torch.Tensor | None = None,
    G: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    deterministic: bool = True,
) -> PreparedProjection:
    """Bind a projection to tensors: everything is checked, planned, compiled and allocated here, nothing when
    it is called.

    ``op`` is ``fwd`` (X, W), ``dgrad`` (G, W) or ``wgrad`` (G, X). Options and errors as
    :func:`dense_projection_gemm`.
    """
    return prepared(entries, op, X=X, W=W, G=G, out=out, out_dtype=out_dtype, deterministic=deterministic)


def prepared(
    made_by: Entries,
    op: ProjectionOp,
    *,
    X: torch.Tensor | None = None,
    W: torch.Tensor | None = None,
    G: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    deterministic: bool = True,
) -> PreparedProjection:
    """:func:`prepare_projection` by these entries: they check the operands and plan."""
    if op not in OPS:
        raise ValueError(f"op={op!r}; needs one of {', '.join(OPS)}")
    inputs = {"X": X, "W": W, "G": G}
    name1, name2, name = OPERANDS[op]
    first, second = inputs[name1], inputs[name2]
    if first is None or second is None:
        raise TypeError(f"{op} needs {name1 if first is None else name2}")
    options = Options(deterministic, False)
    made_by.check(op, first, second, out, out_dtype, options)
    target = made_by.new_output(op, first, second, out_dtype, options) if out is None else out
    operand.check_overlap(name, target, {name1: first, name2: second})
    return PreparedProjection(made_by.make(op, first, second, target, options), first, second, target)
