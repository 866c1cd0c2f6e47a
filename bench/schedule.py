"""The order in which arms are visited: rotated, so that every arm stands at every position equally often.

*Groups* visit every arm once. *Passes* visit every arm twice, there and back, so that within each pass all
arms have the same mean position and a steady drift moves them alike.

An arm's position within a group matters (clocks and power drift while a group runs), and what its neighbour
leaves behind does too (a library's threads, a cache). So the orders of one *rotation* are those of a Williams
design: every arm stands once at every position and, over one rotation of an even number of arms or two of an
odd number, once right behind every other arm. Every other rotation runs backwards.
"""

from __future__ import annotations

from collections.abc import Sequence


def rotation(arms: Sequence[str], groups: int) -> list[tuple[str, ...]]:
    """The order of the arms in each group; ``groups`` is rounded up to a whole number of rotations, of pairs
    of them where the number of arms is odd.

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
    whole = n if n % 2 == 0 or n == 1 else 2 * n
    # 0, n - 1, 1, n - 2, ...: all steps from one to the next differ, so its shifts put different arms behind.
    zigzag = [-(i // 2) - 1 if i % 2 else i // 2 for i in range(n)]
    orders = []
    for turn in range(-(-groups // whole) * whole // n):
        for shift in range(n):
            order = tuple(names[(place + shift) % n] for place in zigzag)
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
