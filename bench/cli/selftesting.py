"""``cake-bench selftest``."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.cli.common import Json, measured, mendable, refuse, say
from bench.selftest import observed, run_directories, simulated, summarise
from bench.selftest_model import Selftest
from bench.session import Options
from bench.store import atomic_write, open_run
from reports.selftest import words

RESULT = "selftest.json"


def selftest(
    directories: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR...", help="With --summarise: runs, or selftests.")
    ] = None,
    runs: Annotated[int, typer.Option(help="How many runs.", min=1)] = 10,
    planted: Annotated[
        bool, typer.Option("--planted/--no-planted", help="Plant slowdowns of 1, 2 and 5 %, or only A/A.")
    ] = True,
    rows: Annotated[
        str | None, typer.Option(help="Comma-separated patterns of row keys, e.g. 'router-fwd-graph-*'.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="full, quick or smoke; default full on a GPU, quick on a CPU.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; default cuda where there is one.")] = None,
    timer: Annotated[str | None, typer.Option(help="cupti, events or cpu.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory; default runs/selftest-<time>.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this selftest.")] = None,
    simulate: Annotated[
        bool, typer.Option("--simulated", help="On a simulated timer: no device is measured.")
    ] = False,
    summary: Annotated[
        bool, typer.Option("--summarise", help="Measure nothing: put the runs in DIR... together.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure how often the verdict flags cake against itself, and how often it finds planted slowdowns.

    Writes selftest.json. Exit 1 if that is not as often as promised, 2 if something was not measured.
    """
    console = Console(stderr=True)
    given = directories or []
    if bool(given) != summary:
        refuse(console, "directories are for --summarise, which needs one or more of them")
    if summary and (resume or simulate):
        refuse(console, "--summarise measures nothing: leave --resume and --simulated out")
    asked = _given(resume, planted, preset, device, timer)
    if simulate and asked:
        refuse(console, f"--simulated measures no device: leave {asked[0]} out")
    if out is not None and not summary and _holds_selftest(out):
        refuse(
            console, f"{out} already holds a selftest; give another --out, or --resume {out} to go on with it"
        )
    if out is not None and resume is not None:
        refuse(console, "--out and --resume exclude each other: a resumed selftest stays where it is")
    if resume is not None and not resume.is_dir():
        refuse(console, f"there is no {resume}; give the directory of a selftest, or start one with --out")
    patterns = tuple(part.strip() for part in rows.split(",") if part.strip()) if rows else ()
    where = out or resume or (given[0] if summary else _default())
    with mendable(console, "interrupted; nothing was changed"):
        if simulate:
            found = summarise(simulated(runs, rows=patterns), simulated=True)
        else:
            if not summary:
                options = Options(
                    command=shlex.join(["cake-bench", *sys.argv[1:]]),
                    suite="router",
                    preset=preset,
                    device=device,
                    timer=timer,
                    keys=patterns or None,
                )
                measure_runs(options, where, runs, planted, console)
            paths = run_directories(given or [where])
            observations, described = observed(paths)
            found = summarise(observations, described)
        path = write(found, where)
    show(found, path, console, as_json)


def measure_runs(options: Options, where: Path, runs: int, plant: bool, console: Console) -> None:
    """Make the runs ``run-01``, ``run-02``, ... that are not finished; ends early where one does."""
    from bench.planted import selftest_arms

    for number in range(1, runs + 1):
        directory = where / f"run-{number:02}"
        begun = (directory / "manifest.json").is_file()
        if begun and open_run(directory).manifest().finished:
            continue
        say(console, f"run {number} of {runs}: {directory}")
        one = replace(
            options,
            only=partial(selftest_arms, plant=plant),
            out=None if begun else directory,
            resume=directory if begun else None,
        )
        outcome = measured(one, console)
        for problem in outcome.unmeasured:
            say(console, f"not measured: {problem}")
        if outcome.cells.missing:
            say(console, f"go on with cake-bench selftest --resume {where} --runs {runs}")
            return


def write(found: Selftest, where: Path) -> Path:
    """Write ``selftest.json``; its path."""
    where.mkdir(parents=True, exist_ok=True)
    path = where / RESULT
    atomic_write(path, (found.model_dump_json(indent=1) + "\n").encode())
    return path


def show(found: Selftest, path: Path, console: Console, as_json: bool) -> None:
    """Say the result, and exit with its code."""
    said: Sequence[str] = words(found)
    for line in said:
        say(console if as_json else Console(), line)
    if as_json:
        print(
            json.dumps({"selftest": str(path), **found.model_dump(mode="json", exclude={"power", "others"})})
        )
    else:
        print(path)
    raise typer.Exit(found.exit_code)


def _given(
    resume: Path | None, planted: bool, preset: str | None, device: str | None, timer: str | None
) -> list[str]:
    """The options for measuring that the user gave, as they are typed."""
    options = {"--resume": resume, "--preset": preset, "--device": device, "--timer": timer}
    return [
        *(name for name, value in options.items() if value is not None),
        *["--no-planted"] * (not planted),
    ]


def _holds_selftest(path: Path) -> bool:
    return (path / RESULT).exists() or any(path.glob("run-*/manifest.json"))


def _default() -> Path:
    return Path("runs") / f"selftest-{datetime.now(UTC):%Y%m%d-%H%M%S}"
