"""``cake-bench run`` and ``cake-bench report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.cli.common import Json, finish, measured, mendable, takes_run_options
from bench.run import Outcome, write_cells
from bench.session import Options
from bench.store import open_run


@takes_run_options
def run(options: Options, as_json: Json = False) -> None:
    """Measure a suite, print the summary, write the report; the last line is the report's path."""
    console = Console(stderr=True)
    finish(measured(options, console), console, as_json)


def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    as_json: Json = False,
) -> None:
    """Make cells and report of a run again from its files."""
    console = Console(stderr=True)
    with mendable(console, f"interrupted; the files of {run_dir} are as they were"):
        directory = open_run(run_dir)
        outcome = Outcome(directory, write_cells(directory))
    finish(outcome, console, as_json)
