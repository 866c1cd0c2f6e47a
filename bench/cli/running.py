"""``cake-bench run`` and ``cake-bench report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.cli.common import Json, finish, measured, mendable, refuse, say, takes_run_options
from bench.rule import other_rule
from bench.run import Outcome, copied, write_cells
from bench.session import Options
from bench.store import open_run


@takes_run_options
def run(options: Options, as_json: Json = False) -> None:
    """Measure a suite, print the summary, write the report; the last line is the report's path."""
    console = Console(stderr=True)
    finish(measured(options, console), console, as_json)


def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    out: Annotated[
        Path | None, typer.Option(help="Leave RUN as it is: copy it to this directory, and report there.")
    ] = None,
    rejudge: Annotated[
        bool, typer.Option("--rejudge", help="With --out: judge the copy by this version's rule.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make cells and report of a run again from its files, by the rule that it was judged by."""
    console = Console(stderr=True)
    if rejudge and out is None:
        refuse(console, "--rejudge needs --out DIR: a run keeps the verdicts of its own rule")
    with mendable(console, f"interrupted; what {run_dir} measured is as it was"):
        directory = open_run(run_dir)
        if out is not None:
            directory = copied(directory, out, rejudge)
        outcome = Outcome(directory, write_cells(directory))
        if words := other_rule(directory.manifest()):
            say(
                console,
                f"note: judged by the rule recorded with the run ({words}); for this version's: "
                f"cake-bench report {run_dir} --rejudge --out DIR",
            )
    finish(outcome, console, as_json)
