"""From samples to a verdict: medians, paired intervals, verdicts, geomeans and the control range. Pure.

An arm's samples on a row are an array ``[groups, steps]`` of microseconds, NaN where a step has no time.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Judgement:
    """When a difference is called one. The only place of these numbers; docs/verdict.md has the evidence.

    ``level`` by an H200: equal arms' intervals excluded 1 in 13 of 90 rows at 0.98, in 10 at 0.99 and in 6 at
    0.995, since 16 groups say little of the tails; none cleared ``min_effect``. By simulated runs with an
    H200's noise (60 runs of 90 rows, 15 groups x 20 steps) 0.98 with ``min_effect`` 0.003 finds 96.9 % of 1 %
    slowdowns on rows whose time is the GPU's, 0.99 with 0.005 found 84 %: an interval that must clear 0.5 %
    has only 0.5 % left for itself. ``trim`` is the share of groups that their middle leaves out at each end:
    a plain mean flags twice as often and misses 2 % in 1.4 % of rows, those where a block of groups was
    throttled. ``sought_effect``: 0.01, what the gate is set to find; a wider interval cannot say ``same``.
    ``resamples``: 4000 puts 10 replicates beyond each end of a 99.5 % interval. ``min_groups``: fewer paired
    groups than this give no interval (the bootstrap of 2 values is those 2 values). ``ValueError`` names a
    number that cannot be.
    """

    level: float = 0.995
    min_effect: float = 0.003
    trim: float = 0.25
    sought_effect: float = 0.01
    resamples: int = 4000
    min_groups: int = 3

    def __post_init__(self) -> None:
        for name, possible, needs in (
            ("level", 0.5 < self.level < 1, "more than 0.5 and less than 1"),
            ("min_effect", self.min_effect >= 0, "0 or more"),
            ("trim", 0 <= self.trim < 0.5, "0 or more and less than 0.5"),
            ("sought_effect", 0 < self.sought_effect < 1, "more than 0 and less than 1"),
            ("resamples", 100 <= self.resamples <= 1_000_000, "100 to 1,000,000"),
            ("min_groups", self.min_groups >= 2, "2 or more"),
        ):
            if not possible:
                raise ValueError(f"rule of judgement: {name} is {getattr(self, name):g}; needs {needs}")

    def as_dict(self) -> dict[str, float]:
        """The numbers, for the manifest."""
        return {name: float(value) for name, value in asdict(self).items()}


JUDGEMENT = Judgement()
#: A row gets more groups, up to the preset's limit, while the interval of one of cake's arms over cake is
#: wider than this in all (hi / lo - 1): with 0.5 % to either side and a minimum effect of 0.3 %, 1 % is seen.
WIDE = 0.01


@dataclass(frozen=True)
class Sampling:
    """What the groups of a row are.

    ``form``: independent ``groups``, whose steps all enter one median, or order-balanced ``passes``, a median
    each and the geometric mean over them. ``units[g]``: whose group g is in a merged run, its GPU's or, on
    one GPU, its process's; empty where one process measured all. Units differ for reasons of their own, so
    they are resampled too.
    """

    form: Literal["groups", "passes"] = "groups"
    units: tuple[int, ...] = ()


#: One process, groups.
PLAIN = Sampling()
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


def median_us(samples: Array, sampling: Sampling = PLAIN) -> float | None:
    """The median over all timed steps that have a time, or the geometric mean of the medians of passes; over
    several units the median of theirs. ``None`` if no step has a time.
    """
    if not np.isfinite(samples).any():
        return None
    if sampling.units:
        units = np.array(sampling.units)
        each = [median_us(samples[units == u], replace(sampling, units=())) for u in np.unique(units)]
        return float(np.median([us for us in each if us is not None]))
    if sampling.form == "passes":
        return geomean(us for us in group_medians(samples) if math.isfinite(us))
    return float(np.median(samples[np.isfinite(samples)]))


def group_medians(samples: Array) -> Array:
    """The median of each group, NaN for a group without a time."""
    if samples.size and np.isfinite(samples).all():
        return _row_medians(samples)
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


def _middle(values: Array, trim: float) -> Array:
    """Mean along the last axis without the share ``trim`` of values at each end."""
    n = values.shape[-1]
    cut = min(round(trim * n), (n - 1) // 2)
    if cut == 0:
        return np.asarray(values.mean(axis=-1))
    return np.asarray(np.sort(values, axis=-1)[..., cut : n - cut].mean(axis=-1))


@dataclass(frozen=True)
class _Paired:
    """Medians of the groups in which both arms have a time, and whose groups those are."""

    a: Array
    b: Array
    units: NDArray[np.int64]
    form: str

    @property
    def logs(self) -> Array:
        """The log of each group's ratio."""
        return np.asarray(np.log(self.a / self.b), dtype=float)


def _paired(baseline: Array, cake: Array, sampling: Sampling) -> _Paired:
    a, b = group_medians(baseline), group_medians(cake)
    both = np.isfinite(a) & np.isfinite(b)
    units = np.array(sampling.units or (0,) * len(a), dtype=np.int64)
    return _Paired(a[both], b[both], units[both], sampling.form)


def _resampled(
    p: _Paired, rng: np.random.Generator, judgement: Judgement, drawn: dict[int, NDArray[np.int64]]
) -> Array:
    """Logs of the ratio from resampled groups, and from resampled units first where there are several.

    ``drawn`` keeps the units drawn by their number: rows of one run meet the same units in a replicate.
    """
    size, logs = judgement.resamples, p.logs
    trim = 0.0 if p.form == "passes" else judgement.trim
    units = np.unique(p.units)
    n = len(units)
    if n == 1:
        return _middle(logs[rng.integers(len(logs), size=(size, len(logs)))], trim)
    if n not in drawn:
        drawn[n] = rng.integers(n, size=(size, n))
    middles = np.empty((size, n))
    for u, unit in enumerate(units):
        own = logs[p.units == unit]
        at = drawn[n] == u
        middles[at] = _middle(own[rng.integers(len(own), size=(int(at.sum()), len(own)))], trim)
    return _row_medians(middles)


def _bounds(logs: Array, level: float, value: float) -> Ratio:
    """The interval of replicates, widened to hold the value shown."""
    tail = (1 - level) / 2
    lo, hi = np.exp(np.quantile(logs, (tail, 1 - tail)))
    return Ratio(value, min(float(lo), value), max(float(hi), value))


def paired_ratio(
    baseline: Array, cake: Array, key: str, judgement: Judgement = JUDGEMENT, sampling: Sampling = PLAIN
) -> Ratio | None:
    """The ratio of the arms' medians and its interval, by resampling groups; ``None`` if one has no time.

    Groups are paired: what is resampled is the log of each group's ratio, since what moves one group (clock,
    power, a slow host) moves both its arms. The middle of a replicate is their trimmed mean. The interval is
    widened to hold the ratio shown, which is that of all steps, not of group medians. Of order-balanced
    passes the ratio is a mean of logs: Student's t bounds it, where a bootstrap of 16 values would be too
    narrow.
    """
    found = paired_ratios(baseline, cake, key, (judgement.level,), judgement, sampling)
    return found[0] if found else None


def wide(samples: Mapping[str, Array], base: str) -> bool:
    """Whether one of these arms has an interval over ``base``, one of them too, that is wider than
    :data:`WIDE`, or none for want of groups. Where it lies is not looked at.
    """
    others = samples.items() if base in samples else ()
    ratios = [paired_ratio(times, samples[base], name) for name, times in others if name != base]
    bounds = [(r.lo, r.hi) for r in ratios if r is not None]
    return any(lo is None or hi is None or hi / lo - 1 > WIDE for lo, hi in bounds)


def paired_ratios(
    baseline: Array,
    cake: Array,
    key: str,
    levels: Sequence[float],
    judgement: Judgement = JUDGEMENT,
    sampling: Sampling = PLAIN,
) -> list[Ratio]:
    """:func:`paired_ratio` with an interval for each level, from the same replicates; empty where it is
    ``None``.
    """
    top, bottom = median_us(baseline, sampling), median_us(cake, sampling)
    if top is None or bottom is None:
        return []
    value = top / bottom
    p = _paired(baseline, cake, sampling)
    if len(p.a) < judgement.min_groups:
        return [Ratio(value, None, None) for _ in levels]
    if p.form == "passes" and len(np.unique(p.units)) == 1:
        return [_student(p.logs, level, value) for level in levels]
    replicates = _resampled(p, np.random.default_rng(seed_of(key)), judgement, {})
    return [_bounds(replicates, level, value) for level in levels]


def _student(logs: Array, level: float, value: float) -> Ratio:
    """Student's t interval of a mean of logs, widened to hold the value shown."""
    mean, n = float(logs.mean()), len(logs)
    reach = float(stdtrit(n - 1, (1 + level) / 2)) * float(logs.std(ddof=1)) / math.sqrt(n)
    return Ratio(value, min(math.exp(mean - reach), value), max(math.exp(mean + reach), value))


def paired_groups(baseline: Array, cake: Array) -> int:
    """In how many groups (or passes) both arms have a time."""
    return len(_paired(baseline, cake, PLAIN).a)


def slower_passes(baseline: Array, cake: Array, tick_us: float | None) -> int:
    """In how many passes the second arm's median is the longer one, by more than a tick of the timer."""
    p = _paired(baseline, cake, Sampling("passes"))
    return sum(b > a and resolved(a, b, tick_us) for a, b in zip(p.a, p.b, strict=True))


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
    pairs: Sequence[tuple[Array, Array]],
    key: str,
    judgement: Judgement = JUDGEMENT,
    samplings: Sequence[Sampling] = (),
) -> Ratio | None:
    """The geomean over rows of ``(baseline samples, cake samples)`` and its interval from resampled groups.

    The rows are the suite, not a sample of something larger, so rows are not resampled: the interval says how
    far measuring again would move the geomean. Rows are resampled independently of each other, but for the
    units of a merged run, which all rows share; a row too short for an interval enters as its ratio alone.
    ``samplings`` has one entry a row; empty, all are plain. ``None`` if no row has a ratio.
    """
    ratios, logs = [], np.zeros(judgement.resamples)
    bounded, drawn = False, dict[int, NDArray[np.int64]]()
    rng = np.random.default_rng(seed_of(key))
    for (baseline, cake), sampling in zip(pairs, samplings or [PLAIN] * len(pairs), strict=True):
        top, bottom = median_us(baseline, sampling), median_us(cake, sampling)
        if top is None or bottom is None:
            continue
        ratios.append(top / bottom)
        p = _paired(baseline, cake, sampling)
        if len(p.a) < judgement.min_groups:
            logs += math.log(ratios[-1])
            continue
        bounded = True
        logs += _resampled(p, rng, judgement, drawn)
    value = geomean(ratios)
    if value is None:
        return None
    return _bounds(logs / len(ratios), judgement.level, value) if bounded else Ratio(value, None, None)


def control_range(ratios: Iterable[float | None]) -> tuple[float, float] | None:
    """Smallest and largest control ratio of the rows given (one GPU, mode and op); ``None`` if no row has
    one.
    """
    known = [r for r in ratios if r is not None]
    return (min(known), max(known)) if known else None
