"""The tensors of a row, made from its seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from baselines.gemm import Gemm
from bench.layers import DenseShape
from bench.suites import Row

OUTPUTS = {"bf16": torch.bfloat16, "f32": torch.float32}


@dataclass(frozen=True)
class Tensors:
    """A row's tensors: inputs X[T,H], W[N,H], G[T,N]; outputs out[T,N], dX[T,H], dW[N,H]. Of heads all have
    one axis more, the first one.
    """

    X: torch.Tensor
    W: torch.Tensor
    G: torch.Tensor
    out: torch.Tensor
    dX: torch.Tensor
    dW: torch.Tensor

    def output(self, kind: str) -> torch.Tensor:
        """The output tensor of a GEMM kind."""
        return {"fwd": self.out, "dgrad": self.dX, "wgrad": self.dW}[kind]

    def gemm(self, kind: str) -> Gemm:
        """The GEMM of a kind as the product of views that a library sees."""
        a, b = {
            "fwd": (self.X, self.W.mT),
            "dgrad": (self.G, self.W),
            "wgrad": (self.G.mT, self.X),
        }[kind]
        return Gemm(kind, a, b, self.output(kind))


def tensors_of(row: Row, device: torch.device | str) -> Tensors:
    """The tensors of a row of any suite, its outputs filled with NaN."""
    return dense_tensors(row, device) if row.suite == "dense" else router_tensors(row, device)


def router_tensors(row: Row, device: torch.device | str) -> Tensors:
    """FP32 inputs from the row's seed, X ~ N(0,1), W ~ 0.02 N, G ~ 0.001 N, and outputs filled with NaN."""
    s = row.router
    gen = torch.Generator().manual_seed(row.seed)

    def normal(m: int, n: int, scale: float) -> torch.Tensor:
        return (torch.randn(m, n, generator=gen) * scale).to(device)

    def poisoned(m: int, n: int) -> torch.Tensor:
        return torch.full((m, n), float("nan"), device=device)

    return Tensors(
        X=normal(s.T, s.H, 1.0),
        W=normal(s.N, s.H, 0.02),
        G=normal(s.T, s.N, 0.001),
        out=poisoned(s.T, s.N),
        dX=poisoned(s.T, s.H),
        dW=poisoned(s.N, s.H),
    )


def dense_tensors(row: Row, device: torch.device | str) -> Tensors:
    """BF16 inputs from the row's seed, X and G ~ N(0,1), W ~ K^-1/2 N, drawn on the device (a CPU would take
    seconds for 16384 x 16384), and outputs of the row's dtype filled with NaN.
    """
    gen = torch.Generator(device=device).manual_seed(row.seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=gen, device=device, dtype=torch.bfloat16)

    def poisoned(*size: int) -> torch.Tensor:
        return torch.full(size, float("nan"), device=device, dtype=OUTPUTS[row.out])

    return _arranged(row.dense, normal, poisoned)


def dense_views(row: Row) -> Tensors:
    """The tensors of a row of the dense suite as they are arranged, without memory."""

    def inputs(*size: int) -> torch.Tensor:
        return torch.empty(size, device="meta", dtype=torch.bfloat16)

    def outputs(*size: int) -> torch.Tensor:
        return torch.empty(size, device="meta", dtype=OUTPUTS[row.out])

    return _arranged(row.dense, inputs, outputs)


def _arranged(
    shape: DenseShape, normal: Callable[..., torch.Tensor], poisoned: Callable[..., torch.Tensor]
) -> Tensors:
    """The views of a layer's tensors, whose memory is made for a size by ``normal`` (inputs) and ``poisoned``
    (outputs).
    """
    layer, t = shape.layer, shape.T

    def tokens(whole: torch.Tensor, features: int) -> torch.Tensor:
        return whole[..., :features].transpose(0, 1) if layer.heads > 1 else whole

    def weight(whole: torch.Tensor) -> torch.Tensor:
        return whole if layer.weight == "out_in" else whole.mT

    heads = (layer.heads,) if layer.heads > 1 else ()
    x_size, g_size = (t, *heads, layer.slot or layer.K), (t, *heads, layer.N)
    w_size = (*heads, layer.N, layer.K) if layer.weight == "out_in" else (*heads, layer.K, layer.N)
    return Tensors(
        X=tokens(normal(*x_size), layer.K),
        W=weight(normal(*w_size).mul_(layer.K**-0.5)),
        G=tokens(normal(*g_size), layer.N),
        out=tokens(poisoned(*g_size), layer.N),
        dX=tokens(poisoned(*x_size), layer.K),
        dW=weight(poisoned(*w_size)),
    )


def shape_of(row: Row) -> dict[str, object]:
    """What facts and cells say of a row's shape."""
    if isinstance(row.shape, DenseShape):
        layer = row.shape.layer
        named = {"layer": layer.name, "K": layer.K, "out": row.out, "heads": layer.heads}
        return {"T": row.shape.T, "H": None, "N": layer.N, **named}
    return {"T": row.shape.T, "H": row.shape.H, "N": row.shape.N}
