"""What a tuner measured, as Markdown: every plan of every row, the fastest first. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from bench.model import Tried, TunedRow, Tuning
from reports import format as fmt
from reports.markdown import bullets, joined, table
from reports.tables import Column, Notes, Table

COLUMNS = tuple(
    Column(title, number)
    for title, number in (
        ("arm", False),
        ("us", True),
        ("shipped / this", True),
        ("interval", True),
        ("verdict", False),
        ("plan", False),
    )
)


def document(t: Tuning) -> str:
    """All rows. The same tuning gives the same bytes."""
    lead = f"# Plans tried on {t.device.name} ({t.device.arch}), {t.started[:10]}"
    labels = f"Every time is labelled {fmt.listed(t.flags)}." if t.flags else ""
    meaning = (
        "`cake` is the shipped rule's plan, `control` the same again; above 1.000 the line's plan is faster. "
        "What takes the shipped plan's place is faster than both."
    )
    without = [*t.missing, *t.of("error", "unsupported", "inaccurate")]
    missing = bullets("Without a time:", without) if without else ""
    rows = [joined(f"## {row.row}", table(_table(row))) for row in t.rows]
    return joined(lead, f"**{headline(t)}**", labels, missing, meaning, *rows) + "\n"


def headline(t: Tuning) -> str:
    """On how many rows something is faster than the shipped rule's plan."""
    found = sum(bool(row.arm) for row in t.rows)
    if not t.rows:
        return "No row was measured."
    if not found:
        return f"Nothing is faster than the shipped rules on {fmt.of(len(t.rows), len(t.rows))} rows."
    return f"Faster than the shipped rules: {fmt.of(found, len(t.rows))} rows."


def gains(t: Tuning) -> Iterable[str]:
    """A line a row where something is faster."""
    for row in t.rows:
        found = next((x for x in row.tried if x.name == row.arm), None)
        if found and row.base.us is not None and found.us is not None:
            yield f"{row.row}: {fmt.division(row.base.us, found.us)}, {found.name}"


def _table(row: TunedRow) -> Table:
    notes = Notes()
    timed = [t for t in (row.base, *row.tried) if t.us is not None]
    unit = fmt.unit_for(t.us for t in timed if t.us is not None)
    base = row.base.us
    pairs = [(base, t.us) for t in timed if base is not None and t.us is not None]
    decimals = fmt.decimals_for(pairs, unit, 2)
    order = sorted((row.base, *row.tried), key=lambda t: float("inf") if t.us is None else t.us)
    columns = (*COLUMNS[:1], Column(unit.name, True), *COLUMNS[2:])
    return Table(columns, tuple(_line(t, decimals, unit, notes) for t in order), notes.lines())


def _line(t: Tried, decimals: int, unit: fmt.Unit, notes: Notes) -> tuple[str, ...]:
    plan = t.plan
    if t.us is None:
        return t.name, notes.mark(t.status, t.reason), "", "", "", plan
    flags = f" ({', '.join(t.flags)})" if t.flags else ""
    ratio = "" if t.ratio is None else fmt.ratio(t.ratio)
    interval = "" if t.ratio_lo is None or t.ratio_hi is None else fmt.interval(t.ratio_lo, t.ratio_hi)
    return t.name, fmt.time(t.us, decimals, unit) + flags, ratio, interval, t.verdict or "", plan
