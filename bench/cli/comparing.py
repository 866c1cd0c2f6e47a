"""``cake-bench compare`` and ``cake-bench merge``."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.cli.common import Json, finish, mendable, refuse, say
from bench.merge import merge, refuse_twice
from bench.run import Outcome, write_cells
from bench.store import atomic_write

Runs = Annotated[list[Path], typer.Argument(metavar="RUN", help="Two or more run directories.")]


def compare_runs(
    run_dirs: Runs,
    out: Annotated[Path | None, typer.Option(help="Write the comparison here, as Markdown.")] = None,
    as_json: Json = False,
) -> None:
    """Show runs side by side (run 2 / run 1, unpaired): two nodes, two times, two cuBLAS versions.

    Rows and arms that not all runs have are listed. No gate: the exit code is 0 unless a run cannot be read.
    """
    from reports import compare, terminal
    from reports.matching import match
    from reports.rows import load

    console = Console(stderr=True)
    if len(run_dirs) < 2:
        refuse(console, "one run alone cannot be compared; give two or more run directories")
    with mendable(console, "interrupted; nothing was written"):
        runs = [load(path) for path in run_dirs]
        refuse_twice([run.manifest for run in runs])
        compared = match(runs)
        terminal.print_comparison(compared, console if as_json else Console())
        if out is not None:
            try:
                atomic_write(out, compare.document(compared).encode())
            except OSError as e:
                refuse(console, f"cannot write {out}: {e.strerror or e}; give another --out")
    if as_json:
        print(json.dumps(compare.as_json(compared)))
    elif out is not None:
        say(Console(), str(out))


def merge_runs(
    run_dirs: Runs,
    out: Annotated[Path, typer.Option(help="Directory of the merged run.")],
    as_json: Json = False,
) -> None:
    """Merge runs of one suite, code and GPU model, and report on them as on one run.

    Cells are medians over GPUs; of a library's call, over the GPUs that ran its faster cuBLAS version.
    """
    console = Console(stderr=True)
    with mendable(console, f"interrupted; delete {out} and merge again"):
        directory = merge(run_dirs, out, shlex.join(["cake-bench", *sys.argv[1:]]))
        outcome = Outcome(directory, write_cells(directory))
    finish(outcome, console, as_json)
