"""Row-major products as the column-major calls that BLAS knows. Pure: views in, numbers out.

A row-major matrix is, byte for byte, its column-major transpose. So ``out = a @ b`` with contiguous rows of
``out`` is the column-major product ``out^T = b^T @ a^T`` (operands swapped), and with contiguous columns it
is ``out = a @ b`` as it stands. Each operand is then given plain or transposed, whichever its strides say.
A batch is the same call for every matrix, each operand moved on by its own batch stride.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from baselines.gemm import Gemm, Unsupported


@dataclass(frozen=True)
class View:
    """A matrix in memory, or ``batch`` of them: shape, and strides in elements.

    The stride of an axis of size 1 means nothing.
    """

    rows: int
    cols: int
    row_stride: int
    col_stride: int
    batch: int = 1
    batch_stride: int = 0

    @classmethod
    def of(cls, tensor: torch.Tensor) -> View:
        """The view of a 2-D tensor, or of a 3-D one, whose first axis is the batch."""
        *batch, rows, cols = tensor.shape
        *batch_stride, row_stride, col_stride = tensor.stride()
        return cls(rows, cols, row_stride, col_stride, *batch, *batch_stride)

    @property
    def t(self) -> View:
        """The transposed view of the same memory."""
        return View(self.cols, self.rows, self.col_stride, self.row_stride, self.batch, self.batch_stride)

    def column_ld(self) -> int | None:
        """The leading dimension if columns are contiguous and do not overlap, else ``None``."""
        if self.rows > 1 and self.row_stride != 1:
            return None
        ld = self.col_stride if self.cols > 1 else self.rows
        return ld if ld >= self.rows else None

    def step(self) -> int:
        """Elements from one matrix of the batch to the next, 0 where there is one only."""
        return self.batch_stride if self.batch > 1 else 0

    def disjoint(self) -> bool:
        """Whether no two matrices of a batch share an element: whole ones, or their lines, in turn."""
        if self.batch == 1:
            return True
        rows, cols = (self.rows, self.row_stride), (self.cols, self.col_stride)
        (length, unit), (lines, ld) = sorted((rows, cols), key=lambda axis: (axis[0] > 1) * axis[1])
        line = 1 + (length - 1) * unit
        whole = line + (lines - 1) * ld
        interleaved = self.step() >= line and (self.batch - 1) * self.step() + line <= ld
        return self.step() >= whole or interleaved


@dataclass(frozen=True)
class ColumnMajor:
    """A column-major call ``C[m, n] = op(A)[m, k] @ op(B)[k, n]``, ``batch`` times.

    ``op`` transposes A where ``transa`` and B where ``transb``. ``swapped`` says that A is the product's
    ``b`` and B its ``a``. Leading dimensions, and strides from one matrix of a batch to the next, are in
    elements.
    """

    transa: bool
    transb: bool
    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldc: int
    swapped: bool
    batch: int = 1
    stride_a: int = 0
    stride_b: int = 0
    stride_c: int = 0

    @property
    def stored_a(self) -> tuple[int, int]:
        """Rows and columns of A as it lies in memory, before ``op``."""
        return (self.k, self.m) if self.transa else (self.m, self.k)

    @property
    def stored_b(self) -> tuple[int, int]:
        """Rows and columns of B as it lies in memory, before ``op``."""
        return (self.n, self.k) if self.transb else (self.k, self.n)


def column_major(a: View, b: View, out: View) -> ColumnMajor:
    """``out[M, N] = a[M, K] @ b[K, N]``, for each matrix of their batch, as a column-major call.

    Raises ``Unsupported`` naming the view where no axis has unit stride, where lines overlap, or where
    matrices of the output do.
    """
    swapped = out.t.column_ld() is not None
    first, second, result = (b.t, a.t, out.t) if swapped else (a, b, out)
    ldc = result.column_ld()
    if ldc is None:
        raise _inexpressible("out", out)
    if not out.disjoint():
        raise Unsupported(
            f"out is a batch of {out.batch} with stride {out.batch_stride}, each {out.rows} x {out.cols} "
            f"with strides ({out.row_stride}, {out.col_stride}); BLAS needs outputs that do not overlap: one "
            f"after the other, or line by line in turn"
        )
    for name, view in (("a", a), ("b", b)):
        if view.column_ld() is None and view.t.column_ld() is None:
            raise _inexpressible(name, view)
    transa, lda = _operand(first)
    transb, ldb = _operand(second)
    return ColumnMajor(
        transa,
        transb,
        first.rows,
        second.cols,
        first.cols,
        lda,
        ldb,
        ldc,
        swapped,
        out.batch,
        first.step(),
        second.step(),
        result.step(),
    )


def column_major_of(gemm: Gemm) -> ColumnMajor:
    """:func:`column_major` of a product's tensors."""
    return column_major(View.of(gemm.a), View.of(gemm.b), View.of(gemm.out))


def _operand(view: View) -> tuple[bool, int]:
    """Whether ``view`` must be given transposed, and its leading dimension."""
    ld = view.column_ld()
    return (False, ld) if ld is not None else (True, view.t.column_ld() or 0)


def _inexpressible(name: str, view: View) -> Unsupported:
    return Unsupported(
        f"{name} is {view.rows} x {view.cols} with strides ({view.row_stride}, {view.col_stride}); BLAS "
        f"needs stride 1 on one axis and on the other at least the size of the first"
    )


def alignment(address: int, most: int = 256) -> int:
    """The largest power of two, up to ``most`` bytes, that divides ``address``."""
    return min(address & -address, most) if address else most
