"""``router_linear``: the router's product inside a module that is trained or compiled.

Eagerly it is one autograd function around the eager calls. Wherever torch must see an operator
(``torch.compile``, dispatch modes, tensor subclasses) it is one, in ``torch.ops.<package>``: named after the
package, so that two versions register side by side.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from . import operand
from .launch.entry import Options
from .router import _check, router_backward, router_dgrad, router_forward, router_wgrad

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _direct(first: object, second: object) -> bool:
    """Whether only autograd has to see a call on these tensors: the dispatcher takes 20 us more, this 0.5."""
    return (
        not torch.compiler.is_compiling()
        and type(first) in _PLAIN
        and type(second) in _PLAIN
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._are_functorch_transforms_active()
    )


# --- views --------------------------------------------------------------------------------------------------


def _matrix(name: str, t: torch.Tensor) -> torch.Tensor:
    """``t[..., C]`` as ``[T, C]``: a view, or ``ValueError`` where only a copy would do."""
    if t.dim() == 2:
        return t
    if not t.dim():
        raise ValueError(f"{operand.describe(name, t)}; {name} must have at least 1 dimension")
    *lead, columns = t.shape
    try:
        return t.view(math.prod(lead), columns)
    except (RuntimeError, ValueError) as e:  # a fake tensor raises the latter
        raise ValueError(
            f"{operand.describe(name, t)}; its leading dimensions must flatten into one without a copy: "
            f"pass a view in which they do, or copy it by {name}.contiguous()"
        ) from e


def _gradient(g: torch.Tensor) -> torch.Tensor:
    """The incoming gradient as ``G[T, N]``: in place where the kernels can read it, else copied.

    It is autograd's and not the caller's, who could not lay it out. That of ``sum()`` is one number expanded
    to stride 0, which has no unit stride: nothing but writing it out makes a matrix of it.
    """
    if g.is_contiguous() and not g.data_ptr() % operand.ALIGNMENT:
        return _matrix("G", g)
    try:
        G = _matrix("G", g)
        operand.output_view("G", G)  # as an output: rows of stride 0 are written out as well
        return G
    except ValueError:
        return _matrix("G", g.clone(memory_format=torch.contiguous_format))


def _like(dx: torch.Tensor, lead: torch.Size) -> torch.Tensor:
    """``dX[T, H]`` as ``[..., H]``."""
    return dx if len(lead) == 1 else dx.view(*lead, dx.shape[1])


# --- what is computed ---------------------------------------------------------------------------------------


def _forward(x: torch.Tensor, w: torch.Tensor, deterministic: bool, emulation: str) -> torch.Tensor:
    out = router_forward(_matrix("X", x), w, deterministic=deterministic, emulation=emulation)
    # Not a view: autograd refuses to modify a function's output in place where it is one.
    return out if x.dim() == 2 else out.resize_(*x.shape[:-1], out.shape[1])


def _dgrad(
    g: torch.Tensor, w: torch.Tensor, dtype: torch.dtype, deterministic: bool, emulation: str
) -> torch.Tensor:
    dx = router_dgrad(_gradient(g), w, out_dtype=dtype, deterministic=deterministic, emulation=emulation)
    return _like(dx, g.shape[:-1])


def _wgrad(g: torch.Tensor, x: torch.Tensor, deterministic: bool, emulation: str) -> torch.Tensor:
    return router_wgrad(_gradient(g), _matrix("X", x), deterministic=deterministic, emulation=emulation)


def _backward(
    g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, deterministic: bool, emulation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    dx, dw = router_backward(
        _gradient(g),
        _matrix("X", x),
        w,
        out_dtype=x.dtype,
        deterministic=deterministic,
        emulation=emulation,
    )
    return _like(dx, x.shape[:-1]), dw


# --- what it looks like, for tracing ------------------------------------------------------------------------


def _fake_forward(x: torch.Tensor, w: torch.Tensor, deterministic: bool, emulation: str) -> torch.Tensor:
    _check("fwd", _matrix("X", x), w, None, None, Options(deterministic, emulation, None, False))
    return x.new_empty((*x.shape[:-1], w.shape[0]), dtype=torch.float32)


def _fake_dgrad(g: torch.Tensor, w: torch.Tensor, dtype: torch.dtype, *_: Any) -> torch.Tensor:
    rows = math.prod(g.shape[:-1])
    return _like(operand.new_output((rows, w.shape[1]), dtype, g.device), g.shape[:-1])


def _fake_wgrad(g: torch.Tensor, x: torch.Tensor, *_: Any) -> torch.Tensor:
    return operand.new_output((g.shape[-1], x.shape[-1]), torch.float32, g.device)


def _fake_backward(
    g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return _fake_dgrad(g, w, x.dtype), _fake_wgrad(g, x)


# --- autograd -----------------------------------------------------------------------------------------------


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    """Keep what the wanted gradients need, no more: X is kept for dW, W for dX."""
    x, w, *options = inputs
    ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, w if ctx.needs_input_grad[0] else None)
    ctx.dtype, ctx.options = x.dtype, options


def _gradients(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
    x, w = ctx.saved_tensors
    dgrad, wgrad, backward = _CALLS if _direct(g, g) else _OPERATORS
    dx = dw = None
    if x is None:
        dx = dgrad(g, w, ctx.dtype, *ctx.options)
    elif w is None:
        dw = wgrad(g, x, *ctx.options)
    else:
        dx, dw = backward(g, x, w, *ctx.options)
    return dx, dw, None, None


_gradients_once = once_differentiable(_gradients)


class RouterLinear(torch.autograd.Function):
    """The eager :func:`router_linear` of plain tensors."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        """The logits."""
        out = _forward(*inputs)
        _setup(ctx, inputs, out)
        return out

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        """The gradients that are wanted."""
        # Without create_graph nothing can be differentiated twice, and asking takes 2 us.
        return (_gradients_once if torch.is_grad_enabled() else _gradients)(ctx, g)


#: ``Function.apply`` itself first asks for functorch's transforms, which :func:`_direct` has: 1.8 us.
_apply = super(torch.autograd.Function, RouterLinear).apply

_NAMESPACE = __name__.rpartition(".")[0].replace(".", "_")
_library = torch.library.Library(_NAMESPACE, "FRAGMENT")


def _register(schema: str, call: Any, fake: Any) -> Any:
    """Make an operator of a call, and of what its outputs look like."""
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
    name = schema.partition("(")[0]
    _library.define(schema, tags=tags)
    _library.impl(name, call, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{_NAMESPACE}::{name}", fake, lib=_library)
    return getattr(getattr(torch.ops, _NAMESPACE), name).default


_OPTIONS = "bool deterministic, str emulation"
_operator = _register(f"router_linear(Tensor x, Tensor w, {_OPTIONS}) -> Tensor", _forward, _fake_forward)
torch.library.register_autograd(_operator, _gradients_once, setup_context=_setup, lib=_library)
_CALLS = (_dgrad, _wgrad, _backward)
_OPERATORS = (
    _register(
        f"router_linear_dgrad(Tensor g, Tensor w, ScalarType dtype, {_OPTIONS}) -> Tensor",
        _dgrad,
        _fake_dgrad,
    ),
    _register(f"router_linear_wgrad(Tensor g, Tensor x, {_OPTIONS}) -> Tensor", _wgrad, _fake_wgrad),
    _register(
        f"router_linear_backward(Tensor g, Tensor x, Tensor w, {_OPTIONS}) -> (Tensor, Tensor)",
        _backward,
        _fake_backward,
    ),
)


def router_linear(
    x: torch.Tensor, w: torch.Tensor, *, deterministic: bool = True, emulation: str = "bf16x3"
) -> torch.Tensor:
    """Router logits ``x[..., H] @ w[N, H].T`` with gradients, FP32 ``[..., N]``; x FP32 or BF16, w FP32.

    dX has x's dtype, dW is FP32; only what a gradient needs is kept for it. The leading dimensions of ``x``
    must flatten without a copy. Autocast does not change the call: it computes in the types that it is given.
    ``torch.compile`` sees one operator. No second derivatives: asking for them is an error.
    Options, accuracy and errors as :func:`cake.router_forward`.
    """
    if not _direct(x, w):
        for name, t in (("X", x), ("W", w)):
            if not isinstance(t, torch.Tensor):
                raise TypeError(f"{name} must be a torch.Tensor, got {type(t).__name__}")
        return _operator(x, w, deterministic, emulation)
    if torch.is_grad_enabled() and (x.requires_grad or w.requires_grad):
        return _apply(x, w, deterministic, emulation)
    return _forward(x, w, deterministic, emulation)
