"""Cells -> sentences: what a run shows, in words generated from its figures. Pure.

"Faster" and "within" count against the control range of the same GPU, mode and op; verdicts, which also ask
for an interval and a minimum effect, are the headline's and the tables'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.statistics import geomean
from reports import format as fmt
from reports.rows import CONTROL, DET, FP16X2, JUDGED, NEW, NOT_APPLICABLE, SEQUENCE, SOTA, Row, Run
from reports.tables import met
from reports.tally import Rival, against_control, rival
from reports.versions import against_previous, beside_control, changed, host_times

#: How many of the smallest winning margins are named; how many rows a sentence names before it only counts.
MARGINS, NAMED = 3, 4

#: Of more rows than that, how many ops are named.
MOST_OPS = 6


@dataclass(frozen=True)
class Finding:
    """A titled group of sentences."""

    title: str
    sentences: tuple[str, ...]


def findings(run: Run) -> list[Finding]:
    """All findings that the run's cells can fill; none is left out in silence."""
    parts: list[tuple[str, Callable[[Run], Iterable[str]]]] = [
        ("Against the best library call, by the control range", versus_sota),
        ("The fastest library calls", rival_calls),
        ("Margins", margins),
        ("Deterministic", deterministic),
        ("FP16x2", fp16x2),
        ("Against the previous version", against_previous),
        ("What changed since the previous version", changed),
        ("Host time per call", host_time),
        ("Accuracy", accuracy),
        ("Not rivals, not measured, flagged", exceptions),
    ]
    made = [Finding(title, tuple(make(run))) for title, make in parts]
    return [f for f in made if f.sentences]


def versus_sota(run: Run) -> Iterable[str]:
    """Per GPU, mode and T: rows of each op above, within and below the control range."""
    for gpu in run.gpus:
        for mode in run.modes:
            for t in run.tokens:
                rows = run.select(gpu, mode, tokens=t)
                if rows:
                    where = f"{gpu}, {mode}" if len(run.gpus) > 1 else mode
                    yield f"{where}, T={t}: {_sides(run, rows)}."


def rival_calls(run: Run) -> Iterable[str]:
    """Per mode the calls that are fastest, alone or in a sequence, and SOTA/cake without each."""
    for mode in run.modes:
        rows = [r for r in run.select(mode=mode) if r.sota_arm]
        found = sorted(
            (rival(run, rows, a) for a in run.rivals), key=lambda f: -len(f.alone) - len(f.in_sequence)
        )
        won = [f for f in found if f.alone or f.in_sequence]
        if not won:
            continue
        names = [f"{_named(f.arm)} in {len(f.alone)}" for f in won if f.alone]
        of_rows = f"of {fmt.counted(len(rows), 'row')}, the fastest call"
        yield f"{mode}: {of_rows} is {fmt.listed(names)}{_parts_of_sequences(won)}."
        for f in won:
            judged = [r for r in rows if r.ratio(SOTA) is not None]
            pairs = [(v, now) for r in judged if (v := f.without[r.key]) and (now := r.ratio(SOTA))]
            if len(pairs) < len(judged):
                lost = fmt.of(len(judged) - len(pairs), len(judged))
                yield f"{mode}: without `{f.arm}`, {lost} rows have no other call."
            elif pairs:
                new, now = geomean(v for v, _ in pairs) or 0.0, geomean(n for _, n in pairs) or 0.0
                change = f"{fmt.ratio(now)} -> {fmt.ratio(new)}"
                lowest = fmt.ratio(min(v for v, _ in pairs))
                yield f"{mode}: without `{f.arm}`, geomean SOTA/cake {change}, lowest {lowest}."


def margins(run: Run) -> Iterable[str]:
    """Per mode the lowest row, and the smallest wins with their times."""
    for mode in run.modes:
        rows = [r for r in run.select(mode=mode) if r.ratio(SOTA) is not None]
        if not rows:
            continue
        ranked = sorted(rows, key=lambda r: r.ratio(SOTA) or 0.0)
        yield f"{mode}: the lowest row is {_row_in_full(ranked[0])}."
        wins = [r for r in ranked if (c := r.cell(SOTA)) and c.verdict == "faster"]
        if wins:
            smallest = "; ".join(_row_in_full(r) for r in wins[:MARGINS])
            yield f"{mode}: the smallest winning margins: {smallest}."
        else:
            yield f"{mode}: cake wins no row, so there is no winning margin to show."


def deterministic(run: Run) -> Iterable[str]:
    """What `cake_det` costs over `cake`, per mode."""
    for mode in run.modes:
        yield from beside_control(run, run.select(mode=mode), mode, DET, "`cake_det` / `cake`")


def fp16x2(run: Run) -> Iterable[str]:
    """What `cake_fp16x2` takes of the time of `cake`, per mode; nothing where it did not run."""
    for mode in run.modes:
        yield from beside_control(run, run.select(mode=mode), mode, FP16X2, f"`{FP16X2}` / `cake`")


def no_host_times(run: Run) -> str:
    """Why a run has no host times, in words."""
    if run.manifest.timer.name == "cpu":
        return "A CPU's calls have no host time of their own: a call is over when it returns."
    return "Host time per call was not measured in this run."


def host_time(run: Run) -> Iterable[str]:
    """Per mode and op the range of host time per call of cake's arms and the quickest rival."""
    host = {
        (r.key, a): c.host_us
        for r in run.rows
        for a in run.calls
        if (c := r.cell(a)) and c.host_us is not None
    }
    if not host:
        yield no_host_times(run)
    yield from host_times(run)
    for mode in run.modes:
        for op in run.ops:
            rows = run.select(mode=mode, op=op)
            parts = []
            for arm in [a for a in JUDGED if a in run.arms] + run.rivals:
                values = [host[r.key, arm] for r in rows if (r.key, arm) in host and r.us(arm) is not None]
                if values:
                    # The quickest over all shapes: calls that lack some come last.
                    rank = (-len(values), geomean(values) or 0.0)
                    parts.append((rank, f"`{arm}` {fmt.host_spread(values)}", run.is_cake(arm)))
            ours = [text for _, text, cake in parts if cake]
            theirs = min(((rank, text) for rank, text, cake in parts if not cake), default=None)
            if ours:
                beside = f"; quickest library call {theirs[1]}" if theirs else ""
                yield f"{mode} {op}: {', '.join(ours)} us{beside}."


def accuracy(run: Run) -> Iterable[str]:
    """How many calls met the budget on how many rows, and who did not."""
    budget = run.manifest.budget
    worst, missed = [], []
    met_on: dict[tuple[int, int], list[str]] = {}
    for arm in run.calls:
        cells = [(r, c) for r in run.rows if (c := r.cell(arm)) and c.rel_fro is not None]
        cells = [(r, c) for r, c in cells if c.status != "fell-back"]
        if not cells:
            continue
        bad = [r for r, c in cells if not met(c, budget)]
        met_on.setdefault((len(cells) - len(bad), len(cells)), []).append(arm)
        if bad:
            missed.append(f"`{arm}` missed it on {_names(bad)}.")
        if run.is_cake(arm):
            worst.append(f"`{arm}` {fmt.error(max(c.rel_fro or 0.0 for _, c in cells))}")
    first = "the accuracy budget" + f" of {fmt.budget(budget)}" * (not run.dense)
    for (good, checked), arms in sorted(met_on.items(), reverse=True):
        share = f"{fmt.of(good, checked)} {'row' if checked == 1 else 'rows'}"
        if checked < len(run.rows):
            share += f" that {'has' if checked == 1 else 'have'} a result"
        yield f"{fmt.counted(len(arms), 'call')} met {first} on {share}: {_arms(arms)}."
        first = "it"
    yield from missed
    if worst:
        yield f"Worst relative Frobenius error against FP64: {fmt.listed(worst)}."
    yield from _ties(run)


def _ties(run: Run) -> Iterable[str]:
    """Tokens whose top-8 sets differ from FP64's by a tie: counted, not failed."""
    ties: dict[str, int] = {}
    for arm in (a for f in run.facts.values() for a in f.arms):
        checks = [c for c in (arm.accuracy_before, arm.accuracy_after) if c and c.top8_equal is not None]
        if checks and arm.arm != CONTROL:
            ties[arm.arm] = ties.get(arm.arm, 0) + max(c.top8_ties for c in checks)
    if ties:
        found = [f"{n} of `{arm}`" for arm, n in ties.items() if n]
        yield f"Tokens whose top-8 experts differ from FP64's by a tie: {fmt.listed(found) or 'none'}."


def without_time(run: Run, arms: Sequence[str]) -> Iterable[str]:
    """The cells of arms that have no time, by arm, status and reason."""
    grouped: dict[tuple[str, str, str], list[Row]] = {}
    for arm in arms:
        for row in run.rows:
            word, reason = row.why_not(arm)
            if not row.missing and row.us(arm) is None and word != NOT_APPLICABLE:
                grouped.setdefault((arm, word, reason), []).append(row)
    for (arm, status, reason), rows in grouped.items():
        yield f"`{arm}`: {status} on {_names(rows, len(run.rows))}: {reason}."


def exceptions(run: Run) -> Iterable[str]:
    """Cells without a time, by arm, status and reason, rows without cells, and flags beside times."""
    yield from without_time(run, run.arms)
    unmeasured: dict[str, list[Row]] = {}
    for row in run.rows:
        if row.missing:
            unmeasured.setdefault(row.missing, []).append(row)
    for reason, rows in unmeasured.items():
        yield f"Not measured: {_names(rows, len(run.rows))}: {reason}."
    flagged: dict[str, list[Row]] = {}
    for row in run.rows:
        for flag in sorted({f for c in row.cells.values() for f in c.flags}):
            flagged.setdefault(flag, []).append(row)
    for name, rows in flagged.items():
        yield f"Flag `{name}` stands on {_names(rows, len(run.rows))}; a flag does not remove a time."
    repeated = sum(f.repeated_groups for f in run.facts.values())
    slow_host = sum(f.slow_host_groups for f in run.facts.values())
    if run.facts:
        text = f"Timed steps voided: {_voided(run)}; groups repeated after a hardware slowdown: {repeated}"
        yield f"{text}{f', beside a slow host: {slow_host}' if slow_host else ''}."


def _voided(run: Run) -> str:
    """How many timed steps have no time, and the cell that has most of them."""
    total = sum(a.size for row in run.samples.values() for a in row.values())
    cells = [(arm.voided, arm.arm, key) for key, f in run.facts.items() for arm in f.arms]
    voided, (most, arm, key) = sum(n for n, _, _ in cells), max(cells)
    return f"{voided} of {total:,}" + (f" (most on `{arm}` in {key}: {most})" if voided else "")


def _sides(run: Run, rows: Sequence[Row]) -> str:
    """Counts of rows against the control range, op by op, or in one word where all ops agree."""
    counts, ops = [], [op for op in run.ops if any(r.op == op for r in rows)]
    for op in ops:
        sides = against_control(run, [r for r in rows if r.op == op])
        counts.append(tuple(len(s) for s in (sides.above, sides.within, sides.below, sides.unknown)))
    words = ("cake faster", "within control", "SOTA faster", "not known")
    total = sum(map(sum, counts))
    for i, word in enumerate(words):
        if sum(c[i] for c in counts) == total:
            return (
                f"every cell ({total} of {total}) is {word}"
                if i == 1
                else f"{word} in every cell ({total} of {total})"
            )
    each = []
    for op, c in zip(ops, counts, strict=True):
        each.append(f"{op} " + ", ".join(f"{n} {word}" for n, word in zip(c, words, strict=True) if n))
    return "; ".join(each)


def _named(arm: str) -> str:
    return f"a `{SEQUENCE}` of calls" if arm == SEQUENCE else f"`{arm}` alone"


def _parts_of_sequences(won: Sequence[Rival]) -> str:
    """Whose calls the fastest sequences are made of; one of several calls counts for each of them."""
    parts = [f"`{f.arm}` in {len(f.in_sequence)}" for f in won if f.in_sequence]
    return f"; those sequences have calls of {fmt.listed(parts)}" if parts else ""


def _row_in_full(row: Row, arm: str = SOTA) -> str:
    """A row with both times, their ratio, its interval and its control range."""
    cell = row.cell(arm)
    if cell is None or cell.us is None or cell.ratio is None:
        return row.name
    new = row.us(NEW) or cell.us / cell.ratio
    text = f"{row.name}: {fmt.division(cell.us, new)}"
    if cell.ratio_lo is not None and cell.ratio_hi is not None:
        text += f" {fmt.interval(cell.ratio_lo, cell.ratio_hi)}"
    if arm == SOTA:
        text += f", against `{row.sota_arm}`"
    if cell.control_lo is not None and cell.control_hi is not None:
        text += f", control {fmt.spread([cell.control_lo, cell.control_hi])}"
    return text


def _names(rows: Sequence[Row], total: int = 0) -> str:
    """Rows by name, or only their number where they are many."""
    if total and len(rows) == total:
        return f"all {total} rows" if total > 1 else "the only row"
    if len(rows) <= NAMED:
        return fmt.listed([r.name for r in rows])
    ops = list(dict.fromkeys(f"{r.op} {r.mode}" for r in rows))
    return f"{len(rows)} rows" + f" ({', '.join(ops)})" * (len(ops) <= MOST_OPS)


def _arms(names: Sequence[str]) -> str:
    return fmt.listed([f"`{n}`" for n in names])
