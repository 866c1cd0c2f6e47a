"""What a tensor view means to a GEMM: layout, alignment, problem; every check of a call and its error text.

Pure in the sense that nothing is launched and nothing is copied: tensors are looked at, never read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch

Kind = Literal["fwd", "dgrad", "wgrad"]
#: What a GEMM may be: of a layer, or any product of two matrices.
AnyKind = Literal["fwd", "dgrad", "wgrad", "gemm"]

#: kind -> the names of its operands and of its output, in call order.
OPERANDS: dict[AnyKind, tuple[str, str, str]] = {
    "fwd": ("X", "W", "out"),
    "dgrad": ("G", "W", "dX"),
    "wgrad": ("G", "X", "dW"),
    "gemm": ("A", "B", "out"),
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
    """A matrix view ``[rows, cols]``: unit stride on axis ``unit``, ``ld`` elements a step on the other.

    ``batch`` matrices of it, ``batch_stride`` elements from one to the next (0: the same one).
    """

    rows: int
    cols: int
    ld: int
    unit: int
    dtype: str
    batch: int = 1
    batch_stride: int = 0

    def transposed(self) -> View:
        """The same memory seen as ``[cols, rows]``."""
        return replace(self, rows=self.cols, cols=self.rows, unit=1 - self.unit)


@dataclass(frozen=True)
class Problem:
    """One GEMM ``out[M, N] = a[M, K] @ b[K, N]`` as views, or a batch of them, and the kind of product it
    is.
    """

    kind: AnyKind
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

    @property
    def batch(self) -> int:
        """Matrices multiplied."""
        return self.out.batch

    def swapped(self) -> Problem:
        """The same product as its transpose: ``out^T = b^T a^T``."""
        return Problem(self.kind, self.b.transposed(), self.a.transposed(), self.out.transposed())


def describe(name: str, t: torch.Tensor) -> str:
    """A tensor in words, for messages."""
    dtype = str(t.dtype).removeprefix("torch.")
    memory = f"with strides {t.stride()}" if t.layout is torch.strided else f"of layout {t.layout}"
    return f"{name} is {dtype}{list(t.shape)} {memory} on {t.device}"


def check_tensor(
    name: str, t: object, dtypes: tuple[torch.dtype, ...] = (torch.float32,), *, batched: bool = False
) -> None:
    """Raise ``TypeError``/``ValueError`` unless ``t`` is a 2-D tensor (``batched``: of 2 dimensions or more)
    of one of ``dtypes`` on a CPU or CUDA device, whose memory says what it is.

    A lazily negated view (the imaginary part of a conjugate) is refused where a launch is first made; later
    calls, which ask 0.1 us less of a tensor, take its memory for what it is.
    """
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(t).__name__}")
    if t.dtype not in dtypes:
        wanted = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise TypeError(f"{describe(name, t)}; {name} must be {wanted}")
    if t.dim() != 2 and not (batched and t.dim() > 2):
        raise ValueError(f"{describe(name, t)}; {name} must have 2 dimensions{' or more' * batched}")
    if t.device.type not in ("cpu", "cuda") or t.layout is not torch.strided:
        raise ValueError(f"{describe(name, t)}; {name} must be a strided tensor on a CPU or a CUDA device")
    if t.is_neg():
        raise ValueError(f"{describe(name, t)}, lazily negated; pass {name}.resolve_neg()")


def check_same_device(tensors: dict[str, torch.Tensor]) -> None:
    """Raise ``ValueError`` unless all tensors are on one device."""
    if len({t.device for t in tensors.values()}) > 1:
        where = ", ".join(f"{name} on {t.device}" for name, t in tensors.items())
        raise ValueError(f"all tensors must be on one device, got {where}")


def check_shape(name: str, t: torch.Tensor, shape: tuple[int, ...], why: str) -> None:
    """Raise ``ValueError`` unless ``t`` has the shape; ``why`` says where the shape comes from."""
    if tuple(t.shape) != shape:
        raise ValueError(f"{name} has shape {list(t.shape)}, needs {list(shape)} ({why})")


def check_experts(name: str, n: int) -> None:
    """Raise ``ValueError`` unless N is a positive multiple of 8."""
    check_n(name, n, "experts", "W with zero rows")


def check_n(name: str, n: int, what: str, padding: str) -> None:
    """Raise ``ValueError`` unless N, which counts ``what``, is a positive multiple of 8; ``padding`` says how
    to make it one.
    """
    if n <= 0 or n % 8:
        raise ValueError(f"{name} has N={n} {what}; N must be a positive multiple of 8 (pad {padding})")


def view(name: str, t: torch.Tensor) -> View:
    """The view of a tensor's last two dimensions, or ``ValueError`` naming what is misaligned.

    Unit stride on one axis; the other stride and the base address a multiple of 16 bytes. Strides of size-1
    axes and of empty tensors are free.
    """
    rows, cols = shape = t.shape[-2:]
    strides = t.stride()[-2:]
    dtype = DTYPES[t.dtype]
    if not t.numel():
        return View(rows, cols, 0, 1, dtype)
    if max(rows, cols) > MAX_SIZE:
        raise ValueError(f"{describe(name, t)}; a side may have at most {MAX_SIZE} elements")
    unit = next((axis for axis in (1, 0) if strides[axis] == 1 or shape[axis] == 1), None)
    if unit is None:
        raise ValueError(
            f"{describe(name, t)}; one axis must have unit stride "
            "(pass a view with contiguous rows or columns)"
        )
    # A one-element-wide axis may stand in for the unit one, if the other axis can then be stepped through
    # aligned.
    other = 1 - unit
    step = ALIGNMENT // ITEMSIZE[dtype]
    if shape[other] > 1 and strides[other] % step and strides[other] == 1:
        unit, other = other, unit
    ld = strides[other] if shape[other] > 1 else 0
    if ld % step:
        need = -(-shape[unit] // step) * step
        raise ValueError(
            f"{describe(name, t)}; stride({other + t.dim() - 2}) must be a multiple of {step} elements "
            f"({ALIGNMENT} bytes): pad that stride, e.g. to {need}"
        )
    if t.data_ptr() % ALIGNMENT:
        raise ValueError(
            f"{describe(name, t)}; its address is {t.data_ptr() % ALIGNMENT} bytes past a multiple of "
            f"{ALIGNMENT}: start the view at a multiple of {step} elements"
        )
    return View(rows, cols, ld, unit, dtype)


def batched_view(name: str, t: torch.Tensor) -> View:
    """The view of a tensor of 2 dimensions or more, whose leading ones are one batch; ``ValueError`` as
    :func:`view`, and where they have no one stride, or one that is no multiple of 16 bytes.

    A stride of 0 (``expand``) is one matrix for all of the batch.
    """
    v = view(name, t)
    batch, step = math.prod(t.shape[:-2]), ALIGNMENT // ITEMSIZE[v.dtype]
    if not t.numel() or batch == 1:
        return replace(v, batch=batch)
    if batch > MAX_SIZE:
        raise ValueError(f"{describe(name, t)}; a batch may have at most {MAX_SIZE} matrices")
    axes = [(n, s) for n, s in zip(t.shape[:-2], t.stride()[:-2], strict=True) if n > 1]
    for (_, outer), (size, inner) in pairwise(axes):
        if outer != size * inner:
            raise ValueError(
                f"{describe(name, t)}; its leading dimensions must be one batch with one stride: pass "
                f"them flattened where they can be, else call for each of the outer ones"
            )
    stride = axes[-1][1]
    if stride % step:
        raise ValueError(
            f"{describe(name, t)}; the stride of its batch, {stride}, must be a multiple of {step} elements "
            f"({ALIGNMENT} bytes)"
        )
    return replace(v, batch=batch, batch_stride=stride)


def span(t: torch.Tensor) -> int:
    """Bytes from the first to the last of a view, both included; 0 for an empty one."""
    if not t.numel():
        return 0
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return (last + 1) * t.element_size()


def overlaps(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two views share a byte.

    Exact for disjoint ranges and for two slices of one buffer along any of its axes; else touching ranges
    count as shared.
    """
    if not x.numel() or not y.numel():
        return False
    x0, y0 = x.data_ptr(), y.data_ptr()
    if x0 + span(x) <= y0 or y0 + span(y) <= x0:
        return False
    mine, its = _steps(x), _steps(y)
    for line in {step for _, step in (*mine, *its)}:
        wx, wy = _inside(x, mine, line), _inside(y, its, line)
        gap = (y0 - x0) % line
        if wx and wy and wx <= gap and gap + wy <= line:
            return False
    return True


def _steps(t: torch.Tensor) -> list[tuple[int, int]]:
    """Size, and bytes a step, of the axes along which a view moves."""
    size = t.element_size()
    return [(n, s * size) for n, s in zip(t.shape, t.stride(), strict=True) if n > 1 and s]


def _inside(t: torch.Tensor, steps: Sequence[tuple[int, int]], line: int) -> int:
    """Bytes of a line that a view spans in each line it has a part in; 0 where some steps are longer than a
    line, but not whole lines.
    """
    if any(step > line and step % line for _, step in steps):
        return 0
    return t.element_size() + sum((n - 1) * step for n, step in steps if step < line)


def check_overlap(name: str, out: torch.Tensor, others: dict[str, torch.Tensor]) -> None:
    """Raise ``ValueError`` if ``out`` shares memory with another tensor of the call."""
    for other, t in others.items():
        if overlaps(out, t):
            raise ValueError(
                f"{name} overlaps {other} in memory; {name} must be a separate buffer or a disjoint slice"
            )


def output_view(name: str, out: torch.Tensor) -> View:
    """The view of an output: as :func:`batched_view`, and no element may share its place with another."""
    v = batched_view(name, out)
    if out.numel():
        reach = 1
        for stride, size in sorted((s, n) for n, s in zip(out.shape, out.stride(), strict=True) if n > 1):
            if stride < reach:
                raise ValueError(
                    f"{describe(name, out)}; it overlaps itself: every element needs a place of its own"
                )
            reach += (size - 1) * stride
    return v


def new_output(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An uninitialised row-major output; its row stride is padded to a multiple of 16 bytes."""
    step = ALIGNMENT // ITEMSIZE[DTYPES[dtype]]
    cols = shape[-1]
    if cols % step == 0:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.empty((*shape[:-1], -(-cols // step) * step), dtype=dtype, device=device)[..., :cols]
