"""What a tensor view means to a GEMM: layout, alignment, problem; every check of a call and its error text.

Pure in the sense that nothing is launched and nothing is copied: tensors are looked at, never read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Kind = Literal["fwd", "dgrad", "wgrad"]

#: kind -> the names of its operands and of its output, in call order.
OPERANDS: dict[Kind, tuple[str, str, str]] = {
    "fwd": ("X", "W", "out"),
    "dgrad": ("G", "W", "dX"),
    "wgrad": ("G", "X", "dW"),
}

#: dtype -> its name in programs, plans and messages.
DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16"}
TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}
ITEMSIZE = {"f32": 4, "bf16": 2}
ALIGNMENT = 16
#: Kernels count rows, columns and K in 32 bits (addresses in 64).
MAX_SIZE = 2**28


@dataclass(frozen=True)
class View:
    """A matrix view ``[rows, cols]``: unit stride on axis ``unit``, ``ld`` elements a step on the other."""

    rows: int
    cols: int
    ld: int
    unit: int
    dtype: str

    def transposed(self) -> View:
        """The same memory seen as ``[cols, rows]``."""
        return View(self.cols, self.rows, self.ld, 1 - self.unit, self.dtype)


@dataclass(frozen=True)
class Problem:
    """One GEMM ``out[M, N] = a[M, K] @ b[K, N]`` as views, and the kind of router product it is."""

    kind: Kind
    a: View
    b: View
    out: View

    @property
    def m(self) -> int:
        """Rows of the output."""
        return self.out.rows

    @property
    def n(self) -> int:
        """Columns of the output."""
        return self.out.cols

    @property
    def k(self) -> int:
        """Length of the sum behind an output element."""
        return self.a.cols


def describe(name: str, t: torch.Tensor) -> str:
    """A tensor in words, for messages."""
    dtype = str(t.dtype).removeprefix("torch.")
    memory = f"with strides {t.stride()}" if t.layout is torch.strided else f"of layout {t.layout}"
    return f"{name} is {dtype}{list(t.shape)} {memory} on {t.device}"


def check_tensor(name: str, t: object, dtypes: tuple[torch.dtype, ...] = (torch.float32,)) -> None:
    """Raise ``TypeError``/``ValueError`` unless ``t`` is a 2-D tensor of one of ``dtypes`` on a CPU or CUDA
    device, whose memory says what it is.

    A lazily negated view (the imaginary part of a conjugate) is refused where a launch is first made; later
    calls, which ask 0.1 us less of a tensor, take its memory for what it is.
    """
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(t).__name__}")
    if t.dtype not in dtypes:
        wanted = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise TypeError(f"{describe(name, t)}; {name} must be {wanted}")
    if t.dim() != 2:
        raise ValueError(f"{describe(name, t)}; {name} must have 2 dimensions")
    if t.device.type not in ("cpu", "cuda") or t.layout is not torch.strided:
        raise ValueError(f"{describe(name, t)}; {name} must be a strided tensor on a CPU or a CUDA device")
    if t.is_neg():
        raise ValueError(f"{describe(name, t)}, lazily negated; pass {name}.resolve_neg()")


def check_same_device(tensors: dict[str, torch.Tensor]) -> None:
    """Raise ``ValueError`` unless all tensors are on one device."""
    if len({t.device for t in tensors.values()}) > 1:
        where = ", ".join(f"{name} on {t.device}" for name, t in tensors.items())
        raise ValueError(f"all tensors must be on one device, got {where}")


def check_shape(name: str, t: torch.Tensor, shape: tuple[int, int], why: str) -> None:
    """Raise ``ValueError`` unless ``t`` has the shape; ``why`` says where the shape comes from."""
    if tuple(t.shape) != shape:
        raise ValueError(f"{name} has shape {list(t.shape)}, needs {list(shape)} ({why})")


def check_experts(name: str, n: int) -> None:
    """Raise ``ValueError`` unless N is a positive multiple of 8."""
    if n <= 0 or n % 8:
        raise ValueError(
            f"{name} has N={n} experts; N must be a positive multiple of 8 (pad W with zero rows)"
        )


def view(name: str, t: torch.Tensor) -> View:
    """The view of a 2-D tensor, or ``ValueError`` naming what is misaligned.

    Unit stride on one axis; the other stride and the base address a multiple of 16 bytes. Strides of size-1
    axes and of empty tensors are free.
    """
    rows, cols = t.shape
    dtype = DTYPES[t.dtype]
    if rows == 0 or cols == 0:
        return View(rows, cols, 0, 1, dtype)
    if max(rows, cols) > MAX_SIZE:
        raise ValueError(f"{describe(name, t)}; a side may have at most {MAX_SIZE} elements")
    unit = next((axis for axis in (1, 0) if t.stride(axis) == 1 or t.shape[axis] == 1), None)
    if unit is None:
        raise ValueError(
            f"{describe(name, t)}; one axis must have unit stride "
            "(pass a view with contiguous rows or columns)"
        )
    # A one-element-wide axis may stand in for the unit one, if the other axis can then be stepped through
    # aligned.
    other = 1 - unit
    step = ALIGNMENT // ITEMSIZE[dtype]
    if t.shape[other] > 1 and t.stride(other) % step and t.stride(other) == 1:
        unit, other = other, unit
    ld = t.stride(other) if t.shape[other] > 1 else 0
    if ld % step:
        need = -(-t.shape[unit] // step) * step
        raise ValueError(
            f"{describe(name, t)}; stride({other}) must be a multiple of {step} elements "
            f"({ALIGNMENT} bytes): pad that stride, e.g. to {need}"
        )
    if t.data_ptr() % ALIGNMENT:
        raise ValueError(
            f"{describe(name, t)}; its address is {t.data_ptr() % ALIGNMENT} bytes past a multiple of "
            f"{ALIGNMENT}: start the view at a multiple of {step} elements"
        )
    return View(rows, cols, ld, unit, dtype)


def span(t: torch.Tensor) -> int:
    """Bytes from the first to the last of a view, both included; 0 for an empty one."""
    if not t.numel():
        return 0
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return (last + 1) * t.element_size()


def overlaps(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two views with unit stride on one axis share a byte.

    Exact for disjoint ranges and for two column (or row) slices of one buffer; else touching ranges count as
    shared.
    """
    if not x.numel() or not y.numel():
        return False
    x0, y0 = x.data_ptr(), y.data_ptr()
    if x0 + span(x) <= y0 or y0 + span(y) <= x0:
        return False
    for axis in (0, 1):
        ld = x.stride(axis) * x.element_size()
        same = ld == y.stride(axis) * y.element_size() and x.stride(1 - axis) == y.stride(1 - axis) == 1
        if same and ld:
            wx, wy = x.shape[1 - axis] * x.element_size(), y.shape[1 - axis] * y.element_size()
            gap = (y0 - x0) % ld
            if wx <= gap and gap + wy <= ld:
                return False
    return True


def check_overlap(name: str, out: torch.Tensor, others: dict[str, torch.Tensor]) -> None:
    """Raise ``ValueError`` if ``out`` shares memory with another tensor of the call."""
    for other, t in others.items():
        if overlaps(out, t):
            raise ValueError(
                f"{name} overlaps {other} in memory; {name} must be a separate buffer or a disjoint slice"
            )


def output_view(name: str, out: torch.Tensor) -> View:
    """The view of an output: as :func:`view`, and no element may share its place with another."""
    v = view(name, out)
    lines, length = (v.rows, v.cols) if v.unit == 1 else (v.cols, v.rows)
    if lines > 1 and v.ld < length:
        raise ValueError(f"{describe(name, out)}; it overlaps itself: every element needs a place of its own")
    return v


def new_output(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An uninitialised row-major output; its row stride is padded to a multiple of 16 bytes."""
    step = ALIGNMENT // ITEMSIZE[DTYPES[dtype]]
    rows, cols = shape
    if cols % step == 0:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.empty((rows, -(-cols // step) * step), dtype=dtype, device=device)[:, :cols]
