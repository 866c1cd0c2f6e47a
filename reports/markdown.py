"""A run as Markdown, ready to paste in a pull request. Pure: a :class:`~reports.rows.Run` in, texts out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from reports import definitions, tables, versions
from reports import format as fmt
from reports.findings import findings, no_host_times
from reports.rows import DET, FP16X2, NEW, SOTA, Row, Run
from reports.tally import Tally, control, tally

#: GitHub's limit for a comment or a pull-request body, in characters.
LIMIT = 65_536

REPORT, TABLES = "report.md", "report-tables.md"


@dataclass(frozen=True)
class Plot:
    """A picture beside the report: its path from there, and what it shows."""

    path: str
    caption: str


def documents(
    run: Run, plots: Sequence[Plot], plot_notes: Sequence[str] = (), limit: int = LIMIT
) -> Mapping[str, str]:
    """File name -> text. One file, or two where it would pass ``limit`` characters: the full tables move."""
    before = joined(_top(run), plot_section(plots, plot_notes))
    return fitted(title(run), before, full_tables(run), ending(run), limit)


def fitted(
    name: str, before: str, full: Sequence[str], after: str, limit: int, first: int = 0
) -> Mapping[str, str]:
    """The report in one file, or in two where it would pass ``limit``: the full tables move, but for those
    of the ``first`` ones that still fit.
    """
    whole = joined(before, "## Full tables", *full, after)
    if len(whole) <= limit:
        return {REPORT: whole}
    for kept in range(first, -1, -1):
        what = "The other full tables" if kept else "The full tables"
        moved = (
            f"{what} are in [{TABLES}]({TABLES}): with them this report would have {len(whole):,} "
            f"characters, and GitHub takes {limit:,} in a comment."
        )
        report = joined(before, "## Full tables", *full[:kept], moved, after)
        if len(report) <= limit:
            break
    rest = joined(f"# Full tables: {name}", f"The report is [{REPORT}]({REPORT}).", *full[kept:])
    return {REPORT: report, TABLES: rest}


def headline(run: Run, over: str = NEW) -> str:
    """One sentence: rows by verdict and not measured, the geomean with its interval, the control."""
    t = tally(run, run.rows, over)
    warm = "warm L2: " if run.manifest.l2_state == "warm" else ""
    lead = f"{warm}`{over}` against the best library call: "
    text = f"{lead}faster in {len(t.faster)} of {fmt.counted(len(t.rows), 'row')}, same in {len(t.same)}, "
    text += f"slower in {len(t.slower)}, " + f"unclear in {len(t.unclear)}, " * bool(t.unclear)
    text += f"not measured in {len(t.unmeasured)}; {mean_words(t)}{_by_mode(run, over)}"
    noise = control(run.rows)
    if over == NEW:
        text += f"; control {fmt.spread(noise)}" if noise else "; no control ratio"
    return text + "."


def warnings(run: Run) -> list[str]:
    """What to know before believing a figure: no cold L2, another timer, flags, an unfinished run."""
    m = run.manifest
    said = []
    if m.timer.name == "host":
        said.append("No intervals were timed, as asked by `--timer host`: no row has a ratio.")
    elif m.timer.name not in ("cupti", "cpu"):
        said.append(f"Timed by `{m.timer.name}`, not by CUPTI: {definitions.TIMERS[m.timer.name]}.")
    if m.timer.name == "cpu":
        said.append(
            "Measured on a CPU by its clock, not on a GPU by CUPTI: this says nothing of GPU kernels."
        )
    if m.l2_state == "warm":
        said.append(
            "A warm view, as asked by `--warm-l2`: nothing is flushed between steps, so every arm finds its "
            "inputs in L2 as far as they fit. Its figures do not compare with cold ones."
        )
    elif m.timer.name != "host" and (m.l2 is None or not m.l2.proven):
        said.append(f"Caches are warm; cold L2 is {definitions.l2_state(m)}.")
    flags = [flag for flag in m.flags if flag != "warm"]
    if flags:
        said.append(f"Flags on the whole run: {', '.join(flags)}.")
    if m.control_run:
        said.append(
            "This is a control run: a copy of the same cake, loaded by the same route, stands in the "
            "previous version's place, so previous/new is of equal code."
        )
    if m.finished is None:
        said.append("The run did not finish; rows without a result are counted as not measured.")
    if m.dirty:
        said.append("The working tree had uncommitted changes.")
    if not m.git.get("commit"):
        said.append(f"The commit that ran is {definitions.NO_COMMIT}.")
    if m.timer.dropped_records:
        said.append(
            f"CUPTI dropped {fmt.counted(m.timer.dropped_records, 'record')}; steps that lack one are void."
        )
    said += [f"{note[0].upper()}{note[1:]}." for note in m.notes if "with other versions" in note]
    return said


def slower_lines(run: Run, overs: Sequence[str]) -> list[str]:
    """Every row on which one of the arms is slower, by name with the ratio to each; one line an op and mode.

    :func:`slower_legend` says what the figures are.
    """
    by: dict[str, list[str]] = {}
    for r in run.rows:
        slower = [(c := r.cells.get((SOTA, arm))) is not None and c.verdict == "slower" for arm in overs]
        items = by.setdefault(f"{r.op} {r.mode}", [])
        if any(slower):
            items.append(f"{r.shape} {' | '.join(map(partial(_slower, r), overs, slower))}")
        else:
            items.append("")
    return [
        f"{where} ({fmt.of(sum(map(bool, items)), len(items))}): {'; '.join(filter(None, items))}"
        for where, items in by.items()
        if any(items)
    ]


def slower_legend(overs: Sequence[str]) -> str:
    """What the figures of :func:`slower_lines` are."""
    ratios = " | ".join(f"SOTA/{arm}" for arm in overs)
    return ratios + ", in brackets where that arm is not slower" * (len(overs) > 1)


def _slower(row: Row, arm: str, slower: bool) -> str:
    ratio = row.ratio(SOTA, arm)
    text = row.why_not(SOTA, arm)[0] if ratio is None else fmt.ratio(ratio)
    return text if slower else f"({text})"


def named(rows: Sequence[Row], over: str = NEW) -> list[str]:
    """Rows by name with their ratio, one line a mode and op."""
    by: dict[str, list[str]] = {}
    for r in rows:
        ratio = r.ratio(SOTA, over)
        figure = f" {fmt.ratio(ratio)}" if ratio is not None else f" ({r.why_not(SOTA, over)[0]})"
        by.setdefault(f"{r.op} {r.mode}", []).append(f"{r.shape}{figure}")
    return [f"{where}: {'; '.join(items)}" for where, items in by.items()]


def table(t: tables.Table) -> str:
    """A Markdown table with its notes below."""
    lines = [
        _line([c.title for c in t.columns]),
        _line(["--:" if c.number else "---" for c in t.columns]),
        *(_line([_safe(cell).replace("|", "\\|") for cell in line]) for line in t.lines),
    ]
    notes = "\n".join(f"{_safe(note)}  " for note in t.notes).rstrip()
    return "\n".join(lines) + (f"\n\n{notes}" if notes else "")


def title(run: Run) -> str:
    """What was measured on what, in a few words."""
    m = run.manifest
    how = ", order-balanced passes" * (m.form == "passes") + ", warm L2" * (m.l2_state == "warm")
    how += ", single launches after idle" * bool(m.pause_ms)
    how += f", merged from {len(m.merged)} runs" * bool(m.merged)
    return f"{m.suite} suite, preset {m.preset}{how}, on {', '.join(run.gpus)} ({m.device.arch})"


def before_summary(run: Run, headlines: Sequence[str]) -> list[str]:
    """Title, headlines, the previous version's with the rows on which cake got slower, and doubts."""
    parts = [f"# {title(run)}", *headlines]
    if previous := versions.headline(run):
        parts.append(f"**{previous}**")
        if worse := versions.slower(run):
            parts.append(bullets(f"Rows slower than in {versions.name(run)}:", worse))
    said = [f"> **Note:** {text}" for text in warnings(run)]
    if said:
        parts.append("\n>\n".join(said))
    return parts


def losing_rows(run: Run) -> list[str]:
    """Every slower row by name, and every row without a ratio."""
    slower = slower_lines(run, run.judged)
    parts = [
        bullets(f"Slower rows, as {slower_legend(run.judged)}:", slower) if slower else "No row is slower."
    ]
    unmeasured = tally(run, run.rows).unmeasured
    if unmeasured:
        parts.append(bullets("Rows without a ratio (reasons under Findings):", named(unmeasured)))
    return parts


def finding_section(run: Run) -> str:
    """The findings below their heading."""
    return joined("## Findings", *(bullets(f"**{f.title}**", f.sentences) for f in findings(run)))


def _top(run: Run) -> str:
    parts = before_summary(run, [f"**{headline(run)}**"])
    if DET in run.judged:
        parts.append(
            f"{headline(run, DET)} `{DET}` is what a call does by default; `{NEW}` is deterministic=False."
        )
    if FP16X2 in run.judged:
        parts.append(
            f"{headline(run, FP16X2)} `{FP16X2}` is `{NEW}` with emulation='fp16x2': half the products."
        )
    parts += [
        *losing_rows(run),
        "## Summary",
        "Ranges over shapes; above 1.000 cake is faster. `SOTA` is the fastest library call of each row.",
        table(tables.summary(run)),
        finding_section(run),
    ]
    return joined(*parts)


def mean_words(t: Tally) -> str:
    """The geomean of a tally with its interval, or that there is none."""
    if t.mean is None:
        return "no geomean, since no row has a ratio"
    bounds = "" if t.mean.lo is None or t.mean.hi is None else f" {fmt.interval(t.mean.lo, t.mean.hi)}"
    n = len(t.rows) - len(t.unmeasured)
    some = f" over {fmt.counted(n, 'row')}" if t.unmeasured else ""
    return f"geomean {fmt.ratio(t.mean.value)}{bounds}{some}"


def _by_mode(run: Run, over: str) -> str:
    """The geomeans of the modes, which differ: host time between kernels counts in eager mode alone."""
    means = [(mode, tally(run, run.select(mode=mode), over).mean) for mode in run.modes]
    known = [f"{mode} {fmt.ratio(mean.value)}" for mode, mean in means if mean]
    return f" ({', '.join(known)})" if len(known) > 1 else ""


def plot_section(plots: Sequence[Plot], notes: Sequence[str]) -> str:
    """The pictures, each with its caption, and what is to be said beside them."""
    shown = [f"![{p.caption}]({p.path})\n\n{p.caption}" for p in plots]
    return joined("## Plots", *shown, *notes)


def full_tables(run: Run) -> list[str]:
    """The tables of every row and call, each of which opens on a click."""
    parts = []
    if run.manifest.form == "passes" and not run.dense:
        t = tables.passes(run)
        parts.append(details(f"Order-balanced passes: all {fmt.counted(len(t.lines), 'row')}", table(t)))
    for mode in run.modes:
        t = tables.full(run, mode)
        parts.append(details(f"{mode}: all {fmt.counted(len(t.lines), 'row')}, losing rows first", table(t)))
    parts.append(details("Every library call, and SOTA/cake without it", table(tables.rivals(run))))
    h = tables.host(run)
    parts.append(details("Host time per call", table(h) if len(h.columns) > 2 else no_host_times(run)))
    parts.append(details("Accuracy", table(tables.accuracy(run))))
    return parts


def ending(run: Run) -> str:
    """Definitions and set-up."""
    body = bullets("", [f"**{word}**: {meaning}." for word, meaning in definitions.definitions(run)])
    return joined("## Definitions", body, "## Set-up", table(definitions.setup(run))) + "\n"


def details(title: str, body: str) -> str:
    """A part that opens on a click."""
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def bullets(head: str, items: Sequence[str]) -> str:
    """A list below its heading, if it has one."""
    lines = "\n".join(f"- {_safe(item)}" for item in items)
    return f"{head}\n\n{lines}" if head else lines


def _safe(text: str) -> str:
    """Text in which ``<`` opens no HTML tag; code between backquotes shows as it is anyway."""
    parts = text.split("`")
    return "`".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def joined(*parts: str) -> str:
    """Parts that are not empty, a blank line between them."""
    return "\n\n".join(p for p in parts if p)
