"""A run's summary in a terminal, readable without colour: headline, summary, slower rows, files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reports import compare, compare_tables, dense, dense_tables, markdown, tables, versions
from reports.findings import without_time
from reports.matching import Comparison
from reports.rows import Run, load
from reports.tally import tally

#: Range columns side by side: five of 11 characters and the names fit into 80 columns.
RANGES_A_TABLE = 5
#: A dense run's geomeans by T side by side: single figures beside two names.
MEANS_A_TABLE = 7
#: Columns of a comparison side by side: they are as wide, but have fewer names before them.
COMPARED_A_TABLE = 5
#: Where a column's title may be broken: not within `run 2 / run 1`.
_BREAKS = re.compile(r"(?<!run)(?<!/) (?!/)")
STYLES = {"slower": "bold yellow", "head": "bold", "warning": "yellow", "file": "cyan"}


def print_comparison(c: Comparison, console: Console) -> None:
    """Print a comparison: each run's headline, the summary side by side, and the findings."""
    console.print(f"[{STYLES['warning']}]note:[/] {_plain(compare.UNPAIRED)}", highlight=False)
    for line in compare.headlines(c):
        console.print(_plain(line), highlight=False)
    for table in (compare_tables.setup(c), compare_tables.summary(c), compare_tables.times(c)):
        wide = [i for i, column in enumerate(table.columns) if column.number]
        _print_table(table, console, wide, COMPARED_A_TABLE)
    for title, lines in compare.findings(c):
        console.print(f"[{STYLES['head']}]{_plain(title)}[/]", highlight=False)
        for line in lines:
            console.print(_plain(line), highlight=False)


def print_summary(run_dir: Path, console: Console) -> None:
    """Print a run's summary. Raises :class:`bench.store.StoreError` where the directory holds no cells."""
    run = load(run_dir)
    console.print(f"[{STYLES['head']}]{_plain(markdown.title(run))}[/]")
    overs = run.judged
    headline = dense.headline if run.dense else markdown.headline
    for line in [headline(run, over) for over in overs] + (dense.beside(run) if run.dense else []):
        console.print(_plain(line), highlight=False)
    if previous := versions.headline(run):
        console.print(_plain(previous), highlight=False)
    for text in markdown.warnings(run):
        console.print(f"[{STYLES['warning']}]note:[/] {_plain(text)}", highlight=False)
    if run.dense:
        means = dense_tables.geomeans(run, "T")
        tokens = [i for i, column in enumerate(means.columns) if column.title.startswith("T=")]
        _print_table(replace(_without(means, tokens), notes=()), console, [], 1)
        numbers = [i for i, column in enumerate(means.columns) if column.number]
        by_t = _without(means, [i for i in numbers if i not in tokens])
        _print_table(by_t, console, range(2, len(by_t.columns)), MEANS_A_TABLE)
    else:
        summary = tables.summary(run, with_gpu=len(run.gpus) > 1)
        tokens = [i for i, column in enumerate(summary.columns) if column.title.startswith("SOTA/")]
        others = sum(column.number for column in summary.columns) - len(tokens)
        _print_table(summary, console, tokens, RANGES_A_TABLE - others)
    for text in versions.slower(run):
        console.print(f"[{STYLES['slower']}]slower than before[/] {_plain(text)}", highlight=False)
    slower = markdown.slower_lines(run, overs)
    if slower:
        console.print(f"slower rows, as {markdown.slower_legend(overs)}:", highlight=False)
    for line in slower:
        console.print(f"[{STYLES['slower']}]slower[/] {_plain(line)}", highlight=False)
    own = [arm for arm in run.arms if run.kinds.get(arm) == "user"]
    for line in without_time(run, own):
        console.print(f"[{STYLES['warning']}]your arm[/] {_plain(line)}", highlight=False)
    unmeasured = tally(run, run.rows).unmeasured
    for line in markdown.named(unmeasured):
        console.print(f"[{STYLES['warning']}]not measured[/] {_plain(line)}", highlight=False)
    _print_files(run, run_dir, console)


def _print_table(table: tables.Table, console: Console, wide: Sequence[int], most: int) -> None:
    """A table, its ``wide`` columns ``most`` at a time so that no range is broken over lines."""
    names = [i for i in range(len(table.columns)) if i not in wide]
    for start in range(0, max(len(wide), 1), most):
        keep = [i for i in names if start == 0 or not table.columns[i].number]
        keep += wide[start : start + most]
        shown = Table(box=SIMPLE_HEAD, pad_edge=False, padding=0)
        for i in keep:
            column = table.columns[i]
            side: Literal["left", "right"] = "right" if column.number else "left"
            shown.add_column(escape(_BREAKS.sub("\n", column.title)), justify=side, overflow="fold")
        for line in table.lines:
            shown.add_row(*(escape(line[i]) for i in keep))
        console.print(shown)
    for note in table.notes:
        console.print(_plain(note), highlight=False)


def _without(table: tables.Table, leave: Sequence[int]) -> tables.Table:
    """A table without some of its columns."""
    keep = [i for i in range(len(table.columns)) if i not in leave]
    lines = tuple(tuple(line[i] for i in keep) for line in table.lines)
    return tables.Table(tuple(table.columns[i] for i in keep), lines, table.notes)


def _print_files(run: Run, run_dir: Path, console: Console) -> None:
    """What else was written; the report's own path is the caller's last line."""
    written = [n for n in (markdown.TABLES, "plots", "cells.json") if (run_dir / n).exists()]
    for name in written:
        # A path is never broken over lines: it is there to be copied.
        console.print(f"[{STYLES['file']}]{escape(str(run_dir / name))}[/]", highlight=False, soft_wrap=True)


def _plain(text: str) -> str:
    """Markdown's backquotes are noise here, and Rich must not read brackets as its own markup."""
    return escape(text.replace("`", ""))
