"""Counts and means over rows: what the headline, the findings and the terminal all say. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.model import CallFacts
from bench.rule import rule_of
from bench.statistics import Ratio, control_range, geomean, geomean_ratio, resolved
from reports.rows import CONTROL, NEW, SEQUENCE, SOTA, Row, Run


@dataclass(frozen=True)
class Tally:
    """Rows by the verdict of one arm over another (``unmeasured``: none), and the geomean of its ratios."""

    rows: tuple[Row, ...]
    faster: tuple[Row, ...]
    same: tuple[Row, ...]
    slower: tuple[Row, ...]
    unclear: tuple[Row, ...]
    unmeasured: tuple[Row, ...]
    mean: Ratio | None


def tally(run: Run, rows: Sequence[Row], over: str = NEW, arm: str = SOTA) -> Tally:
    """Verdicts of the best library call (or another arm) over a cake arm, and the geomean's interval."""
    by: dict[str | None, list[Row]] = {}
    for row in rows:
        cell = row.cells.get((arm, over))
        measured = cell is not None and cell.status == "ok" and cell.ratio is not None
        by.setdefault(cell.verdict if cell and measured else None, []).append(row)
    faster, same, slower, unclear, unmeasured = (
        tuple(by.get(word, ())) for word in ("faster", "same", "slower", "unclear", None)
    )
    mean = _mean(run, [r for r in rows if r not in unmeasured], over, arm)
    return Tally(tuple(rows), faster, same, slower, unclear, unmeasured, mean)


def _mean(run: Run, rows: Sequence[Row], over: str, arm: str) -> Ratio | None:
    """The geomean of the cells' ratios; its interval from the samples behind them."""
    value = geomean(ratio for r in rows if (ratio := r.ratio(arm, over)) is not None)
    pairs, samplings = [], []
    for row in rows:
        samples = run.samples.get(row.key, {})
        baseline = row.sota_arm if arm == SOTA else arm
        if baseline and baseline in samples and over in samples:
            pairs.append((samples[baseline], samples[over]))
            samplings.append(run.sampling(row))
    rule = rule_of(run.manifest)
    bounds = None
    if rule and len(pairs) == len(rows):
        bounds = geomean_ratio(pairs, f"{arm}/{over}", rule, samplings)
    if value is None:
        return None
    return Ratio(value, bounds.lo, bounds.hi) if bounds else Ratio(value, None, None)


def control(rows: Sequence[Row]) -> tuple[float, float] | None:
    """The range of the control ratio over rows."""
    return control_range(r.ratio(CONTROL) for r in rows)


@dataclass(frozen=True)
class Against:
    """Rows by where a ratio lies against the control range of their GPU, mode and op."""

    above: tuple[Row, ...]
    within: tuple[Row, ...]
    below: tuple[Row, ...]
    unknown: tuple[Row, ...]


def against_control(run: Run, rows: Sequence[Row], arm: str = SOTA, over: str = NEW) -> Against:
    """Sort rows into above, within and below the control range; ``unknown`` has no ratio or no control.

    Times that differ by no more than a tick of the timer are within: that is no difference.
    """
    tick = run.manifest.timer.tick_us
    sides: dict[str, list[Row]] = {"above": [], "within": [], "below": [], "unknown": []}
    for row in rows:
        cell = row.cells.get((arm, over))
        if cell is None or cell.ratio is None or cell.control_lo is None or cell.control_hi is None:
            side = "unknown"
        elif cell.us is not None and not resolved(cell.us, cell.us / cell.ratio, tick):
            side = "within"
        elif cell.ratio > cell.control_hi:
            side = "above"
        else:
            side = "below" if cell.ratio < cell.control_lo else "within"
        sides[side].append(row)
    return Against(*(tuple(sides[s]) for s in ("above", "within", "below", "unknown")))


@dataclass(frozen=True)
class Rival:
    """A library call over rows: where it has a time, where it is the fastest, the best without it."""

    arm: str
    timed: tuple[Row, ...]
    alone: tuple[Row, ...]
    in_sequence: tuple[Row, ...]
    without: Mapping[str, float | None]


def rival(run: Run, rows: Sequence[Row], arm: str) -> Rival:
    """What a rival is worth: ``without`` maps a row's key to SOTA/cake over the other calls measured."""
    fastest = [r for r in rows if r.sota_arm == SEQUENCE and arm != SEQUENCE and arm in in_sequence(run, r)]
    return Rival(
        arm,
        timed=tuple(r for r in rows if r.us(arm) is not None),
        alone=tuple(r for r in rows if r.sota_arm == arm),
        in_sequence=tuple(fastest),
        without={r.key: _without(run, r, arm) for r in rows},
    )


def in_sequence(run: Run, row: Row) -> list[str]:
    """The arms whose calls the row's ``sequence`` is made of, each once."""
    facts = run.facts.get(row.key)
    if facts is None:
        return []
    calls = {arm.arm: [_identity(c) for c in arm.calls] for arm in facts.arms}
    used = []
    for call in calls.get(SEQUENCE, []):
        used.append(next((a for a in run.rivals if a != SEQUENCE and call in calls.get(a, [])), None))
    return [a for a in dict.fromkeys(used) if a is not None]


def _identity(call: CallFacts) -> tuple[str, ...]:
    return (call.kind, call.library, call.function, call.algorithm)


def _without(run: Run, row: Row, arm: str) -> float | None:
    new = row.us(NEW)
    sequence_has_it = arm in in_sequence(run, row)
    others = [a for a in run.rivals if a != arm and not (a == SEQUENCE and sequence_has_it)]
    times = [us for a in others if (us := row.us(a)) is not None]
    return min(times) / new if times and new else None
