"""From samples to a verdict: medians, paired intervals, verdicts, geomeans and the control range. Pure, numpy
only.

An arm's samples on a row are an array ``[groups, steps]`` of microseconds, NaN where a step has no time.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Judgement:
    """When a difference is called one. The only place of these numbers.

    ``level``: 0.99, because at 0.95 a group bootstrap of an arm against itself excluded 1 in 1 to 3 of 48
    rows (H200). ``min_effect``: 0.005, the widest A/A ratio seen in graph mode was 0.3 %, in eager mode 0.6
    %. ``sought_effect``: 0.01, what the gate is set to find; a wider interval cannot say ``same``.
    ``resamples``: 2000 puts 10 replicates beyond each end of a 99 % interval; 90 rows x 12 arms then take
    seconds. ``min_groups``: fewer paired groups than this give no interval (the bootstrap of 2 values is
    those 2 values).
    """

    level: float = 0.99
    min_effect: float = 0.005
    sought_effect: float = 0.01
    resamples: int = 2000
    min_groups: int = 3

    def as_dict(self) -> dict[str, float]:
        """The numbers, for the manifest."""
        return {name: float(value) for name, value in asdict(self).items()}


JUDGEMENT = Judgement()
#: Stamps are rounded to the nanosecond: two durations one tick apart may read as up to 2 ns more.
ROUNDING_US = 0.002


@dataclass(frozen=True)
class Ratio:
    """A ratio of medians, baseline over cake: above 1 means cake is faster. ``lo`` and ``hi`` bound it, or
    are ``None``.
    """

    value: float
    lo: float | None
    hi: float | None


def median_us(samples: Array) -> float | None:
    """The median over all timed steps that have a time; ``None`` if none has."""
    values = samples[np.isfinite(samples)]
    return float(np.median(values)) if values.size else None


def group_medians(samples: Array) -> Array:
    """The median of each group, NaN for a group without a time."""
    return np.array(
        [np.median(row[np.isfinite(row)]) if np.isfinite(row).any() else np.nan for row in samples]
    )


def seed_of(key: str) -> int:
    """A resampling seed from a cell's key, so that a report made again shows the same intervals."""
    return zlib.crc32(key.encode())


def _row_medians(values: Array) -> Array:
    """Median along the last axis by one partition; np.median's NaN handling costs more than the sort here."""
    n = values.shape[-1]
    if n % 2:
        return np.partition(values, n // 2, axis=-1)[..., n // 2]
    middle = np.partition(values, (n // 2 - 1, n // 2), axis=-1)
    return 0.5 * (middle[..., n // 2 - 1] + middle[..., n // 2])


def paired_ratio(baseline: Array, cake: Array, key: str, judgement: Judgement = JUDGEMENT) -> Ratio | None:
    """The ratio of the arms' medians and its interval, by resampling groups; ``None`` if one has no time.

    Both arms are resampled by the same groups, since what moves one group (clock, power) moves both its arms.
    The interval is widened to hold the ratio shown, which is that of all steps, not of group medians.
    """
    top, bottom = median_us(baseline), median_us(cake)
    if top is None or bottom is None:
        return None
    value = top / bottom
    a, b = group_medians(baseline), group_medians(cake)
    paired = np.isfinite(a) & np.isfinite(b)
    a, b = a[paired], b[paired]
    if len(a) < judgement.min_groups:
        return Ratio(value, None, None)
    rng = np.random.default_rng(seed_of(key))
    index = rng.integers(len(a), size=(judgement.resamples, len(a)))
    replicates = _row_medians(a[index]) / _row_medians(b[index])
    tail = (1 - judgement.level) / 2
    lo, hi = np.quantile(replicates, (tail, 1 - tail))
    return Ratio(value, min(float(lo), value), max(float(hi), value))


def resolved(a_us: float, b_us: float, tick_us: float | None) -> bool:
    """Whether two times differ by more than one tick of the timer; any difference does if it is not known."""
    return abs(a_us - b_us) > (tick_us + ROUNDING_US if tick_us else 0.0)


def verdict(
    ratio: Ratio, baseline_us: float, cake_us: float, tick_us: float | None, judgement: Judgement = JUDGEMENT
) -> Literal["faster", "slower", "same", "unclear"]:
    """What the ratio says of cake against the baseline.

    ``faster``/``slower`` need an interval that excludes 1 by the minimum effect and medians that differ by
    more than a tick of the timer. Otherwise ``same``, or ``unclear`` where the interval (or its absence)
    could hide the effect sought.
    """
    if ratio.lo is None or ratio.hi is None:
        return "unclear"
    effect = 1 + judgement.min_effect
    if resolved(baseline_us, cake_us, tick_us):
        if ratio.lo >= effect:
            return "faster"
        if ratio.hi <= 1 / effect:
            return "slower"
    return "unclear" if ratio.hi / ratio.lo - 1 > judgement.sought_effect else "same"


def geomean(values: Iterable[float]) -> float | None:
    """The geometric mean; ``None`` of nothing."""
    logs = [math.log(v) for v in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def geomean_ratio(
    pairs: Sequence[tuple[Array, Array]], key: str, judgement: Judgement = JUDGEMENT
) -> Ratio | None:
    """The geomean over rows of ``(baseline samples, cake samples)`` and its interval from resampled groups.

    The rows are the suite, not a sample of something larger, so rows are not resampled: the interval says how
    far measuring again would move the geomean. Rows are resampled independently of each other; a row too
    short for an interval enters as its ratio alone. ``None`` if no row has a ratio.
    """
    ratios, logs = [], np.zeros(judgement.resamples)
    bounded = False
    rng = np.random.default_rng(seed_of(key))
    for baseline, cake in pairs:
        top, bottom = median_us(baseline), median_us(cake)
        if top is None or bottom is None:
            continue
        ratios.append(top / bottom)
        a, b = group_medians(baseline), group_medians(cake)
        paired = np.isfinite(a) & np.isfinite(b)
        a, b = a[paired], b[paired]
        if len(a) < judgement.min_groups:
            logs += math.log(ratios[-1])
            continue
        bounded = True
        index = rng.integers(len(a), size=(judgement.resamples, len(a)))
        logs += np.log(_row_medians(a[index]) / _row_medians(b[index]))
    value = geomean(ratios)
    if value is None:
        return None
    if not bounded:
        return Ratio(value, None, None)
    tail = (1 - judgement.level) / 2
    lo, hi = np.exp(np.quantile(logs / len(ratios), (tail, 1 - tail)))
    return Ratio(value, min(float(lo), value), max(float(hi), value))


def control_range(ratios: Iterable[float | None]) -> tuple[float, float] | None:
    """Smallest and largest control ratio of the rows given (one GPU, mode and op); ``None`` if no row has
    one.
    """
    known = [r for r in ratios if r is not None]
    return (min(known), max(known)) if known else None
