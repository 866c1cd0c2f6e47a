"""The one place where numbers become text: ratios, ranges, intervals, times, errors and counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Tables whose largest time reaches this many microseconds are printed in milliseconds.
MS_FROM_US = 10_000.0

#: From this factor on two times do not share a unit: the shorter one would have too few digits.
FAR_APART = 1000.0

#: More than any timer has: a nanosecond clock's half steps (a median of two) need 4 in us and 7 in ms.
MAX_DECIMALS = 9


@dataclass(frozen=True)
class Unit:
    """A unit of time: its name and its length in microseconds."""

    name: str
    us: float


US = Unit("us", 1.0)
MS = Unit("ms", 1000.0)


def ratio(value: float) -> str:
    """A ratio, 3 decimals."""
    return f"{value:.3f}"


def spread(values: Iterable[float]) -> str:
    """The range of ratios as ``lo-hi``; a single ratio where both ends print the same."""
    return _ends([ratio(v) for v in sorted(values)])


def digits(value: float) -> str:
    """A rate with 3 digits or all before the point, as ``812`` or ``0.00421``."""
    if value <= 0 or not math.isfinite(value):
        return f"{value:.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"


def interval(lo: float, hi: float) -> str:
    """A confidence interval of a ratio, ``[lo, hi]``."""
    return f"[{ratio(lo)}, {ratio(hi)}]"


def host_spread(values: Iterable[float]) -> str:
    """A range of host times as ``lo-hi``: good to about 0.1 us, or to 1 us from 100 us on."""
    printed = sorted(values)
    return _ends([f"{v:.{0 if printed[-1] >= 100 else 1}f}" for v in printed])


def error(value: float) -> str:
    """A relative error, 2 significant digits, as ``1.9e-7``; ``inf`` or ``nan`` for outputs that are."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}e{int(exponent)}"


def error_spread(values: Iterable[float]) -> str:
    """A range of relative errors, ``lo to hi`` (a minus sign would run into the exponents')."""
    return _ends([error(v) for v in sorted(values)], " to ")


def budget(value: float) -> str:
    """An accuracy budget without trailing zeros, as ``2e-6``."""
    return error(value).replace(".0e", "e")


def unit_for(values: Iterable[float]) -> Unit:
    """The unit in which a table with these times (us) is printed."""
    return MS if max(values, default=0.0) >= MS_FROM_US else US


def time(us: float, decimals: int, unit: Unit = US) -> str:
    """A time given in us, printed in ``unit``, without the unit's name."""
    return f"{us / unit.us:.{decimals}f}"


def decimals_for(
    pairs: Sequence[tuple[float, float]], unit: Unit = US, least: int = 1, times: Iterable[float] = ()
) -> int:
    """The fewest decimals, from ``least`` on, with which printed pairs of times give their printed ratios and
    none of ``times`` prints as zero.
    """
    shown = [us for us in times if us > 0]
    for decimals in range(least, MAX_DECIMALS):
        if all(_reproduces(a, b, decimals, unit) for a, b in pairs) and all(
            float(time(us, decimals, unit)) > 0 for us in shown
        ):
            return decimals
    return MAX_DECIMALS


def decimals_by_row(
    rows: Sequence[Sequence[tuple[float, float]]], unit: Unit = US, times: Sequence[Iterable[float]] = ()
) -> list[int]:
    """Decimals for every row of a table: 2, about a GPU timer's tick, or as many as its ratios, and the
    shortest of its ``times``, need.
    """
    shown = times or [()] * len(rows)
    return [decimals_for(pairs, unit, 2, of_row) for pairs, of_row in zip(rows, shown, strict=True)]


def division(a: float, b: float) -> str:
    """Two times and their ratio, as ``57.9 / 57.1 us = 1.014``, with the decimals that reproduce it.

    Times that are too far apart for one unit have one each: ``4.10 us / 119.08 ms``.
    """
    unit, other = unit_for([a]), unit_for([b])
    if unit is not other and max(a, b) >= FAR_APART * min(a, b):
        return f"{time(a, 2, unit)} {unit.name} / {time(b, 2, other)} {other.name} = {ratio(a / b)}"
    unit = unit_for([a, b])
    decimals = decimals_for([(a, b)], unit, 2, [a, b])
    return f"{time(a, decimals, unit)} / {time(b, decimals, unit)} {unit.name} = {ratio(a / b)}"


def of(n: int, total: int) -> str:
    """A part of a count: ``3 of 9``, or ``all 9`` and ``none of 9``."""
    if total > 1 and n in (0, total):
        return f"all {total}" if n else f"none of {total}"
    return f"{n} of {total}"


def counted(n: int, noun: str) -> str:
    """A count with its noun: ``1 row``, ``2 rows``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def listed(items: Sequence[str]) -> str:
    """Items in a sentence: ``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def duration(seconds: float) -> str:
    """A wall time: ``42 s``, ``7 min 05 s``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _ends(printed: Sequence[str], dash: str = "-") -> str:
    return printed[0] if printed[0] == printed[-1] else f"{printed[0]}{dash}{printed[-1]}"


def _reproduces(a: float, b: float, decimals: int, unit: Unit) -> bool:
    above, below = float(time(a, decimals, unit)), float(time(b, decimals, unit))
    return above > 0 and below > 0 and ratio(above / below) == ratio(a / b)
