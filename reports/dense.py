"""The report of a dense run as Markdown: which projections are faster, by how much, and how near the peak.

Pure, as :mod:`reports.markdown`, whose parts it shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from reports import dense_tables, markdown, versions
from reports import format as fmt
from reports.dense_words import form
from reports.rows import CONTROL, DET, NEW, PREVIOUS, SOTA, Row, Run
from reports.tally import control, tally

#: Ratio below which a row is named with its times, and needs a reason.
FLOOR = 0.95


def documents(
    run: Run, plots: Sequence[markdown.Plot], plot_notes: Sequence[str] = (), limit: int = markdown.LIMIT
) -> Mapping[str, str]:
    """File name -> text, as :func:`reports.markdown.documents`; the tables of all rows move last."""
    before = markdown.joined(_top(run), markdown.plot_section(plots, plot_notes))
    shown = [PREVIOUS, SOTA] if PREVIOUS in run.arms else [SOTA]
    full = [part for arm in shown for part in _rows(run, arm)]
    layers = markdown.details("Geomeans by layer", markdown.table(dense_tables.geomeans(run, "layer")))
    rest = [layers, *markdown.full_tables(run)]
    return markdown.fitted(
        markdown.title(run),
        before,
        [*full, *rest],
        markdown.ending(run),
        limit,
        len(full),
    )


def headline(run: Run, over: str = NEW) -> str:
    """Rows by verdict and not measured, the geomean over all rows, by T, the control, and in which form."""
    return f"{_capital(form(run.manifest))}: {markdown.headline(run, over)}"


def beside(run: Run) -> list[str]:
    """What stands beside the headline: against torch's own choice, per T, and the control."""
    said = []
    torch = dense_tables.TORCH
    if torch in run.arms:
        t = tally(run, run.rows, arm=torch)
        said.append(
            f"Against `{torch}`, torch.matmul's own choice: faster in {len(t.faster)} of "
            f"{fmt.counted(len(t.rows), 'row')}, slower in {len(t.slower)}, not measured in "
            f"{len(t.unmeasured)}; {markdown.mean_words(t)}."
        )
    each = [(t, tally(run, run.select(tokens=t))) for t in run.tokens]
    said.append(f"SOTA/cake per T: {'; '.join(f'T={t} {markdown.mean_words(found)}' for t, found in each)}.")
    noise = control(run.rows)
    if noise and CONTROL in run.arms:
        t = tally(run, run.rows, arm=CONTROL)
        said.append(
            f"Control, the same code against itself: {markdown.mean_words(t)}, range {fmt.spread(noise)}; "
            f"called different in {len(t.faster) + len(t.slower)} of {fmt.counted(len(t.rows), 'row')}."
        )
    return said


def below_floor(run: Run) -> Iterable[str]:
    """The rows below the floor, whatever their verdict, with cake's plan and the flags."""
    low = [r for r in run.rows if (x := r.ratio(SOTA)) is not None and x < FLOOR]
    for r in sorted(low, key=lambda r: r.ratio(SOTA) or 0.0):
        yield f"{r.name}: {_in_full(r)}."


def peak(run: Run) -> Iterable[str]:
    """The fastest cell of each GPU model, and the rows on which cake is nearest to it."""
    for gpu, most in dense_tables.peaks(run).items():
        rows = run.select(gpu)
        cells = [(speed, r, a) for r in rows for a in run.arms if (us := r.us(a)) and (speed := r.tflops(us))]
        _, at, arm = max(cells, key=lambda c: c[0])
        timed = [us for r in rows if (us := r.us(NEW))]
        own = [speed for r in rows if (us := r.us(NEW)) and (speed := r.tflops(us))]
        text = f"{gpu}: the measured peak is {fmt.digits(most)} TFLOP/s, of `{arm}` in {at.name}"
        if timed:
            near = sum(speed >= 0.9 * most for speed in own)
            text += f"; `{NEW}` reaches {fmt.digits(max(own))}, and 90 % of the peak or more in "
            text += f"{fmt.of(near, len(own))} rows"
        yield f"{text}."


def copies(run: Run) -> Iterable[str]:
    """The library calls that copy an operand first, by the rows on which they do."""
    for arm in run.rivals:
        rows = [r for r in run.rows if (c := r.cell(arm)) and "copy" in c.call]
        if rows:
            named = fmt.listed(list(dict.fromkeys(f"{r.op} {r.layer}" for r in rows)))
            count = fmt.of(len(rows), len(run.rows))
            yield f"`{arm}` copies an operand, inside its time, in {count} rows: {named}."


def _top(run: Run) -> str:
    parts = markdown.before_summary(run, [f"**{headline(run)}**", markdown.bullets("", beside(run))])
    if DET in run.judged:
        parts.append(
            f"{markdown.headline(run, DET)} `{DET}` is what a call does by default; `{NEW}` is "
            "deterministic=False."
        )
    parts += markdown.losing_rows(run)
    low = list(below_floor(run))
    head = f"Rows below {FLOOR:g} ({fmt.of(len(low), len(run.rows))}):"
    parts.append(markdown.bullets(head, low) if low else f"No row is below {FLOOR:g}.")
    parts += [
        "## Geomeans",
        f"Above 1.000 cake is faster; {form(run.manifest)}. `SOTA` is the fastest library call of each row.",
        markdown.table(dense_tables.geomeans(run, "T")),
        markdown.finding_section(run),
        *[markdown.bullets("**Share of the measured peak**", said) for said in [list(peak(run))] if said],
        *[markdown.bullets("**Copies**", said) for said in [list(copies(run))] if said],
    ]
    return markdown.joined(*parts)


def _rows(run: Run, arm: str) -> list[str]:
    """The rows against an arm in two tables: those that cake loses or does not settle, and all others."""
    against = "the best library call" if arm == SOTA else versions.name(run)
    won = [r for r in run.rows if (c := r.cell(arm)) and c.verdict in ("faster", "same")]
    parts = []
    for word, rows in (("slower, unclear or not measured", _without(run.rows, won)), ("faster or same", won)):
        title = f"Against {against}, {form(run.manifest)}: {fmt.of(len(rows), len(run.rows))} rows, {word}"
        if rows:
            table = dense_tables.rows_against(run, rows, arm)
            parts.append(markdown.details(title, markdown.table(table)))
    return parts


def _without(rows: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    keys = {(r.gpu, r.key) for r in others}
    return [r for r in rows if (r.gpu, r.key) not in keys]


def _in_full(row: Row) -> str:
    cell, new = row.cell(SOTA), row.us(NEW)
    if cell is None or cell.us is None or cell.ratio is None or new is None:
        return "no times"
    own = row.cell(NEW)
    plan = f", cake by `{own.call or own.program}`" if own and (own.call or own.program) else ""
    flags = f"; flags {', '.join(cell.flags)}" if cell.flags else ""
    return f"{fmt.division(cell.us, new)} ({cell.verdict}) against `{row.sota_arm}`{plan}{flags}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
