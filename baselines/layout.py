"""Row-major products as the column-major calls that BLAS knows. Pure: views in, numbers out.

A row-major matrix is, byte for byte, its column-major transpose. So ``out = a @ b`` with contiguous rows of
``out`` is the column-major product ``out^T = b^T @ a^T`` (operands swapped), and with contiguous columns it
is ``out = a @ b`` as it stands. Each operand is then given plain or transposed, whichever its strides say.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from baselines.gemm import Gemm, Unsupported


@dataclass(frozen=True)
class View:
    """A matrix in memory: shape, and strides in elements. The stride of an axis of size 1 means nothing."""

    rows: int
    cols: int
    row_stride: int
    col_stride: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> View:
        """The view of a 2-D tensor."""
        return cls(*tensor.shape, *tensor.stride())

    @property
    def t(self) -> View:
        """The transposed view of the same memory."""
        return View(self.cols, self.rows, self.col_stride, self.row_stride)

    def column_ld(self) -> int | None:
        """The leading dimension if columns are contiguous and do not overlap, else ``None``."""
        if self.rows > 1 and self.row_stride != 1:
            return None
        ld = self.col_stride if self.cols > 1 else self.rows
        return ld if ld >= self.rows else None


@dataclass(frozen=True)
class ColumnMajor:
    """A column-major call ``C[m, n] = op(A)[m, k] @ op(B)[k, n]``.

    ``op`` transposes A where ``transa`` and B where ``transb``. ``swapped`` says that A is the product's
    ``b`` and B its ``a``. Leading dimensions are in elements.
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

    @property
    def stored_a(self) -> tuple[int, int]:
        """Rows and columns of A as it lies in memory, before ``op``."""
        return (self.k, self.m) if self.transa else (self.m, self.k)

    @property
    def stored_b(self) -> tuple[int, int]:
        """Rows and columns of B as it lies in memory, before ``op``."""
        return (self.n, self.k) if self.transb else (self.k, self.n)


def column_major(a: View, b: View, out: View) -> ColumnMajor:
    """``out[M, N] = a[M, K] @ b[K, N]`` as a column-major call.

    Raises ``Unsupported`` naming the view where no axis has unit stride, or where lines overlap.
    """
    swapped = out.t.column_ld() is not None
    first, second, result = (b.t, a.t, out.t) if swapped else (a, b, out)
    ldc = result.column_ld()
    if ldc is None:
        raise _inexpressible("out", out)
    for name, view in (("a", a), ("b", b)):
        if view.column_ld() is None and view.t.column_ld() is None:
            raise _inexpressible(name, view)
    transa, lda = _operand(first)
    transb, ldb = _operand(second)
    return ColumnMajor(transa, transb, first.rows, second.cols, first.cols, lda, ldb, ldc, swapped)


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
