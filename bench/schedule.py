"""The order in which arms are visited: rotated, so that every arm stands at every position equally often.

*Groups* visit every arm once. *Passes* visit every arm twice, there and back, so that within each pass all
arms have the same mean position and a steady drift moves them alike.

An arm's position within a group matters (clocks and power drift while a group runs), so the orders of one
*rotation* are the cyclic shifts of the arms, one group each. Every other rotation runs backwards: cyclic
shifts alone would keep each arm behind the same neighbour for the whole run, and an arm may profit from what
its neighbour leaves behind.
"""

from __future__ import annotations

from collections.abc import Sequence


def rotation(arms: Sequence[str], groups: int) -> list[tuple[str, ...]]:
    """The order of the arms in each group; ``groups`` is rounded up to a whole number of rotations.

    Raises ``ValueError`` if arms repeat or ``groups`` is not positive.
    """
    names = tuple(arms)
    if len(set(names)) != len(names):
        raise ValueError(f"arms must differ from each other, got {', '.join(names)}")
    if groups < 1:
        raise ValueError(f"groups must be positive, got {groups}")
    if not names:
        return []
    n = len(names)
    orders = []
    for turn in range(-(-groups // n)):
        for shift in range(n):
            order = names[shift:] + names[:shift]
            orders.append(order[::-1] if turn % 2 else order)
    return orders


def passes(arms: Sequence[str], count: int) -> list[tuple[str, ...]]:
    """The order of each of ``count`` passes: the arms, rotated on from pass to pass, then the same backwards.

    Raises ``ValueError`` if arms repeat.
    """
    forward = rotation(arms, 1)  # the first rotation runs forwards
    orders = [forward[i % len(forward)] for i in range(count if forward else 0)]
    return [order + order[::-1] for order in orders]


def position_counts(orders: Sequence[Sequence[str]]) -> dict[str, tuple[int, ...]]:
    """``counts[arm][p]``: in how many groups the arm ran at position ``p``."""
    width = max((len(order) for order in orders), default=0)
    counts: dict[str, list[int]] = {}
    for order in orders:
        for position, name in enumerate(order):
            counts.setdefault(name, [0] * width)[position] += 1
    return {name: tuple(c) for name, c in counts.items()}
