"""The FP32 router GEMM: FP32 accuracy out of 16-bit tensor cores, forward and both gradients.

``X[T, H]`` tokens, ``W[N, H]`` experts, ``G[T, N]`` the gradient of the logits. All are views: unit stride on
one axis, the other stride and the base address multiples of 16 bytes, N a positive multiple of 8, T and H any
size. Nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch

from . import operand, projection
from .launch import routes
from .launch.calls import Calls, Given, stream_of
from .launch.entry import Both, Entry, Options, addresses, current_stream, own_workspace, product
from .launch.router import WORKSPACES, forget_kernels
from .operand import OPERANDS, Kind
from .plan.backward import BackwardPlan

Op = Literal["fwd", "dgrad", "wgrad", "bwd", "2fwd+bwd"]

#: op -> the GEMMs it consists of, in order. ``2fwd+bwd`` is a checkpointed training step.
OPS: dict[str, tuple[Kind, ...]] = {
    "fwd": ("fwd",),
    "dgrad": ("dgrad",),
    "wgrad": ("wgrad",),
    "bwd": ("dgrad", "wgrad"),
    "2fwd+bwd": ("fwd", "fwd", "dgrad", "wgrad"),
}

#: Entries the eager cache keeps.
MAX_ENTRIES = 512


def _output_shape(kind: Kind, first: torch.Tensor, second: torch.Tensor) -> tuple[int, int]:
    a, b = product(kind, first, second)
    return a.shape[0], b.shape[1]


def _output_dtype(kind: Kind, asked: torch.dtype | None) -> torch.dtype:
    """FP32, except that dX may be BF16 where X is."""
    allowed = (torch.float32, torch.bfloat16) if kind == "dgrad" else (torch.float32,)
    if asked is None:
        return torch.float32
    if asked not in allowed:
        wanted = " or ".join(str(d).removeprefix("torch.") for d in allowed)
        raise TypeError(f"out_dtype={asked} for {OPERANDS[kind][2]}; needs {wanted}")
    return asked


def _check_inputs(kind: Kind, first: torch.Tensor, second: torch.Tensor) -> None:
    """Types, devices, shapes and N of a GEMM's inputs (errors as in :mod:`cake.operand`)."""
    name1, name2, _ = OPERANDS[kind]
    for name, t in ((name1, first), (name2, second)):
        operand.check_tensor(name, t, (torch.float32, torch.bfloat16) if name == "X" else (torch.float32,))
    operand.check_same_device({name1: first, name2: second})
    shared1, shared2, letter = {"fwd": (1, 1, "H"), "dgrad": (1, 0, "N"), "wgrad": (0, 0, "T")}[kind]
    if first.shape[shared1] != second.shape[shared2]:
        raise ValueError(
            f"{name1}{list(first.shape)} and {name2}{list(second.shape)} disagree about {letter}: "
            f"{first.shape[shared1]} and {second.shape[shared2]}"
        )
    operand.check_experts("W" if kind == "fwd" else "G", second.shape[0] if kind == "fwd" else first.shape[1])


def _check_features(X: torch.Tensor, W: torch.Tensor) -> None:
    """A backward pass never multiplies X and W, yet both have H columns."""
    if X.shape[1] != W.shape[1]:
        raise ValueError(
            f"X{list(X.shape)} and W{list(W.shape)} disagree about H: {X.shape[1]} and {W.shape[1]}"
        )


def _check_out(
    kind: Kind, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor, asked: torch.dtype | None
) -> None:
    """Type, device and shape of a caller's output. ``asked`` is its ``out_dtype``; dX may be BF16 unasked."""
    name1, name2, name = OPERANDS[kind]
    if asked is None and kind == "dgrad":
        operand.check_tensor(name, out, (torch.float32, torch.bfloat16))
    else:
        operand.check_tensor(name, out, (_output_dtype(kind, asked),))
    shape = _output_shape(kind, first, second)
    operand.check_shape(name, out, shape, f"from {name1}{list(first.shape)} and {name2}{list(second.shape)}")
    operand.check_same_device({name: out, name1: first})


def _check(
    kind: Kind,
    first: torch.Tensor,
    second: torch.Tensor,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    options: Options,
) -> None:
    """All that can be wrong with a call but for views and overlaps."""
    options.check()
    _check_inputs(kind, first, second)
    if out is not None:
        _check_out(kind, first, second, out, out_dtype)


class Entries(Calls[Entry]):
    """The bounded cache of eager calls, and what makes the entries.

    ``last`` has under ``bwd`` the entry of dX, which keeps what does both gradients.
    """

    def options(self, given: Given) -> Options:
        """As a named tuple."""
        options = Options(*given)
        options.check()
        return options

    def check(
        self,
        kind: Kind,
        first: torch.Tensor,
        second: torch.Tensor,
        out: torch.Tensor | None,
        out_dtype: torch.dtype | None,
        options: Options,
    ) -> None:
        """Types, devices, shapes and N."""
        _check(kind, first, second, out, out_dtype, options)

    def new_output(
        self,
        kind: Kind,
        first: torch.Tensor,
        second: torch.Tensor,
        out_dtype: torch.dtype | None,
        options: Options,
    ) -> torch.Tensor:
        """FP32 unless dX is asked for in BF16."""
        shape = _output_shape(kind, first, second)
        return operand.new_output(shape, _output_dtype(kind, out_dtype), first.device)

    def make(
        self, kind: Kind, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor, options: Options
    ) -> Entry:
        """A planned router GEMM."""
        return Entry(kind, first, second, out, options)

    def both(self, dgrad: Entry, wgrad: Entry) -> Both:
        """What does both: kept with the first entry as long as it is asked for with the same second one."""
        both = dgrad.both
        if both is None or both.wgrad is not wgrad:
            both = dgrad.both = Both(dgrad, wgrad)
        return both


_entries = Entries(MAX_ENTRIES)


def router_forward(
    X: torch.Tensor,
    W: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    deterministic: bool = True,
    emulation: str = "bf16x3",
    splits: int | None = None,
    pdl: bool = False,
) -> torch.Tensor:
    """Router logits ``out[T, N] = X[T, H] @ W[N, H].T``, FP32.

    X is FP32 or BF16, W FP32, ``out`` FP32 (a new tensor if not given; a view is written in place, the rest
    of its buffer stays). ``deterministic=True``: the same bits every time, for a token whatever its batch.
    ``deterministic=False`` may add partial sums in any order, and follows the device's routes
    (:func:`cake.set_routes`). ``emulation`` names the split product: ``bf16x3``, six 16-bit products for one
    of FP32, or ``fp16x2``, three, on GPUs of architecture sm_90a and on the CPU (elsewhere a ``ValueError``).
    ``splits`` pins the number of K segments (1 to 16). ``pdl=True`` lets the launch overlap the end of the
    stream's last kernel where the GPU can (compute capability 9.0 and newer).

    Relative Frobenius error against FP64 about 2e-7; an element is within 1e-6 of the sum of |x||w| behind it
    where operands are 0 or of magnitude 2^-100 to 2^127, with ``fp16x2`` also at least 2^-28 of the largest
    one of their row-chunk: the 64 neighbours along the sum. Smaller operands lose low bits, never more than
    2^-133 each, with ``fp16x2`` than 2^-50 of that largest one; a non-finite operand gives inf or NaN.
    Autograd does not see the call: the result has no gradient. Raises ``TypeError`` or ``ValueError`` naming
    the tensor, what it has and what is needed.
    """
    return _entries.call("fwd", X, W, out, out_dtype, (deterministic, emulation, splits, pdl))


def router_dgrad(
    G: torch.Tensor,
    W: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    deterministic: bool = True,
    emulation: str = "bf16x3",
    splits: int | None = None,
    pdl: bool = False,
) -> torch.Tensor:
    """Input gradient ``dX[T, H] = G[T, N] @ W[N, H]``; ``out_dtype`` FP32 (default) or BF16.

    A new ``dX`` has a row stride that is a multiple of 16 bytes. Options and errors as
    :func:`router_forward`.
    """
    return _entries.call("dgrad", G, W, out, out_dtype, (deterministic, emulation, splits, pdl))


def router_wgrad(
    G: torch.Tensor,
    X: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    deterministic: bool = True,
    emulation: str = "bf16x3",
    splits: int | None = None,
    pdl: bool = False,
) -> torch.Tensor:
    """Weight gradient ``dW[N, H] = G[T, N].T @ X[T, H]``, FP32; X FP32 or BF16.

    Options and errors as :func:`router_forward`; the K partition here depends on T, N and H.
    """
    return _entries.call("wgrad", G, X, out, out_dtype, (deterministic, emulation, splits, pdl))


def router_backward(
    G: torch.Tensor,
    X: torch.Tensor,
    W: torch.Tensor,
    *,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    out_dtype: torch.dtype | None = None,
    deterministic: bool = True,
    emulation: str = "bf16x3",
    splits: int | None = None,
    pdl: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both gradients ``(dX, dW)``, the bits of :func:`router_dgrad` and :func:`router_wgrad`; on GPUs of
    architecture sm_90a in one launch where G, X and W lie in rows and the sum over T is not split.

    ``out`` is a pair ``(dX, dW)``; ``out_dtype`` is dX's. Options and errors as :func:`router_forward`.
    """
    given_dx, given_dw = _pair(out)
    given, last = (deterministic, emulation, splits, pdl), _entries.last
    dgrad = last.get("bwd")
    both = dgrad.both if dgrad is not None else None
    if dgrad is not None and both is not None and given_dx is not None and given_dw is not None:
        try:
            at_g = G.data_ptr()
            at_dx, at_dw = (
                (at_g, W.data_ptr(), given_dx.data_ptr()),
                (at_g, X.data_ptr(), given_dw.data_ptr()),
            )
            here = (at_dx, at_dw) == both.at
            repeats = both.repeats(given, out_dtype, here, G, X, W, given_dx, given_dw)
        except (AttributeError, RuntimeError):  # no dense tensor: said below
            repeats = False
        if repeats and (
            here
            or (
                dgrad.takes(G, W, given_dx, at_dx)
                and both.wgrad.takes(G, X, given_dw, at_dw)
                and both.takes(dgrad, at_dx, at_dw)
            )
        ):
            dgrad.used = both.wgrad.used = True
            both.run(dgrad, (G, W, given_dx), (G, X, given_dw), at_dx, at_dw, both.stream)
            return given_dx, given_dw
    stream, generation = stream_of(G), routes.generation
    # Both are resolved before either runs: a call that fails leaves both outputs as they were, and the host
    # does not think between the two launches.
    dgrad, dx, at_dx = _entries.resolve("dgrad", G, W, given_dx, out_dtype, given, stream, bind=False)
    wgrad, dw, at_dw = _entries.resolve("wgrad", G, X, given_dw, None, given, stream, bind=False)
    _check_features(X, W)
    both = _entries.both(dgrad, wgrad)
    if out is not None and not both.takes(dgrad, at_dx, at_dw):
        operand.check_overlap("dX", dx, {"X": X, "dW": dw})
        operand.check_overlap("dW", dw, {"W": W})
    both.run(dgrad, (G, W, dx), (G, X, dw), at_dx, at_dw, stream)
    if dx is given_dx and dw is given_dw and dgrad.kept and wgrad.kept and splits is None:
        both.stream, both.generation = stream, generation
        both.found(given, out_dtype, G, X, W, dx, dw)
        last["bwd"] = dgrad
    return dx, dw


def _pair(out: Any) -> tuple[Any, Any]:
    """The outputs of a backward pass as given; both may be None."""
    if out is None:
        return None, None
    if not isinstance(out, tuple | list) or len(out) != 2:
        raise TypeError(f"out must be a pair (dX, dW), got {type(out).__name__}")
    dx, dw = out
    return dx, dw


class PreparedRouter:
    """An op bound to its tensors: calling it enqueues all its GEMMs on the current stream, allocating
    nothing.

    ``outputs`` are the tensors written, by name (``out``, ``dX``, ``dW``); ``plans`` has one plan a GEMM,
    ``backward`` how the last two are one launch, or None. It owns its workspace and can be captured from its
    first call on, on any stream; one replay or call may be in flight at a time. A graph that captured it
    works on its tensors and workspace: keep it as long as that.
    """

    def __init__(
        self, op: str, steps: list[tuple[Entry, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]
    ) -> None:
        self.op = op
        self.steps = tuple(steps)
        self.outputs = {OPERANDS[entry.kind][2]: tensors[2] for entry, tensors in steps}
        self.plans = tuple(entry.plan for entry, _ in steps if entry.plan is not None)
        device = steps[0][1][0].device
        workspace = own_workspace(
            op,
            device,
            max((p.partial_floats for p in self.plans), default=0),
            max((p.counters for p in self.plans), default=0),
        )
        self._device = device
        self._calls: list[Callable[[int], None]] = []
        #: Both gradients as one launch, where they are one.
        self.backward: BackwardPlan | None = None
        two = len(steps) - 2 if len(steps) > 1 else len(steps)
        for entry, tensors in steps[:two]:
            entry.bind(workspace)
            self._calls.append(partial(entry.run, *tensors, addresses(*tensors)))
        if steps[two:]:
            (dgrad, dx), (wgrad, dw) = steps[two:]
            both = Both(dgrad, wgrad, workspace)
            self.backward = both.plan
            self._calls.append(partial(both.run, dgrad, dx, dw, addresses(*dx), addresses(*dw)))

    def __call__(self) -> None:
        """Run the op once."""
        stream = current_stream(self._device)
        for call in self._calls:
            call(stream)


def prepare_router(
    op: Op,
    *,
    X: torch.Tensor | None = None,
    W: torch.Tensor | None = None,
    G: torch.Tensor | None = None,
    out: Any = None,
    out_dtype: torch.dtype | None = None,
    deterministic: bool = True,
    emulation: str = "bf16x3",
    splits: int | None = None,
    pdl: bool = False,
) -> PreparedRouter:
    """Bind an op to tensors: everything is checked, planned, compiled and allocated here, nothing when it is
    called.

    ``op`` is ``fwd`` (X, W), ``dgrad`` (G, W), ``wgrad`` (G, X), ``bwd`` or ``2fwd+bwd`` (all three). ``out``
    is the output, for ``bwd`` a pair ``(dX, dW)``, for ``2fwd+bwd`` a triple ``(out, dX, dW)``; new tensors
    where not given. Options and errors as :func:`router_forward`.
    """
    if op not in OPS:
        raise ValueError(f"op={op!r}; needs one of {', '.join(OPS)}")
    options = Options(deterministic, emulation, splits, pdl)
    options.check()
    inputs = {"X": X, "W": W, "G": G}
    names = list(dict.fromkeys(OPERANDS[kind][2] for kind in OPS[op]))
    if out is None:
        out = (None,) * len(names)
    elif len(names) == 1:
        out = (out,)
    if not isinstance(out, tuple | list) or len(out) != len(names):
        raise TypeError(f"out for {op} must be ({', '.join(names)}), got {type(out).__name__}")
    outputs: dict[str, Any] = dict(zip(names, out, strict=True))
    for kind in OPS[op]:
        for name in OPERANDS[kind][:2]:
            if inputs[name] is None:
                raise TypeError(f"{op} needs {name}")
    steps = []
    for kind in OPS[op]:
        name1, name2, name = OPERANDS[kind]
        first, second = inputs[name1], inputs[name2]
        assert first is not None and second is not None
        _check_inputs(kind, first, second)
        dtype = out_dtype if kind == "dgrad" or op == kind else None
        if outputs[name] is None:
            shape = _output_shape(kind, first, second)
            outputs[name] = operand.new_output(shape, _output_dtype(kind, dtype), first.device)
        target = outputs[name]
        _check_out(kind, first, second, target, dtype)
        others = {k: t for k, t in (inputs | outputs).items() if t is not None and k != name}
        operand.check_overlap(name, target, others)
        steps.append((_entries.make(kind, first, second, target, options), (first, second, target)))
    if len(steps) > 1 and X is not None and W is not None:
        _check_features(X, W)
    return PreparedRouter(op, steps)


def clear_caches() -> None:
    """Drop every cached launch, program and workspace. What prepared launches and graphs hold stays valid.

    Programs are loaded anew when next needed; the old code stays on the device for the life of the process.
    """
    _entries.clear()
    projection.entries.clear()
    WORKSPACES.clear()
    forget_kernels()
