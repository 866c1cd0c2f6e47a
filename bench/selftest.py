"""The judge judged: how often it flags an arm against itself, and how often it finds a planted slowdown.

Runs of cake, a control and planted arms (:mod:`bench.planted`), or simulated ones (:mod:`bench.simulate`), go
through the same ratios and verdicts as any run. Pure but for :func:`observed`, which reads run directories.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path

import numpy as np

from bench.arms import CAKE, CONTROL
from bench.model import Manifest, Verdict
from bench.planted import PLANTED
from bench.selftest_model import Achieved, Bin, Judged, Other, Power, RunLine, Selftest, Share
from bench.simulate import TICK_US, router_suite, simulate_run
from bench.statistics import (
    JUDGEMENT,
    Array,
    Judgement,
    Ratio,
    median_us,
    paired_ratio,
    paired_ratios,
    verdict,
)
from bench.store import finished_rows, open_run
from bench.suites import Row

#: What METHOD promises: at most this share of A/A cells flagged before confirmation, and at least this share
#: found of each planted slowdown; of 1 and 2 % on rows of :data:`LONG_US` and longer, of 5 % on all rows.
FALSE_ALARMS = 0.005
POWER = {1: 0.90, 2: 0.98, 5: 1.0}
LONG_US = 10.0
#: What else the judge could have been: the false alarms and the power of each are reported beside its own.
LEVELS = (0.98, 0.99, 0.995, 0.998)
MIN_EFFECTS = (0.002, 0.003, 0.004, 0.005)
#: Where the bins of the detection curve meet, in percent; a cell on an edge is in the bin above it.
BIN_EDGES = (0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)


@dataclass(frozen=True)
class Observation:
    """One row of one run: the samples of its arms. ``missing`` says why an arm has none."""

    run: str
    row: str
    samples: Mapping[str, Array]
    tick_us: float | None
    missing: Mapping[str, str]


def simulated(
    runs: int, seed: int = 0, instances: int | None = None, rows: Sequence[str] = ()
) -> Iterator[Observation]:
    """Simulated runs of the router suite, or of its rows of these patterns."""
    suite = [r for r in router_suite() if not rows or any(fnmatchcase(r.key, pattern) for pattern in rows)]
    factors = {CAKE: 1.0, CONTROL: 1.0} | {name: 1 + percent / 100 for percent, name in PLANTED.items()}
    for run in range(runs):
        for row, samples in simulate_run(suite, factors, run, seed, instances):
            yield Observation(f"simulated-{run + 1}", row.key, samples, TICK_US, {})


def observed(directories: Sequence[Path]) -> tuple[list[Observation], list[RunLine]]:
    """The rows of run directories, each of a selftest. Raises :class:`bench.store.StoreError`."""
    observations, lines = [], []
    for directory in directories:
        run = open_run(directory)
        manifest = run.manifest()
        name = f"{directory.resolve().parent.name}/{directory.resolve().name}"
        for facts, samples in finished_rows(run, manifest.rows):
            # Only arms that passed have times: an inaccurate one proves nothing.
            fine = {
                arm.arm: samples[arm.arm] for arm in facts.arms if arm.status == "ok" and arm.arm in samples
            }
            missing = {a.arm: f"{a.status}: {a.reason}" for a in facts.arms if a.arm not in fine}
            observations.append(Observation(name, facts.key, fine, manifest.timer.tick_us, missing))
        lines.append(_line(name, manifest, run.finished()))
    return observations, lines


def run_directories(given: Sequence[Path]) -> list[Path]:
    """The run directories given, and those in the selftest directories given, in their order."""
    found = []
    for path in given:
        inner = sorted(p.parent for p in path.glob("run-*/manifest.json"))
        found += inner if inner and not (path / "manifest.json").is_file() else [path]
    return found


def _line(name: str, manifest: Manifest, done: set[str]) -> RunLine:
    return RunLine(
        run=name,
        started=manifest.started,
        commit=manifest.git.get("commit", ""),
        device=manifest.device.name,
        arms=manifest.arms,
        rows=len(done),
        finished=set(manifest.rows) <= done,
    )


def summarise(
    observations: Iterable[Observation],
    runs: Sequence[RunLine] = (),
    simulated: bool = False,
    judgement: Judgement = JUDGEMENT,
) -> Selftest:
    """False alarms and power over all observations, by the judgement given and by others beside it."""
    seen = list(observations)
    cells = {arm: _judge(seen, arm, judgement) for arm in (CONTROL, *PLANTED.values())}
    alarms = [c.word(judgement) in ("faster", "slower") for c in cells[CONTROL]]
    long = _long_rows(seen)
    powers = {
        str(percent): _power(percent, cells[arm], seen, arm, long, judgement)
        for percent, arm in PLANTED.items()
        if cells[arm]
    }
    rate = _share(sum(alarms), len(alarms)).share
    kept = {} if rate is None else {"false_alarm_rate": rate <= FALSE_ALARMS}
    for percent, limit in POWER.items():
        if str(percent) in powers:
            power = powers[str(percent)]
            share = (power.all_rows if percent == 5 else power.long_rows).share
            kept[f"power_{percent}"] = share is not None and share >= limit
    return Selftest(
        simulated=simulated,
        false_alarm_rate=rate,
        cells=len(alarms),
        flagged=tuple(c.judged(judgement) for c, flag in zip(cells[CONTROL], alarms, strict=True) if flag),
        power=powers,
        by_achieved=_by_achieved([c for arm in PLANTED.values() for c in cells[arm]], long, judgement),
        limits={"false_alarm_rate": FALSE_ALARMS, "long_us": LONG_US}
        | {f"power_{percent}": limit for percent, limit in POWER.items()},
        kept=kept,
        others=tuple(_others(cells, long, judgement)),
        unmeasured=tuple(
            f"{o.run} {o.row} {arm}: {why}"
            for o in seen
            for arm, why in o.missing.items()
            if arm in (CAKE, *cells)
        ),
        config=judgement.as_dict(),
        runs=tuple(runs) or _plain_lines(seen),
    )


@dataclass(frozen=True)
class _Cell:
    """An arm over cake in one run, with an interval for every level."""

    run: str
    row: str
    us: float
    over_us: float
    tick_us: float | None
    ratios: Mapping[float, Ratio]

    def word(self, judgement: Judgement) -> Verdict:
        ratio = self.ratios[judgement.level]
        return verdict(ratio, self.us, self.over_us, self.tick_us, judgement)

    def found(self, judgement: Judgement) -> bool:
        """Whether a planted arm is called the slower one."""
        return self.word(judgement) == "faster"

    def judged(self, judgement: Judgement) -> Judged:
        ratio = self.ratios[judgement.level]
        return Judged(
            run=self.run,
            row=self.row,
            us=self.us,
            over_us=self.over_us,
            ratio=ratio.value,
            ratio_lo=ratio.lo,
            ratio_hi=ratio.hi,
            verdict=self.word(judgement),
        )


def _judge(seen: Sequence[Observation], arm: str, judgement: Judgement) -> list[_Cell]:
    levels = sorted({judgement.level, *LEVELS})
    cells = []
    for o in seen:
        if arm not in o.samples or CAKE not in o.samples:
            continue
        us, over = median_us(o.samples[arm]), median_us(o.samples[CAKE])
        # The key that the cells of a run have too: the same resampling, hence the same verdict.
        ratios = paired_ratios(o.samples[arm], o.samples[CAKE], f"{o.row}/{arm}/{CAKE}", levels, judgement)
        if ratios and us is not None and over is not None:
            pairs = dict(zip(levels, ratios, strict=True))
            cells.append(_Cell(o.run, o.row, us, over, o.tick_us, pairs))
    return cells


def _long_rows(seen: Sequence[Observation]) -> set[str]:
    """The rows on which cake takes :data:`LONG_US` and more, by the median over runs."""
    times: dict[str, list[float]] = {}
    for o in seen:
        us = median_us(o.samples[CAKE]) if CAKE in o.samples else None
        if us is not None:
            times.setdefault(o.row, []).append(us)
    return {row for row, us in times.items() if float(np.median(us)) >= LONG_US}


def _power(
    percent: int,
    cells: Sequence[_Cell],
    seen: Sequence[Observation],
    arm: str,
    long: set[str],
    judgement: Judgement,
) -> Power:
    found = [c.found(judgement) for c in cells]
    kinds: dict[str, list[bool]] = {}
    rows: dict[str, list[bool]] = {}
    for cell, hit in zip(cells, found, strict=True):
        row = Row.from_key(cell.row)
        rows.setdefault(cell.row, []).append(hit)
        if cell.row in long:
            kinds.setdefault(f"{row.mode} {row.op}", []).append(hit)
    achieved = tuple(_achieved(row, hits, seen, arm, judgement) for row, hits in rows.items())
    planted = [a.percent for a in achieved if a.row in long]
    in_long = [hit for cell, hit in zip(cells, found, strict=True) if cell.row in long]
    return Power(
        target_percent=percent,
        long_rows=_share(sum(in_long), len(in_long)),
        all_rows=_share(sum(found), len(found)),
        by_kind={kind: _share(sum(hits), len(hits)) for kind, hits in sorted(kinds.items())},
        percent_median=float(np.median(planted)) if planted else None,
        percent_min=min(planted, default=None),
        percent_max=max(planted, default=None),
        achieved=achieved,
        missed=tuple(c.judged(judgement) for c, hit in zip(cells, found, strict=True) if not hit),
    )


def _achieved(
    row: str, hits: Sequence[bool], seen: Sequence[Observation], arm: str, judgement: Judgement
) -> Achieved:
    both = [o.samples for o in seen if o.row == row and arm in o.samples and CAKE in o.samples]
    slow, plain = (_pooled([samples[name] for samples in both]) for name in (arm, CAKE))
    ratio = paired_ratio(slow, plain, f"{row}/{arm}", judgement)
    assert ratio is not None  # the row has cells
    lo, hi = (None if end is None else 100 * (end - 1) for end in (ratio.lo, ratio.hi))
    return Achieved(
        row=row,
        us=median_us(plain) or 0.0,
        percent=100 * (ratio.value - 1),
        percent_lo=lo,
        percent_hi=hi,
        found=sum(hits),
        runs=len(hits),
    )


def _by_achieved(cells: Sequence[_Cell], long: set[str], judgement: Judgement) -> tuple[Bin, ...]:
    """The detection curve: every bin, from the smallest slowdown on; none where nothing was planted."""
    if not cells:
        return ()
    edges = (None, *BIN_EDGES, None)
    bins: list[list[tuple[bool, bool]]] = [[] for _ in edges[1:]]
    for cell in cells:
        ratio = cell.ratios[judgement.level].value
        # Ratios are compared, as 100 * (1.003 - 1) is less than 0.3.
        at = sum(ratio >= 1 + edge / 100 for edge in BIN_EDGES)
        bins[at].append((cell.row in long, cell.found(judgement)))
    return tuple(
        Bin(
            percent_from=lower,
            percent_below=upper,
            long_rows=_share(
                sum(hit for is_long, hit in found if is_long), sum(is_long for is_long, _ in found)
            ),
            all_rows=_share(sum(hit for _, hit in found), len(found)),
        )
        for (lower, upper), found in zip(pairwise(edges), bins, strict=True)
    )


def _pooled(samples: Sequence[Array]) -> Array:
    """The groups of several runs below each other, short visits filled up with steps that have no time."""
    steps = max(s.shape[1] for s in samples)
    return np.concatenate(
        [np.pad(s, ((0, 0), (0, steps - s.shape[1])), constant_values=np.nan) for s in samples]
    )


def _others(cells: Mapping[str, Sequence[_Cell]], long: set[str], judgement: Judgement) -> Iterator[Other]:
    for level in LEVELS:
        for effect in MIN_EFFECTS:
            other = replace(judgement, level=level, min_effect=effect)
            alarms = [c.word(other) in ("faster", "slower") for c in cells[CONTROL]]
            power = {}
            for percent, arm in PLANTED.items():
                hits = [c.found(other) for c in cells[arm] if percent == 5 or c.row in long]
                power[str(percent)] = _share(sum(hits), len(hits)).share
            yield Other(
                level=level,
                min_effect=effect,
                false_alarm_rate=_share(sum(alarms), len(alarms)).share,
                power=power,
            )


def _share(count: int, of: int) -> Share:
    return Share(count=count, of=of, share=count / of if of else None)


def _plain_lines(seen: Sequence[Observation]) -> tuple[RunLine, ...]:
    rows: dict[str, set[str]] = {}
    for o in seen:
        rows.setdefault(o.run, set()).add(o.row)
    return tuple(RunLine(run=run, rows=len(keys), finished=True) for run, keys in rows.items())
