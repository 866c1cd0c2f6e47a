from __future__ import annotations

from collections import Counter
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.schedule import passes, position_counts, rotation

ARMS = st.lists(st.text("abcdefgh_", min_size=1, max_size=6), min_size=1, max_size=12, unique=True)


@given(ARMS, st.integers(1, 40))
def test_every_arm_stands_at_every_position_equally_often(arms, groups):
    orders = rotation(arms, groups)
    assert all(sorted(order) == sorted(arms) for order in orders)
    assert groups <= len(orders) < groups + 2 * len(arms)
    share = len(orders) // len(arms)
    assert position_counts(orders) == {arm: (share,) * len(arms) for arm in arms}


@given(ARMS, st.integers(1, 40))
def test_every_arm_comes_right_behind_every_other_equally_often(arms, groups):
    orders = rotation(arms, groups)
    behind = Counter(pair for order in orders for pair in pairwise(order))
    assert set(behind) == set(permutations(arms, 2)) and len(set(behind.values())) <= 1


def test_orders_are_spelled_out():
    assert rotation(["a", "b", "c", "d"], 5) == [
        ("a", "d", "b", "c"),
        ("b", "a", "c", "d"),
        ("c", "b", "d", "a"),
        ("d", "c", "a", "b"),
        ("c", "b", "d", "a"),
        ("d", "c", "a", "b"),
        ("a", "d", "b", "c"),
        ("b", "a", "c", "d"),
    ]


def test_bad_arguments():
    with pytest.raises(ValueError, match="arms must differ from each other, got a, a"):
        rotation(["a", "a"], 3)
    with pytest.raises(ValueError, match="groups must be positive, got 0"):
        rotation(["a"], 0)
    assert rotation([], 3) == []


@given(ARMS, st.integers(1, 20))
def test_every_pass_is_balanced_by_itself(arms, count):
    orders = passes(arms, count)
    assert len(orders) == count
    for order in orders:
        assert order == order[::-1] and sorted(order) == sorted(arms * 2)
        where = {arm: [i for i, name in enumerate(order) if name == arm] for arm in arms}
        assert {sum(places) for places in where.values()} == {2 * len(arms) - 1}


def test_passes_are_spelled_out():
    assert passes(["a", "b", "c"], 4) == [
        ("a", "c", "b", "b", "c", "a"),
        ("b", "a", "c", "c", "a", "b"),
        ("c", "b", "a", "a", "b", "c"),
        ("b", "c", "a", "a", "c", "b"),
    ]
    assert passes([], 4) == []
