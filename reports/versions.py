"""The previous version of cake beside this one: its headline, its sentences, what changed. Pure.

In a control run the previous version is a copy of this one; the words then say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from bench.model import Cell
from bench.statistics import geomean
from reports import format as fmt
from reports.rows import CONTROL, NEW, PREVIOUS, Row, Run
from reports.tally import against_control, tally

#: How many changes from one name to another a sentence names; of how many ops and modes it names rows.
TRANSITIONS, PLACES = 6, 6
#: What may change of a row, in print order.
PARTS = ("program", "plan", "partition")


def name(run: Run) -> str:
    """The previous version in words."""
    if run.manifest.control_run:
        return "a copy of itself (control run)"
    ref, commit = (run.manifest.previous.get(key, "") for key in ("ref", "commit"))
    if len(ref) >= 7 and commit.startswith(ref):  # the ref is the commit, more or less of it
        ref = ""
    words = ", ".join(word for word in (ref, commit[:12]) if word)
    return "the previous version" + f" ({words})" * bool(words)


def headline(run: Run) -> str:
    """One sentence: rows by verdict against the previous version; empty where it is no arm."""
    if PREVIOUS not in run.arms:
        return ""
    t = tally(run, run.rows, arm=PREVIOUS)
    text = f"`{NEW}` against {name(run)}: faster in {len(t.faster)} of {fmt.counted(len(t.rows), 'row')}, "
    text += f"same in {len(t.same)}, slower in {len(t.slower)}, "
    text += f"unclear in {len(t.unclear)}, " * bool(t.unclear) + f"not measured in {len(t.unmeasured)}; "
    if t.mean is None:
        return f"{text}no geomean, since no row has a ratio."
    bounded = t.mean.lo is not None and t.mean.hi is not None
    bounds = f" {fmt.interval(t.mean.lo or 0.0, t.mean.hi or 0.0)}" if bounded else ""
    return f"{text}geomean {fmt.ratio(t.mean.value)}{bounds}."


def slower(run: Run) -> list[str]:
    """Every row that is slower than in the previous version, by name with its times."""
    return [in_full(run, r) for r in tally(run, run.rows, arm=PREVIOUS).slower]


def against_previous(run: Run) -> Iterable[str]:
    """Per GPU and mode: the range, the cells above control op by op, how many are within, each below it."""
    for gpu in run.gpus:
        for mode in run.modes:
            every = run.select(gpu, mode)
            rows = [r for r in every if r.ratio(PREVIOUS) is not None]
            if not rows:
                continue
            where = f"{gpu}, {mode}" if len(run.gpus) > 1 else mode
            yield from beside_control(run, every, where, PREVIOUS, "previous / new")
            sides = against_control(run, rows, PREVIOUS)
            yield f"{where}: {_above(run, rows, sides.above)}."
            outside = [*sides.above, *sides.below]
            if outside:
                most = max(abs((r.ratio(PREVIOUS) or 1.0) - 1.0) for r in outside)
                lowest = min(rows, key=lambda r: r.ratio(PREVIOUS) or 0.0)
                shown = in_full(run, lowest)
                if lowest in sides.below:  # it is shown in full below
                    shown = f"{lowest.name}, {fmt.ratio(lowest.ratio(PREVIOUS) or 0.0)}"
                others = f"the {'other differs' if len(outside) == 1 else 'others differ'} by at most"
                yield (
                    f"{where}: {fmt.of(len(sides.within), len(rows))} within control; {others} "
                    f"{100 * most:.1f} %; the lowest is {shown}."
                )
            for r in sides.below:
                yield f"{where}: below control: {in_full(run, r)}."
            yield from _unconfirmed(run, where, rows)


def changed(run: Run) -> Iterable[str]:
    """Which programs, plans, partitions and output bits differ from the previous version's."""
    pairs = [(r, old, new) for r in run.rows if (old := r.cell(PREVIOUS)) and (new := r.cell(NEW))]
    known = [(r, old, new) for r, old, new in pairs if old.program and new.program]
    if not known:
        if pairs:
            yield "Programs and plans of the previous version are not known."
        yield from _bits(pairs)
        return
    total = len(known)
    untouched = [part for part in PARTS if not any(part in old.changed for _, old, _ in known)]
    if untouched:
        words = " or ".join(untouched) if len(untouched) < 3 else "program, plan or partition"
        yield f"No {words} changed on {_all(total)}."
    for part in PARTS:
        rows = [(r, old, new) for r, old, new in known if part in old.changed]
        if rows:
            yield f"The {part} changed on {_where([r for r, _, _ in rows], total)}{_transitions(part, rows)}."
    yield from _bits(pairs)


def host_times(run: Run) -> Iterable[str]:
    """Host time per call, previous -> new, as ranges over shapes, op by op; one sentence a mode."""
    for mode in run.modes:
        parts = []
        for op in run.ops:
            both = [(r.cell(PREVIOUS), r.cell(NEW)) for r in run.select(mode=mode, op=op)]
            times = [(old.host_us, new.host_us) for old, new in both if old and new]
            before = [a for a, b in times if a is not None and b is not None]
            after = [b for a, b in times if a is not None and b is not None]
            if before:
                parts.append(f"{op} {fmt.host_spread(before)} -> {fmt.host_spread(after)}")
        if parts:
            yield f"{mode}, previous -> new: {', '.join(parts)} us."


def beside_control(run: Run, rows: Sequence[Row], where: str, arm: str, title: str) -> Iterable[str]:
    """The range of an arm's ratio to cake and its geomean, with counts by the control range."""
    rows = [r for r in rows if r.ratio(arm) is not None]
    if not rows:
        return
    sides = against_control(run, rows, arm)
    ratios = [r.ratio(arm) or 0.0 for r in rows]
    control = [x for r in rows if (x := r.ratio(CONTROL)) is not None]
    counts = [
        ("above", sides.above),
        ("within", sides.within),
        ("below", sides.below),
        ("without", sides.unknown),
    ]
    words = ", ".join(f"{len(s)} {word}" for word, s in counts if s)
    beside = f" ({fmt.spread(control)} over all)" if control else ""
    mean = fmt.ratio(geomean(ratios) or 0.0)
    of_rows = f"of {fmt.counted(len(rows), 'row')}, {words} control{beside}"
    yield f"{where}: {title} is {fmt.spread(ratios)}, geomean {mean}; {of_rows}."


def in_full(run: Run, row: Row) -> str:
    """A row with both medians, its interval, its control pair, its repeat and the difference in ticks."""
    cell = row.cell(PREVIOUS)
    if cell is None or cell.us is None or cell.ratio is None:
        return row.name
    new = row.us(NEW) or cell.us / cell.ratio
    parts = [f"{_division(cell.us, new)}{_bounds(cell.ratio_lo, cell.ratio_hi)}"]
    if (control := row.us(CONTROL)) is not None:
        around = ""
        if cell.control_lo is not None and cell.control_hi is not None:
            around = f" (range {fmt.spread([cell.control_lo, cell.control_hi])})"
        parts.append(f"control pair {_division(control, new)}{around}")
    parts.append(_again(cell))
    if tick := run.manifest.timer.tick_us:
        ticks = abs(cell.us - new) / tick
        number = f"{ticks:.1f}" if ticks < 10 else f"{ticks:,.0f}"
        parts.append(f"the medians differ by {number} ticks of {1000 * tick:.0f} ns")
    return f"{row.name}: {'; '.join(parts)}"


def _unconfirmed(run: Run, where: str, rows: Sequence[Row]) -> Iterable[str]:
    """The rows whose first verdict was not repeated when they were measured again."""
    for word in ("slower", "faster"):
        found = [r for r in rows if (c := r.cell(PREVIOUS)) and c.again and c.first_verdict == word]
        found = [r for r in found if (c := r.cell(PREVIOUS)) and c.verdict != word]
        if found and word == "slower":
            for r in found:
                yield f"{where}: slower at first, not confirmed: {in_full(run, r)}."
        elif found:
            yield f"{where}: faster at first, not confirmed: {_where(found, len(rows))}."


def _again(cell: Cell) -> str:
    if cell.again is None:
        return "not measured again"
    a = cell.again
    verdict = f"{a.verdict}, {'as' if a.verdict == cell.first_verdict else 'not'} at first"
    return f"again {_division(a.us, a.over_us)}{_bounds(a.ratio_lo, a.ratio_hi)} ({verdict})"


def _division(a: float, b: float) -> str:
    return fmt.division(a, b)


def _bounds(lo: float | None, hi: float | None) -> str:
    return "" if lo is None or hi is None else f" {fmt.interval(lo, hi)}"


def _above(run: Run, rows: Sequence[Row], above: Sequence[Row]) -> str:
    """How many cells lie above the control range, op by op; in one word where all or none do."""
    if len(above) == len(rows):
        return f"above control in every cell ({len(above)} of {len(rows)})"
    if not above:
        return f"above control in no cell of {len(rows)}"
    parts = []
    for op in run.ops:
        total, n = (sum(r.op == op for r in some) for some in (rows, above))
        if total:
            parts.append(f"{op} every cell ({n})" if n == total > 1 else f"{op} {n} of {total}")
    return f"above control: {', '.join(parts)}"


def _transitions(part: str, rows: Sequence[tuple[Row, Cell, Cell]]) -> str:
    """From what to what it changed, by the number of rows."""
    found: Counter[str] = Counter()
    for _, old, new in rows:
        a, b = {
            "program": (old.program, new.program),
            "plan": (old.call, new.call),
            "partition": (old.partition, new.partition),
        }[part]
        found[f"`{a}` made differently" if a == b else f"`{a}` -> `{b}`"] += 1
    if part == "plan":  # they are long, and the tables of calls hold them
        return ""
    named = [f"{words} on {n}" for words, n in found.most_common(TRANSITIONS)]
    more = len(found) - len(named)
    return f": {'; '.join(named)}" + f"; {more} more" * bool(more)


def _bits(pairs: Sequence[tuple[Row, Cell, Cell]]) -> Iterable[str]:
    compared = [(r, old) for r, old, _ in pairs if old.bits_equal is not None]
    equal = [r for r, old in compared if old.bits_equal]
    if compared:
        rows = "row" if len(compared) == 1 else "rows"
        yield f"Deterministic outputs have the same bits on {fmt.of(len(equal), len(compared))} {rows}."
    other = [(r, old) for r, old in compared if not old.bits_equal]
    if other:
        yield f"The bits changed on {_where([r for r, _ in other], len(pairs))}."
    kept = [r for r, old in other if old.bits_unexplained]
    if kept:
        yield (
            f"They must not have on {_where(kept, len(pairs))}: neither program nor partition of the "
            "deterministic call changed."
        )
    unknown = [r for r, old in other if old.bits_unknown]
    if unknown:
        yield f"It is not known whether the program changed on {_where(unknown, len(pairs))}."
    lacking = len(pairs) - len(compared)
    if lacking:
        yield f"Bits were not compared on {fmt.counted(lacking, 'row')}: one of the versions gave none there."


def _where(rows: Sequence[Row], total: int) -> str:
    """How many rows, and which ops and modes they are of."""
    if len(rows) == total:
        return _all(total)
    places = list(dict.fromkeys(f"{r.op} {r.mode}" for r in rows))
    if len(rows) == 1:
        return f"1 of {total} rows ({rows[0].name})"
    return f"{len(rows)} of {total} rows" + f" ({', '.join(places)})" * (len(places) <= PLACES)


def _all(total: int) -> str:
    return f"all {total} rows" if total > 1 else "the only row"
