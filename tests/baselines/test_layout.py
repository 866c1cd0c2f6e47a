from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.gemm import Gemm, Unsupported
from baselines.layout import ColumnMajor, View, alignment, column_major, column_major_of


def laid_out(rows: int, cols: int, by_columns: bool, pad: int, free: int = 1) -> View:
    """A view with contiguous rows or columns, its lines padded; ``free`` is the stride of axes of size 1."""
    row, col = (1, rows + pad) if by_columns else (cols + pad, 1)
    return View(rows, cols, free if rows == 1 else row, free if cols == 1 else col)


def memory(view: View) -> tuple[np.ndarray, np.ndarray]:
    """A NaN-padded buffer and the view's matrix in it, filled with small integers (so products are exact)."""
    size = 1 + (view.rows - 1) * view.row_stride + (view.cols - 1) * view.col_stride
    flat = np.full(size, np.nan, dtype=np.float32)
    strides = (4 * view.row_stride, 4 * view.col_stride)
    matrix = np.lib.stride_tricks.as_strided(flat, (view.rows, view.cols), strides)
    matrix[...] = np.random.default_rng(size).integers(-8, 9, matrix.shape)
    return flat, matrix


def stored(flat: np.ndarray, rows: int, cols: int, ld: int) -> np.ndarray:
    """A column-major matrix in a buffer, which must hold all of it."""
    assert ld >= max(1, rows)
    assert ld * (cols - 1) + rows <= flat.size
    return np.lib.stride_tricks.as_strided(flat, (rows, cols), (4, 4 * ld))


def sgemm(call: ColumnMajor, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """Column-major SGEMM, as BLAS defines it, on flat buffers."""
    first, second = (b, a) if call.swapped else (a, b)
    left = stored(first, *call.stored_a, call.lda)
    right = stored(second, *call.stored_b, call.ldb)
    c = stored(out, call.m, call.n, call.ldc)
    c[...] = (left.T if call.transa else left) @ (right.T if call.transb else right)


def check(a: View, b: View, out: View) -> None:
    (flat_a, matrix_a), (flat_b, matrix_b), (flat_out, matrix_out) = memory(a), memory(b), memory(out)
    sgemm(column_major(a, b, out), flat_a, flat_b, flat_out)
    assert np.array_equal(matrix_out, matrix_a @ matrix_b)
    matrix_out[...] = np.nan
    assert np.isnan(flat_out).all()  # nothing but the view was written


@pytest.mark.parametrize("m, n, k", list(itertools.product((1, 2, 3), repeat=3)))
def test_every_layout_of_small_products(m: int, n: int, k: int) -> None:
    shapes = ((m, k), (k, n), (m, n))
    for turned in itertools.product((False, True), repeat=3):
        for pads in itertools.product((0, 1, 3), repeat=3):
            check(*(laid_out(*s, by, pad) for s, by, pad in zip(shapes, turned, pads, strict=True)))


sizes = st.integers(1, 9)
layouts = st.tuples(st.booleans(), st.integers(0, 20), st.integers(0, 50))


@settings(max_examples=200, deadline=None)
@given(sizes, sizes, sizes, layouts, layouts, layouts)
def test_any_layout_and_any_stride_of_size_one_axes(m, n, k, of_a, of_b, of_out) -> None:
    check(laid_out(m, k, *of_a), laid_out(k, n, *of_b), laid_out(m, n, *of_out))


def test_the_three_router_products_on_dense_tensors() -> None:
    T, H, N = 8, 32, 16
    X, W, G = torch.empty(T, H), torch.empty(N, H), torch.empty(T, N)
    fwd = column_major_of(Gemm("fwd", X, W.t(), torch.empty(T, N)))
    assert fwd == ColumnMajor(True, False, N, T, H, H, H, N, swapped=True)
    dgrad = column_major_of(Gemm("dgrad", G, W, torch.empty(T, H)))
    assert dgrad == ColumnMajor(False, False, H, T, N, H, N, H, swapped=True)
    wgrad = column_major_of(Gemm("wgrad", G.t(), X, torch.empty(N, H)))
    assert wgrad == ColumnMajor(False, True, H, N, T, H, N, H, swapped=True)


def test_an_output_with_contiguous_columns_is_not_swapped() -> None:
    call = column_major_of(Gemm("fwd", torch.empty(8, 32), torch.empty(32, 16), torch.empty(16, 8).t()))
    assert call == ColumnMajor(True, True, 8, 16, 32, 32, 16, 8, swapped=False)


@pytest.mark.parametrize("name", ["a", "b", "out"])
@pytest.mark.parametrize("strides", [(6, 2), (0, 1), (1, 1), (2, 1)])
def test_what_blas_cannot_express_is_unsupported_by_name(name: str, strides: tuple[int, int]) -> None:
    views = {"a": View(4, 3, 3, 1), "b": View(3, 5, 5, 1), "out": View(4, 5, 5, 1)}
    view = views[name]
    views[name] = View(view.rows, view.cols, *strides)
    with pytest.raises(
        Unsupported, match=rf"^{name} is {view.rows} x {view.cols} with strides .*needs stride 1"
    ):
        column_major(**views)


def test_alignment_is_a_power_of_two_up_to_256_bytes() -> None:
    assert [alignment(a) for a in (4, 12, 16, 4096, 4096 + 256, 8 * 33)] == [4, 4, 16, 256, 256, 8]
