"""The tables of a comparison: set-up, summary, times, and every row. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bench.model import Manifest
from bench.statistics import geomean
from reports import format as fmt
from reports.matching import (
    Comparison,
    Matched,
    arm_name,
    counts_above,
    judged_cell,
    of_run,
    over_first,
    ratio_name,
    why_not,
)
from reports.rows import CONTROL, JUDGED, NEW, SOTA, Row, Run
from reports.tables import Column, Notes, Table

#: Differences in the runs' set-up that are always shown; the others only where they differ.
_ALWAYS = ("run", "node", "GPU", "commit", "started", "rows with a result")


def setup(c: Comparison) -> Table:
    """What ran where: what tells the runs apart, one column a run."""
    each = [setup_facts(run) for run in c.runs]
    names = dict.fromkeys(name for facts in each for name in facts)
    lines = []
    for name in names:
        values = [facts.get(name, "none") for facts in each]
        if name in _ALWAYS or len(set(values)) > 1:
            lines.append((name, *values))
    return Table((Column("what", False), *(Column(label, False) for label in c.labels)), tuple(lines))


def setup_facts(run: Run) -> dict[str, str]:
    """What tells a run apart from another."""
    m: Manifest = run.manifest
    measured = sum(not r.missing for r in run.rows)
    facts = {
        "run": m.run,
        "node": m.node,
        "GPU": f"{', '.join(run.gpus)} ({m.device.arch}, {m.device.sms} SMs)",
        "commit": m.git.get("commit", "not recorded") + (" (dirty)" if m.dirty else ""),
        "started": m.started,
        "rows with a result": f"{measured} of {len(run.rows)}",
        "previous version": m.previous.get("ref", "none"),
        "preset": m.preset,
        "form": m.form,
        "groups x steps": f"{m.groups} x {m.steps}",
        "instances in graph mode": _known(m.instances),
        "programs reloaded in eager mode": _known(m.reloads),
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


def _known(value: object) -> str:
    return "not recorded" if value is None else str(value).lower()


def summary(c: Comparison) -> Table:
    """One line a mode and op: per run the ranges of control and of each judged ratio, and counts."""
    notes = Notes()
    some_gpu = any(gpu for gpu, *_ in c.groups)
    columns = [Column("GPU", False)] * some_gpu + [Column("mode", False), Column("op", False)]
    columns += [Column(f"control, {label}") for label in c.labels]
    for arm in c.judged:
        columns += [Column(f"{ratio_name(arm)}, {label}") for label in c.labels]
        columns.append(Column(f"{arm_name(arm)}: above control, {c.reversed_labels}"))
    lines = []
    for gpu, mode, op, rows in c.groups:
        line = [gpu] * some_gpu + [mode, op]
        line += [_range(c, i, rows, CONTROL, notes) for i in range(len(c.runs))]
        for arm in c.judged:
            line += [_range(c, i, rows, arm, notes) for i in range(len(c.runs))]
            line.append(counts_above(c, rows, arm))
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
            line = [mode, arm_name(arm) if arm == SOTA else arm]
            for i in range(1, len(c.runs)):
                found = [x for m in rows if (x := over_first(m, i, arm)) is not None]
                if found:
                    line += [fmt.spread(found), fmt.ratio(geomean(found) or 0.0)]
                else:
                    line += [notes.mark("none", "no row has a time of this arm in both runs")] * 2
                line.append(fmt.of(len(found), len(rows)))
            lines.append(tuple(line))
    return Table(tuple(columns), tuple(lines), notes.lines())


def full_table(c: Comparison, mode: str) -> Table:
    """Every row of a mode: cake's us in each run, and per judged arm its us, ratio and verdict in each."""
    notes = Notes()
    rows = [m for m in c.rows if m.row.mode == mode]
    shown = [a for a in JUDGED if any(a in run.judged for run in c.runs)] + c.judged
    spans = [us for m in rows for r in m.each if r for a in shown if (us := r.us(a)) is not None]
    unit = fmt.unit_for(spans)
    some_gpu = any(m.gpu for m in rows)
    columns = [Column("GPU", False)] * some_gpu + [Column("op", False), Column("shape", False)]
    for arm in shown:
        columns += [Column(f"{arm_name(arm)}, {unit.name}, {label}") for label in c.labels]
        if arm in c.judged:
            columns += [Column(f"{ratio_name(arm)}, {label}") for label in c.labels]
            columns += [Column(f"verdict, {label}", False) for label in c.labels]
        else:
            columns += [Column(f"{arm_name(arm)}, {label} / run 1") for label in c.labels[1:]]
    lines = []
    for m in rows:
        places = fmt.decimals_for(_pairs(m, shown, c.judged), unit, least=2)
        line = [m.gpu] * some_gpu + [m.row.op, m.row.shape]
        for arm in shown:
            line += [_us(r, arm, places, unit, notes, label) for r, label in _labelled(c, m)]
            if arm in c.judged:
                cells = [judged_cell(r, arm) for r in m.each]
                lacking = [
                    notes.mark(*why_not(r, arm, label))
                    for r, label in _labelled(c, m)
                    if not judged_cell(r, arm)
                ]
                gaps = iter(lacking)
                ratios = [fmt.ratio(x.ratio or 0.0) if x else next(gaps) for x in cells]
                gaps = iter(lacking)
                line += ratios + [x.verdict or "none" if x else next(gaps) for x in cells]
            else:
                over = [over_first(m, i, arm) for i in range(1, len(c.runs))]
                line += [notes.mark("none", "not in both runs") if x is None else fmt.ratio(x) for x in over]
        lines.append(tuple(line))
    return Table(tuple(columns), tuple(lines), notes.lines())


def _range(c: Comparison, i: int, rows: Sequence[Matched], arm: str, notes: Notes) -> str:
    mine = of_run(rows, i)
    values = [x for r in mine if (x := r.ratio(arm)) is not None]
    if not mine:
        return notes.mark("no row", f"{c.labels[i]} has no row of this op and mode")
    if not values:
        return notes.mark(*why_not(mine[0], arm, c.labels[i]))
    return fmt.spread(values) + f" ({len(values)} of {len(mine)})" * (len(values) < len(mine))


def _us(row: Row | None, arm: str, places: int, unit: fmt.Unit, notes: Notes, label: str) -> str:
    us = row.us(arm) if row else None
    return notes.mark(*why_not(row, arm, label)) if us is None else fmt.time(us, places, unit)


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
