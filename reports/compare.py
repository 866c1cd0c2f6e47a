"""Two or more runs side by side: what each says, where they differ, and what only some of them hold. Pure.

Runs are unpaired: made at different times or places. So ratios are those inside each run, which are paired;
times of different runs are set against each other for what they are worth, and every text says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bench.model import Cell
from reports import format as fmt
from reports.compare_tables import full_table, setup, setup_facts, summary, times
from reports.markdown import bullets, details, headline, joined, table
from reports.matching import (
    Comparison,
    Matched,
    counts_above,
    judged_cell,
    of_run,
    ratio_name,
    why_not,
)
from reports.rows import CONTROL
from reports.tally import Against, against_control

UNPAIRED = (
    "Unpaired: the runs were made at different times or places, so what differs between them may be the "
    "machine and not the code. Ratios inside a run are paired; times are set against each other across runs "
    "for orientation, without a verdict."
)
#: How many rows a sentence names before it only counts.
NAMED = 6


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


def findings(c: Comparison) -> list[tuple[str, list[str]]]:
    """Titled sentences; what only some runs hold is always said, as is that there is no such thing."""
    made = [
        (f"{ratio_name(arm)}, cells by the control range of their run", list(_against(c, arm)))
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
        sides = [against_control(run, of_run(rows, i), arm) for i, run in enumerate(c.runs)]
        n = len(rows)
        for word in ("above", "within", "below"):
            if all(len(getattr(side, word)) == n for side in sides):
                yield f"{where}: {word} control in every cell of every run ({n} of {n})."
                break
        else:
            text = f"{where}: above control {counts_above(c, rows, arm)} ({c.reversed_labels})"
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
    cell = judged_cell(row, arm)
    if row is None or cell is None or cell.us is None or cell.ratio is None:
        return f"{label} has no such cell ({why_not(row, arm, label)[0]})"
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
            cells = [(label, judged_cell(r, arm)) for label, r in zip(c.labels, m.each, strict=True)]
            known = [(label, cell) for label, cell in cells if cell]
            if len({cell.verdict for _, cell in known}) > 1:
                each = "; ".join(f"{label} {cell.verdict} {_figure(cell)}" for label, cell in known)
                lines.append(f"{m.where}, {ratio_name(arm)}: {each}.")
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


def as_json(c: Comparison) -> dict[str, Any]:
    """The comparison for programs: the runs' set-up, and per row and arm one entry a run (``null``: none)."""

    def cells(m: Matched) -> Iterable[dict[str, Any]]:
        pairs = dict.fromkeys(pair for r in m.each if r for pair in r.cells)
        for arm, over in pairs:
            each = [r.cells.get((arm, over)) if r else None for r in m.each]
            yield {"arm": arm, "over": over, "runs": [_plain(cell) for cell in each]}

    return {
        "paired": False,
        "runs": [{"label": label, **setup_facts(run)} for label, run in zip(c.labels, c.runs, strict=True)],
        "rows": [{"gpu": m.gpu, "row": m.key, "cells": list(cells(m))} for m in c.rows],
        "verdicts_differ": _differing(c),
        "only": _only(c),
    }


def _plain(cell: Cell | None) -> dict[str, Any] | None:
    fields = ("status", "reason", "call", "us", "ratio", "ratio_lo", "ratio_hi", "verdict", "slower_passes")
    more = ("control_lo", "control_hi", "host_us", "cublas", "flags")
    return cell.model_dump(mode="json", include={*fields, *more}) if cell else None


def _figure(cell: Cell) -> str:
    bounds = ""
    if cell.ratio_lo is not None and cell.ratio_hi is not None:
        bounds = f" {fmt.interval(cell.ratio_lo, cell.ratio_hi)}"
    return f"{fmt.ratio(cell.ratio or 0.0)}{bounds}"


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
