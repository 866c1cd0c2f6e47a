"""Router products for tests: inputs, FP64 references, errors."""

from __future__ import annotations

import torch

import cake

KINDS = ("fwd", "dgrad", "wgrad")
CALLS = {"fwd": cake.router_forward, "dgrad": cake.router_dgrad, "wgrad": cake.router_wgrad}
OPERANDS = {"fwd": ("X", "W"), "dgrad": ("G", "W"), "wgrad": ("G", "X")}


def padded(rows: int, cols: int, device, dtype=torch.float32) -> torch.Tensor:
    """Normal values, the row stride a multiple of 16 bytes; the padding is NaN, so that reading it shows."""
    buffer = torch.full((rows, -(-cols // 8) * 8), float("nan"), device=device, dtype=dtype)
    buffer[:, :cols] = torch.randn(rows, cols, dtype=torch.float32).to(device)
    return buffer[:, :cols]


def inputs(t: int, n: int, h: int, device, *, seed: int = 0, bf16: bool = False) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    x_dtype = torch.bfloat16 if bf16 else torch.float32
    return {"X": padded(t, h, device, x_dtype), "W": padded(n, h, device), "G": padded(t, n, device)}


def operands(kind: str, tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = OPERANDS[kind]
    return tensors[first], tensors[second]


def call(kind: str, tensors: dict[str, torch.Tensor], **options) -> torch.Tensor:
    return CALLS[kind](*operands(kind, tensors), **options)


def factors(kind: str, tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """FP64 ``a[M, K]`` and ``b[K, N]`` on the CPU."""
    first, second = (t.double().cpu() for t in operands(kind, tensors))
    return {"fwd": (first, second.t()), "dgrad": (first, second), "wgrad": (first.t(), second)}[kind]


def reference(kind: str, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    a, b = factors(kind, tensors)
    return a @ b


def error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative Frobenius error; NaN stays NaN."""
    return float((result.double().cpu() - expected).norm() / expected.norm())
