"""Two or more runs side by side: what each says, where they differ, and what only some of them hold. Pure.

Runs are unpaired: made at different times or places. So ratios are those inside each run, which are paired;
times of different runs are set against each other for what they are worth, and every text says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from bench.model import Cell, Manifest
from bench.statistics import geomean
from reports import format as fmt
from reports.markdown import bullets, details, headline, joined, table
from reports.rows import CONTROL, DET, NEW, PREVIOUS, SOTA, Row, Run
from reports.tables import Column, Notes, Table
from reports.tally import Against, against_control

UNPAIRED = (
    "Unpaired: the runs were made at different times or places, so what differs between them may be the "
    "machine and not the code. Ratios inside a run are paired; times are set against each other across runs "
    "for orientation, without a verdict."
)
#: How many rows a sentence names before it only counts.
NAMED = 6
#: Differences in the runs' set-up that are always shown; the others only where they differ.
_ALWAYS = ("run", "node", "GPU", "commit", "started", "rows with a result")


@dataclass(frozen=True)
class Matched:
    """One row in all runs: its words, and per run the row, or ``None`` where that run does not have it."""

    gpu: str
    key: str
    each: tuple[Row | None, ...]

    @property
    def row(self) -> Row:
        """The row of the first run that has it: for its names."""
        return next(r for r in self.each if r is not None)

    @property
    def where(self) -> str:
        """The row in words, with the GPU where runs have several."""
        return f"{self.gpu}: {self.row.name}" if self.gpu else self.row.name

    @property
    def common(self) -> bool:
        """Whether every run has the row."""
        return all(r is not None for r in self.each)


@dataclass(frozen=True)
class Comparison:
    """Runs, oldest argument first, and their rows matched by what they are of."""

    runs: tuple[Run, ...]
    rows: tuple[Matched, ...] = field(default=())

    @cached_property
    def labels(self) -> list[str]:
        """``run 1``, ``run 2``, ..."""
        return [f"run {i}" for i in range(1, len(self.runs) + 1)]

    @cached_property
    def reversed_labels(self) -> str:
        """``run 2 / run 1``: the newest first, as counts and time ratios are given."""
        return " / ".join(reversed(self.labels))

    @cached_property
    def arms(self) -> list[str]:
        """The arms of all runs, in print order."""
        found = list(dict.fromkeys(arm for run in self.runs for arm in run.arms))
        return [a for a in found if Run.is_cake(a)] + [a for a in found if not Run.is_cake(a)]

    @cached_property
    def judged(self) -> list[str]:
        """The arms whose ratio to cake is compared: the previous version where a run has it, and SOTA."""
        return [PREVIOUS] * (PREVIOUS in self.arms) + [SOTA]

    @cached_property
    def groups(self) -> list[tuple[str, str, str, list[Matched]]]:
        """``(gpu, mode, op, rows)`` in print order; the GPU is empty where each run has one."""
        found: dict[tuple[str, str, str], list[Matched]] = {}
        for m in self.rows:
            found.setdefault((m.gpu, m.row.mode, m.row.op), []).append(m)
        return [(*where, rows) for where, rows in found.items()]


def match(runs: Sequence[Run]) -> Comparison:
    """Match the rows of runs by suite, op, mode and shape; by GPU model too where a run has several."""
    many = any(len(run.gpus) > 1 for run in runs)
    each = [{((r.gpu if many else ""), r.key): r for r in run.rows} for run in runs]
    keys = dict.fromkeys(key for rows in each for key in rows)
    matched = [Matched(gpu, key, tuple(rows.get((gpu, key)) for rows in each)) for gpu, key in keys]
    gpus, modes, ops = (
        list(dict.fromkeys(get(m) for m in matched))
        for get in (lambda m: m.gpu, lambda m: m.row.mode, lambda m: m.row.op)
    )
    matched.sort(key=lambda m: (gpus.index(m.gpu), modes.index(m.row.mode), ops.index(m.row.op), m.row.order))
    return Comparison(tuple(runs), tuple(matched))


def document(c: Comparison) -> str:
    """The comparison as Markdown. The same runs give the same bytes."""
    suites = ", ".join(dict.fromkeys(run.manifest.suite for run in c.runs))
    lead = f"# Comparison of {len(c.runs)} runs: {suites} suite"
    found = [bullets(f"**{title}**", lines) for title, lines in findings(c)]
    full = [
        details(f"{mode}: all {fmt.counted(len(t.lines), 'row')}", table(t))
        for mode in dict.fromkeys(m.row.mode for m in c.rows)
        for t in [full_table(c, mode)]
    ]
    parts = [lead, f"**{UNPAIRED}**", bullets("", headlines(c)), "## Runs", table(setup(c)), "## Summary"]
    parts += [f"Counts and times are {c.reversed_labels}; of SOTA and previous, above 1.000 cake is faster."]
    parts += [table(summary(c)), "## Times of each arm", table(times(c)), "## Findings", *found]
    return joined(*parts, "## Full tables", *full) + "\n"


def headlines(c: Comparison) -> list[str]:
    """Each run's own headline."""
    return [f"{label}: {headline(run)}" for label, run in zip(c.labels, c.runs, strict=True)]


def setup(c: Comparison) -> Table:
    """What ran where: what tells the runs apart, one column a run."""
    each = [_setup(run) for run in c.runs]
    names = dict.fromkeys(name for facts in each for name in facts)
    lines = []
    for name in names:
        values = [facts.get(name, "none") for facts in each]
        if name in _ALWAYS or len(set(values)) > 1:
            lines.append((name, *values))
    return Table((Column("what", False), *(Column(label, False) for label in c.labels)), tuple(lines))


def _setup(run: Run) -> dict[str, str]:
    m: Manifest = run.manifest
    measured = sum(not r.missing for r in run.rows)
    facts = {
        "run": m.run,
        "node": m.node,
        "GPU": f"{', '.join(run.gpus)} ({m.device.arch}, {m.device.sms} SMs)",
        "commit": m.git.get("commit", "not recorded") + (" (dirty)" if _dirty(m) else ""),
        "started": m.started,
        "rows with a result": f"{measured} of {len(run.rows)}",
        "previous version": m.previous.get("ref", "none"),
        "preset": m.preset,
        "form": m.form,
        "groups x steps": f"{m.groups} x {m.steps}",
        "L2": m.l2_state,
        "timer": m.timer.name,
        "layout": m.layout,
        "driver": m.device.driver or "none",
        "power limit": "not recorded"
        if m.device.power_limit_w is None
        else f"{m.device.power_limit_w:.0f} W",
        "flags": ", ".join(m.flags) or "none",
    }
    return facts | m.versions | {f"library {name}": text for name, text in m.libraries.items()}


def _dirty(m: Manifest) -> bool:
    return m.git.get("dirty", "").lower() in ("true", "yes", "1")


def summary(c: Comparison) -> Table:
    """One line a mode and op: per run the ranges of control and of each judged ratio, and counts."""
    notes = Notes()
    some_gpu = any(gpu for gpu, *_ in c.groups)
    columns = [Column("GPU", False)] * some_gpu + [Column("mode", False), Column("op", False)]
    columns += [Column(f"control, {label}") for label in c.labels]
    for arm in c.judged:
        columns += [Column(f"{_ratio(arm)}, {label}") for label in c.labels]
        columns.append(Column(f"{_word(arm)}: above control, {c.reversed_labels}"))
    lines = []
    for gpu, mode, op, rows in c.groups:
        line = [gpu] * some_gpu + [mode, op]
        line += [_range(c, i, rows, CONTROL, notes) for i in range(len(c.runs))]
        for arm in c.judged:
            line += [_range(c, i, rows, arm, notes) for i in range(len(c.runs))]
            line.append(_counts(c, rows, arm))
        lines.append(tuple(line))
    return Table(tuple(columns), tuple(lines), notes.lines())


def times(c: Comparison) -> Table:
    """One line a mode and arm: its times in each later run over those in run 1, over the rows of both."""
    notes = Notes()
    columns = [Column("mode", False), Column("arm", False)]
    for label in c.labels[1:]:
        columns += [Column(f"us, {label} / run 1"), Column("geomean"), Column("rows of both")]
    lines = []
    for mode in dict.fromkeys(m.row.mode for m in c.rows):
        rows = [m for m in c.rows if m.row.mode == mode]
        for arm in [*c.arms, SOTA]:
            line = [mode, _word(arm) if arm == SOTA else arm]
            for i in range(1, len(c.runs)):
                found = [x for m in rows if (x := _over_first(m, i, arm)) is not None]
                if found:
                    line += [fmt.spread(found), fmt.ratio(geomean(found) or 0.0)]
                else:
                    line += [notes.mark("none", "no row has a time of this arm in both runs")] * 2
                line.append(fmt.of(len(found), len(rows)))
            lines.append(tuple(line))
    return Table(tuple(columns), tuple(lines), notes.lines())


def findings(c: Comparison) -> list[tuple[str, list[str]]]:
    """Titled sentences; what only some runs hold is always said, as is that there is no such thing."""
    made = [
        (f"{_ratio(arm)}, cells by the control range of their run", list(_against(c, arm)))
        for arm in c.judged
    ]
    made += [
        ("Verdicts that differ", _differing(c)),
        ("What only some runs have", _only(c)),
    ]
    return [(title, lines) for title, lines in made if lines]


def _against(c: Comparison, arm: str) -> Iterable[str]:
    """Per mode and op how many cells lie above the control range, and each cell below it in full."""
    for gpu, mode, op, rows in c.groups:
        where = f"{gpu}, {mode} {op}" if gpu else f"{mode} {op}"
        sides = [against_control(run, _of_run(rows, i), arm) for i, run in enumerate(c.runs)]
        n = len(rows)
        for word in ("above", "within", "below"):
            if all(len(getattr(side, word)) == n for side in sides):
                yield f"{where}: {word} control in every cell of every run ({n} of {n})."
                break
        else:
            text = f"{where}: above control {_counts(c, rows, arm)} ({c.reversed_labels})"
            lacking = [(len(s.unknown), label) for s, label in zip(sides, c.labels, strict=True) if s.unknown]
            unknown = fmt.listed([f"{count} of {label}" for count, label in lacking])
            yield text + (f"; without a ratio or control {unknown}." if unknown else ".")
            for m in rows:
                if any(r in side.below for r, side in zip(m.each, sides, strict=True)):
                    each = [_in_full(c, m, i, arm, side) for i, side in enumerate(sides)]
                    yield f"{where}, {m.row.shape}: {'; '.join(each)}."


def _in_full(c: Comparison, m: Matched, i: int, arm: str, side: Against) -> str:
    """A cell in one run: where it lies, both medians, its control pair, and the difference in ticks."""
    row, label = m.each[i], c.labels[i]
    cell = _judged_cell(row, arm)
    if row is None or cell is None or cell.us is None or cell.ratio is None:
        return f"{label} has no such cell ({_why(row, arm, label)[0]})"
    new = cell.us / cell.ratio
    word = next((w for w in ("above", "within", "below") if row in getattr(side, w)), "without")
    text = f"{label} {word} control, {fmt.division(cell.us, new)}"
    if (pair := row.us(CONTROL)) is not None:
        text += f", its control pair {fmt.division(pair, new)}"
    tick, gap = c.runs[i].manifest.timer.tick_us, abs(cell.us - new)
    ticks = f" ({gap / tick:,.{0 if gap > 100 * tick else 1}f} ticks)" if tick else ""
    return f"{text}, difference {gap:.3f} us{ticks}"


def _differing(c: Comparison) -> list[str]:
    """Rows whose verdict is not the same in all runs that have one."""
    lines = []
    for arm in c.judged:
        for m in c.rows:
            cells = [(label, _judged_cell(r, arm)) for label, r in zip(c.labels, m.each, strict=True)]
            known = [(label, cell) for label, cell in cells if cell]
            if len({cell.verdict for _, cell in known}) > 1:
                each = "; ".join(f"{label} {cell.verdict} {_figure(cell)}" for label, cell in known)
                lines.append(f"{m.where}, {_ratio(arm)}: {each}.")
    both = sum(m.common for m in c.rows)
    return lines or [
        f"None in {fmt.counted(both, 'row')} that all runs have." if both else "No row is in all runs."
    ]


def _only(c: Comparison) -> list[str]:
    """Rows and arms that not every run has, and cells whose status differs."""
    lines = []
    for has in dict.fromkeys(_has(m) for m in c.rows if not m.common):
        rows = [m for m in c.rows if _has(m) == has]
        lines.append(f"Only in {_runs(c, has)}: {_names(rows)}.")
    for has in dict.fromkeys(_holds(c, arm) for arm in c.arms):
        if not all(has):
            arms = [f"`{arm}`" for arm in c.arms if _holds(c, arm) == has]
            lines.append(f"Arms only in {_runs(c, has)}: {fmt.listed(arms)}.")
    grouped: dict[tuple[str, tuple[str, ...]], list[Matched]] = {}
    for arm in c.arms:
        if all(_holds(c, arm)):
            for m in c.rows:
                words = tuple(
                    "ok" if r and r.us(arm) else r.why_not(arm)[0] if r else "no row" for r in m.each
                )
                if m.common and len(set(words)) > 1:
                    grouped.setdefault((arm, words), []).append(m)
    for (arm, words), rows in grouped.items():
        each = ", ".join(f"{label} {word}" for label, word in zip(c.labels, words, strict=True))
        lines.append(f"`{arm}`: {each} on {_names(rows)}.")
    return lines or [f"All runs have the same {fmt.counted(len(c.rows), 'row')} and the same arms."]


def full_table(c: Comparison, mode: str) -> Table:
    """Every row of a mode: cake's us in each run, and per judged arm its us, ratio and verdict in each."""
    notes = Notes()
    rows = [m for m in c.rows if m.row.mode == mode]
    shown = [NEW] + [DET] * (DET in c.arms) + c.judged
    spans = [us for m in rows for r in m.each if r for a in shown if (us := r.us(a)) is not None]
    unit = fmt.unit_for(spans)
    some_gpu = any(m.gpu for m in rows)
    columns = [Column("GPU", False)] * some_gpu + [Column("op", False), Column("shape", False)]
    for arm in shown:
        columns += [Column(f"{_word(arm)}, {unit.name}, {label}") for label in c.labels]
        if arm in c.judged:
            columns += [Column(f"{_ratio(arm)}, {label}") for label in c.labels]
            columns += [Column(f"verdict, {label}", False) for label in c.labels]
        else:
            columns += [Column(f"{_word(arm)}, {label} / run 1") for label in c.labels[1:]]
    lines = []
    for m in rows:
        places = fmt.decimals_for(_pairs(m, shown, c.judged), unit, least=2)
        line = [m.gpu] * some_gpu + [m.row.op, m.row.shape]
        for arm in shown:
            line += [_us(r, arm, places, unit, notes, label) for r, label in _labelled(c, m)]
            if arm in c.judged:
                cells = [_judged_cell(r, arm) for r in m.each]
                lacking = [
                    notes.mark(*_why(r, arm, label))
                    for r, label in _labelled(c, m)
                    if not _judged_cell(r, arm)
                ]
                gaps = iter(lacking)
                ratios = [fmt.ratio(x.ratio or 0.0) if x else next(gaps) for x in cells]
                gaps = iter(lacking)
                line += ratios + [x.verdict or "none" if x else next(gaps) for x in cells]
            else:
                over = [_over_first(m, i, arm) for i in range(1, len(c.runs))]
                line += [notes.mark("none", "not in both runs") if x is None else fmt.ratio(x) for x in over]
        lines.append(tuple(line))
    return Table(tuple(columns), tuple(lines), notes.lines())


def as_json(c: Comparison) -> dict[str, Any]:
    """The comparison for programs: the runs' set-up, and per row and arm one entry a run (``null``: none)."""

    def cells(m: Matched) -> Iterable[dict[str, Any]]:
        pairs = dict.fromkeys(pair for r in m.each if r for pair in r.cells)
        for arm, over in pairs:
            each = [r.cells.get((arm, over)) if r else None for r in m.each]
            yield {"arm": arm, "over": over, "runs": [_plain(cell) for cell in each]}

    return {
        "paired": False,
        "runs": [{"label": label, **_setup(run)} for label, run in zip(c.labels, c.runs, strict=True)],
        "rows": [{"gpu": m.gpu, "row": m.key, "cells": list(cells(m))} for m in c.rows],
        "verdicts_differ": _differing(c),
        "only": _only(c),
    }


def _plain(cell: Cell | None) -> dict[str, Any] | None:
    fields = ("status", "reason", "call", "us", "ratio", "ratio_lo", "ratio_hi", "verdict", "slower_passes")
    more = ("control_lo", "control_hi", "host_us", "cublas", "flags")
    return cell.model_dump(mode="json", include={*fields, *more}) if cell else None


def _ratio(arm: str) -> str:
    return "previous/new" if arm == PREVIOUS else f"{_word(arm)}/cake"


def _word(arm: str) -> str:
    return {SOTA: "SOTA", PREVIOUS: "previous", NEW: "cake"}.get(arm, arm)


def _of_run(rows: Sequence[Matched], i: int) -> list[Row]:
    return [r for m in rows if (r := m.each[i]) is not None]


def _counts(c: Comparison, rows: Sequence[Matched], arm: str) -> str:
    """Cells above the control range, newest run first: ``9 / 8, of 9``; each of its total if they differ."""
    found = [
        (len(against_control(run, mine := _of_run(rows, i), arm).above), len(mine))
        for i, run in enumerate(c.runs)
    ][::-1]
    if len({total for _, total in found}) == 1:
        return f"{' / '.join(str(n) for n, _ in found)}, of {found[0][1]}"
    return " / ".join(f"{n} of {total}" for n, total in found)


def _range(c: Comparison, i: int, rows: Sequence[Matched], arm: str, notes: Notes) -> str:
    mine = _of_run(rows, i)
    values = [x for r in mine if (x := r.ratio(arm)) is not None]
    if not mine:
        return notes.mark("no row", f"{c.labels[i]} has no row of this op and mode")
    if not values:
        return notes.mark(*_why(mine[0], arm, c.labels[i]))
    return fmt.spread(values) + f" ({len(values)} of {len(mine)})" * (len(values) < len(mine))


def _why(row: Row | None, arm: str, label: str) -> tuple[str, str]:
    if row is None:
        return "no row", f"{label} does not have this row"
    word, reason = row.why_not(arm)
    return word, f"{label}: {reason}"


def _us(row: Row | None, arm: str, places: int, unit: fmt.Unit, notes: Notes, label: str) -> str:
    us = row.us(arm) if row else None
    return notes.mark(*_why(row, arm, label)) if us is None else fmt.time(us, places, unit)


def _over_first(m: Matched, i: int, arm: str) -> float | None:
    """The arm's time in a run over its time in run 1."""
    first, other = m.each[0], m.each[i]
    a, b = other.us(arm) if other else None, first.us(arm) if first else None
    return a / b if a and b else None


def _judged_cell(row: Row | None, arm: str) -> Cell | None:
    cell = row.cell(arm) if row else None
    return cell if cell and cell.status == "ok" and cell.ratio is not None else None


def _figure(cell: Cell) -> str:
    bounds = ""
    if cell.ratio_lo is not None and cell.ratio_hi is not None:
        bounds = f" {fmt.interval(cell.ratio_lo, cell.ratio_hi)}"
    return f"{fmt.ratio(cell.ratio or 0.0)}{bounds}"


def _pairs(m: Matched, shown: Sequence[str], judged: Sequence[str]) -> list[tuple[float, float]]:
    """The pairs of printed times whose ratio is printed too: against cake, and against run 1."""
    first = m.each[0]
    pairs = []
    for r in m.each:
        pairs += [(r.us(arm), r.us(NEW)) for arm in judged if r]
        pairs += [
            (r.us(arm), first.us(arm))
            for arm in shown
            if r and first and arm not in judged and r is not first
        ]
    return [(a, b) for a, b in pairs if a and b]


def _labelled(c: Comparison, m: Matched) -> list[tuple[Row | None, str]]:
    return list(zip(m.each, c.labels, strict=True))


def _has(m: Matched) -> tuple[bool, ...]:
    return tuple(r is not None for r in m.each)


def _holds(c: Comparison, arm: str) -> tuple[bool, ...]:
    return tuple(arm in run.arms for run in c.runs)


def _runs(c: Comparison, has: Sequence[bool]) -> str:
    return fmt.listed([label for label, there in zip(c.labels, has, strict=True) if there])


def _names(rows: Sequence[Matched]) -> str:
    return (
        fmt.listed([m.where for m in rows])
        if len(rows) <= NAMED
        else f"{len(rows)} rows: "
        + ", ".join(
            f"{mode} {op} ({sum((m.row.mode, m.row.op) == (mode, op) for m in rows)})"
            for mode, op in dict.fromkeys((m.row.mode, m.row.op) for m in rows)
        )
    )
