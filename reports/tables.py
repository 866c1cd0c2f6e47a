"""Cells -> tables: the one builder that owns columns, units and notes. Markdown and terminal print them.

A figure that is not there is never an empty cell: its status word stands there, with the number of a note.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.model import Cell
from bench.statistics import geomean, paired_groups
from reports import format as fmt
from reports.rows import (
    CONTROL,
    DET,
    FP16X2,
    JUDGED,
    NEW,
    NOT_APPLICABLE,
    PREVIOUS,
    SEQUENCE,
    SOTA,
    Row,
    Run,
)
from reports.tally import rival

ITSELF = "a sequence is not part of one"


@dataclass(frozen=True)
class Column:
    """A column: its title, and whether it holds numbers (then it is aligned to the right)."""

    title: str
    number: bool = True


@dataclass(frozen=True)
class Table:
    """A table as text: columns, lines and the notes that its ``[n]`` marks point to."""

    columns: tuple[Column, ...]
    lines: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass
class Notes:
    """Numbers reasons in the order in which a table first needs them; the same reason keeps its number."""

    reasons: list[str] = field(default_factory=list)

    def mark(self, word: str, reason: str) -> str:
        """``word [n]``, where note n holds the reason."""
        if reason not in self.reasons:
            self.reasons.append(reason)
        return f"{word} [{self.reasons.index(reason) + 1}]"

    def lines(self) -> tuple[str, ...]:
        """The notes, numbered."""
        return tuple(f"[{i}] {reason}" for i, reason in enumerate(self.reasons, 1))


def summary(run: Run, with_gpu: bool = True) -> Table:
    """One line a GPU, mode and op: ranges over shapes of previous/new, control, det/cake, fp16x2/cake,
    SOTA/cake.
    """
    notes = Notes()
    pairs = [(PREVIOUS, "previous/new"), (CONTROL, "control"), (DET, "det/cake")]
    pairs = [(arm, title) for arm, title in pairs if arm in run.arms]
    pairs += [(FP16X2, "fp16x2/cake")] * (FP16X2 in run.judged)
    where = "GPU" if run.manifest.device.driver else "device"
    columns = [Column(where, False)] * with_gpu + [Column("mode", False), Column("op", False)]
    columns += [Column(title) for _, title in pairs]
    columns += [Column(f"SOTA/cake T={t}") for t in run.tokens]
    lines = []
    for gpu in run.gpus:
        for mode in run.modes:
            for op in run.ops:
                rows = run.select(gpu, mode, op)
                if not rows:
                    continue
                line = [gpu] * with_gpu + [mode, op]
                line += [_ratio_range(rows, arm, notes) for arm, _ in pairs]
                for t in run.tokens:
                    at_t = [r for r in rows if r.T == t]
                    none = (
                        notes.mark("no row", "the run has no row of this op, mode and T") if not at_t else ""
                    )
                    line.append(none or _ratio_range(at_t, SOTA, notes))
                lines.append(tuple(line))
    return Table(tuple(columns), tuple(lines), notes.lines())


def full(run: Run, mode: str) -> Table:
    """Every row of a mode: us of every arm, SOTA, its ratio, interval and verdict; losing rows first."""
    notes = Notes()
    rows = sorted(run.select(mode=mode), key=losing_first)
    timed = [a for a in run.arms if any(r.us(a) is not None for r in rows)]
    overs = [a for a in JUDGED if any((SOTA, a) in r.cells for r in rows)] or [NEW]
    unit = fmt.unit_for(us for r in rows for a in timed if (us := r.us(a)) is not None)
    pairs = [_printed_pairs(r, timed, overs) for r in rows]
    decimals = fmt.decimals_by_row(pairs, unit, [[us for a in timed if (us := r.us(a))] for r in rows])
    flagged = any(c.flags for r in rows for c in r.cells.values())
    show = _shape_columns(rows)

    columns = [Column("GPU", False)] * (len(run.gpus) > 1) + [Column("op", False)]
    columns += [_shape_column(title) for title, _ in show] + [Column(f"{a}, {unit.name}") for a in timed]
    columns += [Column("SOTA", False)]
    for over in overs:
        of = "" if over == NEW else f" ({over})"
        columns += [Column(f"SOTA/{over}"), Column(f"interval{of}"), Column(f"verdict{of}", False)]
    versions = PREVIOUS in run.arms
    again = any(c.again for r in rows if (c := r.cell(PREVIOUS)))
    if versions:
        columns += [Column("previous/new"), Column("interval (previous)")]
        columns += [Column("verdict (previous)", False)] + [Column("measured again", False)] * again
        columns += [Column("changed", False)]
    columns += [Column("control")] * (CONTROL in run.arms) + [Column("flags", False)] * flagged
    lines = []
    for row, places in zip(rows, decimals, strict=True):
        line = [row.gpu] * (len(run.gpus) > 1) + [row.op] + [get(row) for _, get in show]
        line += [time(row, a, places, unit, notes) for a in timed]
        line.append(row.sota_arm or notes.mark(*row.why_not(SOTA)))
        for over in overs:
            line += judged(row, over, notes)
        if versions:
            line += _versions(row, again, notes)
        if CONTROL in run.arms:
            line.append(_ratio(row, CONTROL, NEW, notes))
        if flagged:
            line.append(_flags(row))
        lines.append(tuple(line))
    untimed = [a for a in run.arms if a not in timed]
    said = [_nowhere(a, rows) for a in untimed]
    tick = run.manifest.timer.tick_us
    if tick and tick >= 0.01 and unit is fmt.US and max(decimals) > 2:
        said.append(
            f"the timer's tick is {tick:.3f} us; decimals beyond it only let the times give the printed ratio"
        )
    return Table(tuple(columns), tuple(lines), notes.lines() + tuple(said))


def passes(run: Run) -> Table:
    """Every row of a run in order-balanced passes: us before and now, the speedup and the slower passes.

    Before is the previous version; where the run has none, the fastest library call.
    """
    notes = Notes()
    arm = PREVIOUS if PREVIOUS in run.arms else SOTA
    word = "previous" if arm == PREVIOUS else "SOTA"
    rows = run.rows
    unit = fmt.unit_for(us for r in rows for a in (arm, NEW) if (us := r.us(a)) is not None)
    show = _shape_columns(rows)
    columns = [Column("GPU", False)] * (len(run.gpus) > 1) + [Column("mode", False), Column("op", False)]
    columns += [_shape_column(title) for title, _ in show] + [Column("SOTA", False)] * (arm == SOTA)
    columns += [Column(f"{word}, {unit.name}"), Column(f"new, {unit.name}"), Column("speedup")]
    columns += [Column("interval"), Column("slower passes"), Column("verdict", False)]
    lines = []
    for row in rows:
        before, new = row.us(arm), row.us(NEW)
        places = fmt.decimals_for([(before, new)] if before and new else [], unit, least=2)
        line = [row.gpu] * (len(run.gpus) > 1) + [row.mode, row.op] + [get(row) for _, get in show]
        if arm == SOTA:
            line.append(row.sota_arm or notes.mark(*row.why_not(SOTA)))
        line += [time(row, a, places, unit, notes) for a in (arm, NEW)]
        ratio, bounds, verdict = judged(row, NEW, notes, arm)
        line += [ratio, bounds, slower_passes(run, row, arm, notes), verdict]
        lines.append(tuple(line))
    return Table(tuple(columns), tuple(lines), notes.lines())


def slower_passes(run: Run, row: Row, arm: str, notes: Notes) -> str:
    """In how many of a row's passes cake is slower than an arm, as ``3 of 16``."""
    cell = row.cell(arm)
    if cell is None or cell.slower_passes is None:
        return notes.mark(*row.why_not(arm))
    samples = run.samples.get(row.key, {})
    baseline = row.sota_arm if arm == SOTA else arm
    if baseline is None or baseline not in samples or NEW not in samples:
        return str(cell.slower_passes)
    return f"{cell.slower_passes} of {paired_groups(samples[baseline], samples[NEW])}"


def rivals(run: Run) -> Table:
    """One line a mode and call: where it is the fastest, its ratio to cake, and SOTA/cake without it."""
    notes = Notes()
    columns = (
        Column("mode", False),
        Column("call", False),
        Column("rows with a time"),
        Column("fastest alone"),
        Column("in a sequence"),
        Column("call/cake"),
        Column("geomean"),
        Column("SOTA/cake without it, geomean"),
        Column("lowest"),
    )
    lines = []
    for mode in run.modes:
        rows = run.select(mode=mode)
        for arm in [a for a in run.arms if not run.is_cake(a)]:
            found = rival(run, rows, arm)
            ratios = [x for r in found.timed if (x := r.ratio(arm)) is not None]
            line = [mode, arm, fmt.of(len(found.timed), len(rows))]
            if arm in run.rivals:
                line += [
                    str(len(found.alone)),
                    notes.mark(NOT_APPLICABLE, ITSELF) if arm == SEQUENCE else str(len(found.in_sequence)),
                ]
            else:
                line += [notes.mark("not ranked", f"`{arm}` is the user's own arm, not a library call")] * 2
            mean = geomean(ratios)
            none = notes.mark(*_common_reason(rows, arm)) if not ratios else ""
            line += [none or fmt.spread(ratios), none or fmt.ratio(mean or 0.0)]
            rest = [x for x in found.without.values() if x is not None]
            rest_mean = geomean(rest)
            if rest_mean is None:
                line += [notes.mark("none", "no other library call has a time")] * 2
            else:
                some = len(rest) < sum(r.ratio(SOTA) is not None for r in rows)
                line += [fmt.ratio(rest_mean) + f" ({len(rest)} rows)" * some, fmt.ratio(min(rest))]
            lines.append(tuple(line))
    return Table(columns, tuple(lines), notes.lines())


def host(run: Run) -> Table:
    """Host time per call (us), one line a mode and op, ranges over shapes, one column an arm."""
    notes = Notes()
    with_host = [a for a in run.calls if any(_host(r, a) is not None for r in run.rows)]
    columns = [Column("mode", False), Column("op", False)] + [Column(f"{a}, us") for a in with_host]
    lines = []
    for mode in run.modes:
        for op in run.ops:
            rows = run.select(mode=mode, op=op)
            if not rows:
                continue
            line = [mode, op]
            for arm in with_host:
                values = [v for r in rows if (v := _host(r, arm)) is not None]
                lacking = [r for r in rows if _host(r, arm) is None]
                word, reason = _common_reason(lacking, arm) if lacking else ("", "")
                if word == "no ratio":
                    word, reason = "not measured", "no host time was measured for this arm and row"
                line.append(
                    _partly(fmt.host_spread(values) if values else "", len(values), rows, word, reason, notes)
                )
            lines.append(tuple(line))
    return Table(tuple(columns), tuple(lines), notes.lines() if lines else ())


def accuracy(run: Run) -> Table:
    """One line a call: rows on which it met the budget, relative Frobenius error per op, top-8 sets, bits.

    An emulated call that fell back is the native one: its errors say nothing of the emulation.
    """
    notes = Notes()
    columns = [Column("call", False), Column("met the budget")] + [Column(f"error, {op}") for op in run.ops]
    columns += [Column("top-8 sets equal")] * (not run.dense) + [Column("same bits after timing")]
    lines = []
    for arm in run.calls:
        checked = [c for r in run.rows if (c := _checked(r, arm))]
        none = notes.mark(*_common_reason(run.rows, arm)) if not checked else ""
        line = [arm, none or fmt.of(sum(met(c, run.manifest.budget) for c in checked), len(run.rows))]
        for op in run.ops:
            rows = run.select(op=op)
            known = [c.rel_fro or 0.0 for r in rows if (c := _checked(r, arm))]
            lacking = [r for r in rows if _checked(r, arm) is None]
            word, reason = _common_reason(lacking, arm) if lacking else ("", "")
            if word == "no ratio":
                word, reason = "not checked", "the cell holds no error"
            line.append(
                _partly(fmt.error_spread(known) if known else "", len(known), rows, word, reason, notes)
            )
        top8 = [c.top8_equal for c in checked if c.top8_equal is not None]
        none = "no op with fwd has a result of this call"
        if not run.dense:
            line.append(fmt.of(sum(top8), len(top8)) if top8 else notes.mark(NOT_APPLICABLE, none))
        bits = [c.bits_equal for r in run.rows if (c := r.cell(arm)) and c.bits_equal is not None]
        none = (
            "bits are kept of cake's arms alone" if not run.is_cake(arm) else "no row has bits of this call"
        )
        if arm == PREVIOUS:
            bits, none = [], "the bits of the previous version are compared with this one's, see Findings"
        line.append(fmt.of(sum(bits), len(bits)) if bits else notes.mark(NOT_APPLICABLE, none))
        lines.append(tuple(line))
    return Table(tuple(columns), tuple(lines), notes.lines())


def _checked(row: Row, arm: str) -> Cell | None:
    """The cell of a call where it has errors of its own."""
    cell = row.cell(arm)
    return cell if cell and cell.rel_fro is not None and cell.status != "fell-back" else None


def met(cell: Cell, budget: float) -> bool:
    """Whether a cell's outputs met the accuracy budget and, where there are logits, kept the top 8.

    A dense row's gate, which depends on its output's dtype, has spoken in the cell's status.
    """
    if cell.layer is not None:
        return cell.rel_fro is not None and cell.status != "inaccurate"
    return cell.rel_fro is not None and cell.rel_fro <= budget and cell.top8_equal is not False


def losing_first(row: Row) -> tuple[int, float]:
    """Rows slower than the previous version, then than SOTA, by ascending ratio; then rows without a
    verdict, then the others as they come.
    """
    before = row.cell(PREVIOUS)
    if before is not None and before.verdict == "slower" and before.ratio is not None:
        return (-1, before.ratio)
    cell = row.cell(SOTA)
    ratio = row.ratio(SOTA)
    if ratio is None or cell is None or cell.verdict is None:
        return (1, 0.0)
    return (0, ratio) if cell.verdict == "slower" else (2, 0.0)


def _shape_columns(rows: Sequence[Row]) -> list[tuple[str, Callable[[Row], str]]]:
    show: list[tuple[str, Callable[[Row], str]]] = [("T", lambda r: str(r.T))]
    if any(r.layer is not None for r in rows):
        outs: list[tuple[str, Callable[[Row], str]]] = [("out", lambda r: r.out or NOT_APPLICABLE)]
        return (
            [("layer", lambda r: r.layer or NOT_APPLICABLE)] + outs * (len({r.out for r in rows}) > 1) + show
        )
    if any(r.H is not None for r in rows):
        show.append(("H", lambda r: NOT_APPLICABLE if r.H is None else str(r.H)))
    if any(r.show_n for r in rows):
        show.append(("N", lambda r: str(r.N)))
    return show


def _shape_column(title: str) -> Column:
    return Column(title, title not in ("layer", "out"))


def _printed_pairs(row: Row, timed: Sequence[str], overs: Sequence[str]) -> list[tuple[float, float]]:
    """The pairs of printed times whose ratio is printed too."""
    wanted = [(row.sota_arm, over) for over in overs] + [(CONTROL, NEW), (PREVIOUS, NEW)]
    times = [(row.us(a), row.us(b)) for a, b in wanted if a and a in timed and b in timed]
    return [(a, b) for a, b in times if a and b]


def time(row: Row, arm: str, decimals: int, unit: fmt.Unit, notes: Notes) -> str:
    """An arm's time on a row, or why it has none."""
    us = row.us(arm)
    return notes.mark(*row.why_not(arm)) if us is None else fmt.time(us, decimals, unit)


def _ratio(row: Row, arm: str, over: str, notes: Notes) -> str:
    value = row.ratio(arm, over)
    return notes.mark(*row.why_not(arm, over)) if value is None else fmt.ratio(value)


def judged(row: Row, over: str, notes: Notes, arm: str = SOTA) -> list[str]:
    """Ratio, interval and verdict of SOTA (or another arm) over an arm."""
    cell = row.cells.get((arm, over))
    if cell is None or cell.status != "ok" or cell.ratio is None:
        return [notes.mark(*row.why_not(arm, over))] * 3
    bounded = cell.ratio_lo is not None and cell.ratio_hi is not None
    few = "too few paired groups for an interval"
    bounds = fmt.interval(cell.ratio_lo or 0.0, cell.ratio_hi or 0.0) if bounded else notes.mark("none", few)
    return [fmt.ratio(cell.ratio), bounds, cell.verdict or notes.mark("none", "the cell holds no verdict")]


def _versions(row: Row, again: bool, notes: Notes) -> list[str]:
    """Ratio, interval and verdict of the previous version, its repeat where rows have one, what changed."""
    line = judged(row, NEW, notes, PREVIOUS)
    cell = row.cell(PREVIOUS)
    if again:
        repeat = cell.again if cell else None
        line.append("no" if repeat is None else f"{fmt.ratio(repeat.ratio)}, {repeat.verdict}")
    if cell is None or cell.program is None:
        unknown = "the plans of one of the versions are not known here"
        return [*line, notes.mark("unknown", unknown)]
    return [*line, ", ".join(cell.changed) or "nothing"]


def _flags(row: Row) -> str:
    """The row's flags, each with its arms where it is not on all of them."""
    flags = {arm: cell.flags for (arm, _), cell in row.cells.items() if arm != SOTA}
    shown = []
    for flag in dict.fromkeys(f for on_arm in flags.values() for f in on_arm):
        arms = [arm for arm, on_arm in flags.items() if flag in on_arm]
        shown.append(flag if len(arms) == len(flags) else f"{flag} ({', '.join(arms)})")
    return "; ".join(shown) or "none"


def _ratio_range(rows: Sequence[Row], arm: str, notes: Notes) -> str:
    values = [v for r in rows if (v := r.ratio(arm)) is not None]
    lacking = [r for r in rows if r.ratio(arm) is None]
    word, reason = _common_reason(lacking, arm) if lacking else ("", "")
    return _partly(fmt.spread(values) if values else "", len(values), rows, word, reason, notes)


def _partly(text: str, n: int, rows: Sequence[Row], word: str, reason: str, notes: Notes) -> str:
    """A range with, where it is not over all rows, how many it is over, and why."""
    if n == len(rows):
        return text
    return notes.mark(f"{text} ({n} of {len(rows)})", f"{word}: {reason}") if n else notes.mark(word, reason)


def _common_reason(rows: Sequence[Row], arm: str) -> tuple[str, str]:
    """Status and reason of the figures that rows lack; all of them in one where they differ."""
    found = list(dict.fromkeys(r.why_not(arm) for r in rows))
    words = list(dict.fromkeys(word for word, _ in found))
    reasons = list(dict.fromkeys(reason for _, reason in found))
    return "/".join(words), "; ".join(reasons)


def _nowhere(arm: str, rows: Sequence[Row]) -> str:
    word, reason = _common_reason(rows, arm)
    return f"`{arm}` has no time in {fmt.of(len(rows), len(rows))} rows: {word}: {reason}"


def _host(row: Row, arm: str) -> float | None:
    cell = row.cell(arm)
    return cell.host_us if cell else None
