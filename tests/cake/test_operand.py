from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cake import operand
from cake.operand import overlaps, view


def test_layouts():
    x = torch.empty(6, 8)
    assert view("X", x) == operand.View(6, 8, 8, 1, "f32")
    assert view("X", x.t()) == operand.View(8, 6, 8, 0, "f32")
    assert view("X", x.t()).transposed() == view("X", x)
    assert view("X", torch.empty(6, 8, dtype=torch.bfloat16)).dtype == "bf16"


@pytest.mark.parametrize("shape", [(5, 1), (1, 5), (1, 1), (0, 5), (5, 0)])
def test_strides_of_size_one_axes_and_empty_tensors_are_free(shape):
    x = torch.empty(64)[: shape[0] * shape[1]].as_strided(shape, (1, 1))
    v = view("X", x)
    assert (v.rows, v.cols, v.ld) == (*shape, 0)


def test_a_column_of_a_padded_buffer():
    v = view("X", torch.empty(5, 8)[:, :1])
    assert (v.unit, v.ld) == (1, 8)


def test_no_unit_stride():
    with pytest.raises(
        ValueError, match=r"X is float32\[4, 4\] with strides \(8, 2\) on cpu; one axis must have unit"
    ):
        view("X", torch.empty(4, 8)[:, ::2])


def test_misaligned_stride():
    with pytest.raises(
        ValueError, match=r"stride\(0\) must be a multiple of 4 elements \(16 bytes\).*e.g. to 8"
    ):
        view("W", torch.empty(4, 7))


def test_misaligned_base():
    with pytest.raises(
        ValueError, match="its address is 4 bytes past a multiple of 16: start the view at a multiple of 4"
    ):
        view("W", torch.empty(4, 8)[:, 1:5])


def test_a_side_the_kernels_cannot_count():
    with pytest.raises(ValueError, match=r"X is float32\[268435457, 8\].* a side may have at most 268435456"):
        view("X", torch.empty(1, 8).expand(2**28 + 1, 8))
    assert view("X", torch.empty(1, 8).expand(2**28, 8)).ld == 0


def test_output_overlapping_itself():
    with pytest.raises(ValueError, match="out is .* it overlaps itself"):
        operand.output_view("out", torch.empty(8).expand(4, 8))
    with pytest.raises(ValueError, match="overlaps itself"):
        operand.output_view("out", torch.empty(64).as_strided((4, 8), (4, 1)))


@st.composite
def slices(draw):
    rows, pitch = draw(st.integers(1, 5)), draw(st.integers(1, 12))
    first = draw(st.integers(0, pitch - 1))
    start = draw(st.integers(0, 4))
    return start, rows, pitch, first, draw(st.integers(1, pitch - first))


@given(a=slices(), b=slices(), same_pitch=st.booleans())
def test_overlap_is_never_missed_and_exact_for_slices_of_one_buffer(a, b, same_pitch):
    if same_pitch:
        b = (b[0], b[1], a[2], min(b[3], a[2] - 1), min(b[4], a[2] - min(b[3], a[2] - 1)))
    buffer = torch.zeros(400, dtype=torch.int32)

    def cut(s):
        start, rows, pitch, first, width = s
        return buffer.as_strided((rows, width), (pitch, 1), start * pitch + first)

    x, y = cut(a), cut(b)
    x.fill_(1)
    truth = bool(y.sum())
    found = overlaps(x, y)
    assert found or not truth
    if same_pitch and a[4] <= a[2] - a[3] and found:
        assert truth or x.shape[0] == 1 or y.shape[0] == 1


@pytest.mark.parametrize(("dtype", "step"), [(torch.float32, 4), (torch.bfloat16, 8)])
def test_new_outputs_are_padded(dtype, step):
    out = operand.new_output((3, step + 1), dtype, torch.device("cpu"))
    assert out.stride() == (2 * step, 1) and out.shape == (3, step + 1)
    assert operand.new_output((3, step), dtype, torch.device("cpu")).is_contiguous()


def test_a_lazily_negated_view_is_not_what_its_memory_says():
    x = torch._neg_view(torch.zeros(4, 8))
    with pytest.raises(ValueError, match=r"X is float32\[4, 8\] .*, lazily negated; pass X.resolve_neg\(\)"):
        operand.check_tensor("X", x)
    operand.check_tensor("X", x.resolve_neg())
