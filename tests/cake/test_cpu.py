"""The CPU executor's own arithmetic; what it computes is tested through the router's contracts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cake.cpu import split_bf16x3, split_fp16x2
from cake.plan.partition import CHUNK

TINY = 2.0**-126
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
chunks = st.lists(floats, min_size=1, max_size=CHUNK)


def joined(h: torch.Tensor, low: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    """``2^e (h + 2^-11 l)`` in FP64."""
    return torch.exp2(e.double()) * (h.double() + low.double() / 2048)


@given(values=chunks)
@settings(deadline=None)
def test_bf16x3_parts_add_up_exactly(values):
    x = torch.tensor(values, dtype=torch.float32)
    parts = split_bf16x3(x)
    assert all(torch.equal(p, p.bfloat16().float()) for p in parts)
    # 24 bits in three parts of 8; below 2^-133 BF16 has no bits left.
    assert bool(((sum(p.double() for p in parts) - x.double()).abs() <= 2.0**-133).all())


@given(values=chunks)
@settings(deadline=None)
def test_fp16x2_is_within_2_to_the_minus_22(values):
    """Of normal values down to 2^-28 of the row-chunk's largest; a smaller one is off by 2^(e - 36)."""
    x = torch.tensor([values], dtype=torch.float32)
    h, low, e = split_fp16x2(x, 1)
    assert torch.equal(h, h.half().float()) and torch.equal(low, low.half().float())
    off = (joined(h, low, e) - x.double()).abs()
    # With e at its least, the largest value may lie below 2^14 when scaled.
    good = (x.abs() >= max(TINY, 2.0**-113)) & (x.abs().double() >= 2.0**-28 * x.abs().max().double())
    assert bool((off[good] <= 2.0**-22 * x[good].abs().double()).all())
    assert bool((off <= torch.maximum(2.0**-22 * x.abs().double(), torch.exp2(e.double() - 36))).all())


@given(values=chunks)
@settings(deadline=None)
def test_fp16x2_scales_to_below_2_to_the_15(values):
    x = torch.tensor([values], dtype=torch.float32)
    h, low, e = split_fp16x2(x, 1)
    largest = float(x.abs().max())
    expected = math.frexp(largest)[1] - 1 - 14 if largest >= TINY else -127
    assert int(e) == max(expected, -127)
    assert float(h.abs().max()) <= 2.0**15 and float(low.abs().max()) <= 2.0**14
    if e > -127:
        assert float(h.abs().max()) >= 2.0**14


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scales_lie_along_their_axis(axis):
    torch.manual_seed(0)
    x = torch.randn(3, 5, 7) * torch.exp2(torch.randint(-40, 40, (3, 5, 7)))
    h, low, e = split_fp16x2(x, axis)
    assert e.shape == tuple(1 if i == axis else n for i, n in enumerate(x.shape))
    off = (joined(h, low, e) - x.double()).abs()
    assert bool((off <= torch.maximum(2.0**-22 * x.abs().double(), torch.exp2(e.double() - 36))).all())


def test_bf16_is_split_like_the_rest():
    x = torch.randn(4, CHUNK).bfloat16()
    assert all(map(torch.equal, split_fp16x2(x, 1), split_fp16x2(x.float(), 1)))
    assert not split_fp16x2(torch.ones(1, CHUNK).bfloat16(), 1)[1].any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_so_in_its_chunk_alone(bad):
    x = torch.ones(2, CHUNK)
    x[0, 3] = bad
    h, low, _ = split_fp16x2(x, 1)
    assert not h[0, 3].isfinite() and h[1].isfinite().all() and low[1].isfinite().all()


def test_zeros():
    h, low, e = split_fp16x2(torch.zeros(2, CHUNK), 1)
    assert not h.any() and not low.any() and e.tolist() == [[-127], [-127]]
