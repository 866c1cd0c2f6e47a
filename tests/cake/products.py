"""Router products for tests: inputs, FP64 references, errors."""

from __future__ import annotations

from collections.abc import Callable

import torch

import cake

#: An element's error relative to the sum of |a||b| behind it, on hard inputs.
BOUND = 1e-6
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


def matrices(kind: str, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``a[M, K]`` and ``b[K, N]``, views of the operands."""
    return {"fwd": (first, second.t()), "dgrad": (first, second), "wgrad": (first.t(), second)}[kind]


def factors(kind: str, tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """FP64 ``a[M, K]`` and ``b[K, N]`` on the CPU."""
    return matrices(kind, *(t.double().cpu() for t in operands(kind, tensors)))


def reference(kind: str, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    a, b = factors(kind, tensors)
    return a @ b


def error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative Frobenius error; NaN stays NaN."""
    return float((result.double().cpu() - expected).norm() / expected.norm())


def componentwise(kind: str, tensors: dict[str, torch.Tensor], result: torch.Tensor) -> float:
    """The largest error of an element, relative to the sum of |a||b| behind it."""
    a, b = factors(kind, tensors)
    return float(((result.double().cpu() - a @ b).abs() / (a.abs() @ b.abs())).max())


def _spread(kind: str, first: torch.Tensor, second: torch.Tensor) -> None:
    for t in (first, second):
        t *= torch.exp2(torch.linspace(-40, 40, t.shape[0], device=t.device))[:, None]


def _outliers(kind: str, first: torch.Tensor, second: torch.Tensor) -> None:
    for t in (first, second):
        t[:, 5] = 1e6


def _huge(kind: str, first: torch.Tensor, second: torch.Tensor) -> None:
    first *= 2.0**126 / first.abs().max()
    second *= 2.0**-10
    first[2, 3] = 1.99 * 2.0**126


def _tiny(kind: str, first: torch.Tensor, second: torch.Tensor) -> None:
    first *= 2.0**-90
    second *= 2.0**40
    first[first.abs() < 2.0**-100] = 2.0**-100


def _cancelling(kind: str, first: torch.Tensor, second: torch.Tensor) -> None:
    a, b = matrices(kind, first, second)
    half = a.shape[1] // 2
    a[:, half : 2 * half] = a[:, :half] * (-1 - 2.0**-13)
    b[half : 2 * half] = b[:half]


#: What makes a product's operands hard, in place.
HARD: dict[str, Callable[[str, torch.Tensor, torch.Tensor], None]] = {
    "rows over 2^+-40": _spread,
    "outliers of 1e6": _outliers,
    "up to 2^127": _huge,
    "down to 2^-100": _tiny,
    "cancelling": _cancelling,
}
