from __future__ import annotations

import itertools
from dataclasses import replace

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


def batched(view: View, batch: int, interleaved: bool, pad: int) -> View:
    """That matrix ``batch`` times: whole ones one after the other, or line by line in turn, as heads lie."""
    by_columns = view.column_ld() is not None
    length, lines = (view.rows, view.cols) if by_columns else (view.cols, view.rows)
    ld = view.col_stride if by_columns else view.row_stride
    if not interleaved:
        return replace(view, batch=batch, batch_stride=lines * max(ld, length) + pad)
    step = length + pad
    row, col = (1, batch * step) if by_columns else (batch * step, 1)
    return View(view.rows, view.cols, row, col, batch, step)


def batch_memory(view: View) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`memory`, all matrices of a batch in it."""
    shape, strides = (
        (view.batch, view.rows, view.cols),
        (view.batch_stride, view.row_stride, view.col_stride),
    )
    size = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    flat = np.full(size, np.nan, dtype=np.float32)
    matrices = np.lib.stride_tricks.as_strided(flat, shape, [4 * stride for stride in strides])
    matrices[...] = np.random.default_rng(size).integers(-8, 9, shape)
    return flat, matrices


ways = st.tuples(st.booleans(), st.integers(0, 20))


@settings(max_examples=200, deadline=None)
@given(sizes, sizes, sizes, st.integers(1, 5), layouts, layouts, layouts, ways, ways, ways, st.booleans())
def test_any_batch_one_after_the_other_in_turn_or_shared(
    m, n, k, batch, of_a, of_b, of_out, way_a, way_b, way_out, shared
) -> None:
    a = batched(laid_out(m, k, *of_a), batch, *way_a)
    b = laid_out(k, n, *of_b)
    b = replace(b, batch=batch) if shared else batched(b, batch, *way_b)
    out = batched(laid_out(m, n, *of_out), batch, *way_out)
    call = column_major(a, b, out)
    assert call.batch == batch
    (flat_a, all_a), (flat_b, all_b), (flat_out, all_out) = map(batch_memory, (a, b, out))
    stride_a, stride_b = (call.stride_b, call.stride_a) if call.swapped else (call.stride_a, call.stride_b)
    for i in range(batch):
        sgemm(call, flat_a[i * stride_a :], flat_b[i * stride_b :], flat_out[i * call.stride_c :])
    assert np.array_equal(all_out, all_a @ all_b)
    all_out[...] = np.nan
    assert np.isnan(flat_out).all()  # nothing but the views was written


def test_heads_inside_a_slot_are_a_strided_batch() -> None:
    T, heads, K, N, slot = 6, 4, 24, 16, 32
    X = torch.empty(T, heads, slot)[..., :K].transpose(0, 1)
    G = torch.empty(T, heads, N).transpose(0, 1)
    W = torch.empty(heads, N, K)
    fwd = column_major_of(Gemm("fwd", X, W.mT, G))
    assert fwd == ColumnMajor(True, False, N, T, K, K, heads * slot, heads * N, True, heads, N * K, slot, N)
    wgrad = column_major_of(Gemm("wgrad", G.mT, X, W))
    assert wgrad == ColumnMajor(False, True, K, N, T, heads * slot, heads * N, K, True, heads, slot, N, N * K)


def test_a_batch_of_one_has_no_strides() -> None:
    call = column_major_of(Gemm("fwd", torch.empty(1, 4, 8), torch.empty(1, 8, 3), torch.empty(1, 4, 3)))
    assert (call.batch, call.stride_a, call.stride_b, call.stride_c) == (1, 0, 0, 0)


@pytest.mark.parametrize("step", [0, 4, 15])
def test_outputs_that_overlap_are_unsupported(step: int) -> None:
    a, b = View(4, 3, 3, 1, 2, 12), View(3, 5, 5, 1, 2, 15)
    with pytest.raises(Unsupported, match=rf"^out is a batch of 2 with stride {step}, .*do not overlap"):
        column_major(a, b, View(4, 5, 5, 1, 2, step))


def test_alignment_is_a_power_of_two_up_to_256_bytes() -> None:
    assert [alignment(a) for a in (4, 12, 16, 4096, 4096 + 256, 8 * 33)] == [4, 4, 16, 256, 256, 8]
