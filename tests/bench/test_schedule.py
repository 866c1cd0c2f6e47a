from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.schedule import passes, position_counts, rotation

ARMS = st.lists(st.text("abcdefgh_", min_size=1, max_size=6), min_size=1, max_size=12, unique=True)


@given(ARMS, st.integers(1, 40))
def test_every_arm_stands_at_every_position_equally_often(arms, groups):
    orders = rotation(arms, groups)
    assert all(sorted(order) == sorted(arms) for order in orders)
    assert groups <= len(orders) < groups + len(arms)
    share = len(orders) // len(arms)
    assert position_counts(orders) == {arm: (share,) * len(arms) for arm in arms}


@given(ARMS.filter(lambda arms: len(arms) > 2), st.integers(1, 40))
def test_no_arm_keeps_one_neighbour_over_two_rotations(arms, groups):
    orders = rotation(arms, max(groups, len(arms) + 1))
    for arm in arms:
        before = {order[order.index(arm) - 1] for order in orders if order.index(arm) > 0}
        assert len(before) > 1


def test_orders_are_spelled_out():
    assert rotation(["a", "b", "c"], 4) == [
        ("a", "b", "c"),
        ("b", "c", "a"),
        ("c", "a", "b"),
        ("c", "b", "a"),
        ("a", "c", "b"),
        ("b", "a", "c"),
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
        ("a", "b", "c", "c", "b", "a"),
        ("b", "c", "a", "a", "c", "b"),
        ("c", "a", "b", "b", "a", "c"),
        ("a", "b", "c", "c", "b", "a"),
    ]
    assert passes([], 4) == []
