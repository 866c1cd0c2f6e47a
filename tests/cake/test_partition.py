from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cake.plan import partition
from cake.plan.partition import CHUNK, MAX_SEGMENTS, Partition

sizes = st.integers(1, 200_000)


@given(k=sizes, splits=st.integers(1, MAX_SEGMENTS))
def test_segments_cover_k_once_and_are_aligned(k, splits):
    p = partition.pinned(k, splits)
    bounds = p.bounds
    assert bounds[0][0] == 0 and bounds[-1][1] == k and len(bounds) == p.segments <= splits
    assert all(end == begin for (_, end), (begin, _) in pairwise(bounds))
    assert all(begin % CHUNK == 0 and begin < end for begin, end in bounds)
    assert len({end - begin for begin, end in bounds[:-1]}) <= 1


@given(k=sizes)
def test_by_k_is_bounded(k):
    p = partition.by_k(k)
    assert 1 <= p.segments <= MAX_SEGMENTS
    if k <= partition.MIN_SEGMENT:
        assert p.segments == 1


@given(t=sizes, n=st.integers(1, 64).map(lambda i: 8 * i), h=st.integers(1, 20_000))
def test_wgrad_is_cut_only_where_tiles_are_few(t, n, h):
    p = partition.for_wgrad(t, n, h)
    tiles = -(-n // 128) * -(-h // 128)
    assert p.segments <= MAX_SEGMENTS
    if tiles > 64 or t <= partition.MIN_SEGMENT:
        assert p.segments == 1


def test_known_partitions():
    assert str(partition.by_k(6144)) == "K6144=16x384/64"
    assert str(partition.by_k(256)) == "K256=1x256/64"
    assert str(partition.for_wgrad(1024, 256, 6144)) == "K1024=1x1024/64"
    assert str(partition.for_wgrad(1024, 256, 4096)) == "K1024=2x512/64"
    assert str(partition.for_wgrad(4096, 8, 2048)) == "K4096=8x512/64"


@pytest.mark.parametrize("splits", [0, 17, -1])
def test_pinned_rejects(splits):
    with pytest.raises(ValueError, match=f"splits={splits}; needs 1 to 16"):
        partition.pinned(4096, splits)


def test_partition_rejects_unaligned_segments_and_too_many():
    with pytest.raises(ValueError, match="positive multiple of 64"):
        Partition(4096, 100)
    with pytest.raises(ValueError, match="64 segments, at most 16"):
        Partition(4096, 64)
