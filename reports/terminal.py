"""A run's summary in a terminal, readable without colour: headline, summary, slower rows, files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reports import markdown, tables
from reports.rows import Run, load
from reports.tally import tally

#: T columns side by side: five ranges of 11 characters and the names fit into 80 columns.
TOKENS_A_TABLE = 3
STYLES = {"slower": "bold yellow", "head": "bold", "warning": "yellow", "file": "cyan"}


def print_summary(run_dir: Path, console: Console) -> None:
    """Print a run's summary. Raises :class:`bench.store.StoreError` where the directory holds no cells."""
    run = load(run_dir)
    console.print(f"[{STYLES['head']}]{_plain(markdown.title(run))}[/]")
    overs = markdown.judged(run)
    for over in overs:
        console.print(_plain(markdown.headline(run, over)), highlight=False)
    for text in markdown.warnings(run):
        console.print(f"[{STYLES['warning']}]note:[/] {_plain(text)}", highlight=False)
    _print_table(tables.summary(run, with_gpu=len(run.gpus) > 1), console)
    slower = markdown.slower_lines(run, overs)
    if slower:
        console.print(f"slower rows, as {markdown.slower_legend(overs)}:", highlight=False)
    for line in slower:
        console.print(f"[{STYLES['slower']}]slower[/] {_plain(line)}", highlight=False)
    unmeasured = tally(run, run.rows).unmeasured
    for line in markdown.named(unmeasured):
        console.print(f"[{STYLES['warning']}]not measured[/] {_plain(line)}", highlight=False)
    _print_files(run, run_dir, console)


def _print_table(table: tables.Table, console: Console) -> None:
    """The summary, its T columns a few at a time so that no range is broken over lines."""
    names = [i for i, c in enumerate(table.columns) if not c.title.startswith("SOTA/")]
    tokens = [i for i in range(len(table.columns)) if i not in names]
    for start in range(0, max(len(tokens), 1), TOKENS_A_TABLE):
        keep = [i for i in names if start == 0 or not table.columns[i].number]
        keep += tokens[start : start + TOKENS_A_TABLE]
        shown = Table(box=SIMPLE_HEAD, pad_edge=False, padding=0)
        for i in keep:
            column = table.columns[i]
            side: Literal["left", "right"] = "right" if column.number else "left"
            shown.add_column(escape(column.title.replace(" ", "\n")), justify=side, overflow="fold")
        for line in table.lines:
            shown.add_row(*(escape(line[i]) for i in keep))
        console.print(shown)
    for note in table.notes:
        console.print(_plain(note), highlight=False)


def _print_files(run: Run, run_dir: Path, console: Console) -> None:
    """What else was written; the report's own path is the caller's last line."""
    written = [n for n in (markdown.TABLES, "plots", "cells.json") if (run_dir / n).exists()]
    for name in written:
        # A path is never broken over lines: it is there to be copied.
        console.print(f"[{STYLES['file']}]{escape(str(run_dir / name))}[/]", highlight=False, soft_wrap=True)


def _plain(text: str) -> str:
    """Markdown's backquotes are noise here, and Rich must not read brackets as its own markup."""
    return escape(text.replace("`", ""))
