"""The command line, ``cake-bench``: the composition root, and the one place that may import everything.

Exit codes: 0 fine; 1 a cake arm is inaccurate; 2 something could not be measured. The report is written
before exiting.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from bench.arms import ArmsError
from bench.environment import EnvironmentRefused
from bench.model import Cells
from bench.run import Outcome, conduct, write_cells
from bench.session import Options, RunRefused
from bench.store import RunDir, StoreError, open_run
from bench.timers import TimerUnavailable

app = typer.Typer(
    help="Paired, accuracy-gated benchmarks of cake's GEMMs against the best library calls.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

#: What a user can mend: shown as one line, without a stack trace.
_MENDABLE = (ArmsError, EnvironmentRefused, RunRefused, StoreError, TimerUnavailable, ValueError)
_Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout, everything else on stderr.")
]


@app.command()
def run(
    suite: Annotated[str | None, typer.Option(help="Suite to run: router.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="full, quick or smoke; default full on a GPU, quick on a CPU.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run directory; default runs/<suite>-<device>-<time>.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run; its finished rows stay.")] = None,
    timer: Annotated[
        str | None, typer.Option(help="cupti, events, cpu or host (host time per call alone).")
    ] = None,
    arms: Annotated[
        Path | None, typer.Option(help="Python file with further arms, ARMS = [Arm(...)].")
    ] = None,
    shapes: Annotated[
        Path | None, typer.Option(help="TOML file, shapes = [{T = 64, H = 4096, N = 256}].")
    ] = None,
    ops: Annotated[str | None, typer.Option(help="Comma-separated: fwd,dgrad,wgrad,bwd,2fwd+bwd.")] = None,
    modes: Annotated[str | None, typer.Option(help="Comma-separated: eager,graph.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; default cuda where there is one.")] = None,
    as_json: _Json = False,
) -> None:
    """Measure a suite, print the summary, write the report; the last line is the report's path."""
    console = Console(stderr=True)
    if out is not None and resume is not None:
        _refuse(console, "--out and --resume exclude each other: a resumed run stays where it is")
    for option, given in (("--ops", ops), ("--modes", modes)):
        if given is not None and not _split(given):
            _refuse(console, f"{option} is {given!r}, which names none; leave it out for the preset's choice")
    options = Options(
        command=shlex.join(["cake-bench", *sys.argv[1:]]),
        suite=suite,
        preset=preset,
        device=device,
        timer=timer,
        out=out,
        resume=resume,
        arms_file=arms,
        shapes_file=shapes,
        ops=_split(ops),
        modes=_split(modes),
    )
    handler = signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        with _mendable(console, "interrupted before the first row"):
            outcome = conduct(options, console)
    finally:
        signal.signal(signal.SIGTERM, handler)
    _finish(outcome, console, as_json)


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    as_json: _Json = False,
) -> None:
    """Make cells and report of a run again from its files."""
    console = Console(stderr=True)
    with _mendable(console, f"interrupted; the files of {run_dir} are as they were"):
        directory = open_run(run_dir)
        outcome = Outcome(directory, write_cells(directory))
    _finish(outcome, console, as_json)


@app.command("compile")
def compile_programs(
    arch: Annotated[list[str], typer.Option(help="Architecture, e.g. sm_90a; may be given several times.")],
    out: Annotated[Path | None, typer.Option(help="Write the cubins here.")] = None,
    as_json: _Json = False,
) -> None:
    """Compile every program for architectures, no GPU needed; exit 1 where one spills or lacks tensor-core
    instructions.

    Exit 2 where there are no programs for an architecture, or this NVRTC does not know it.
    """
    from cake.plan import DeviceSpec, UnsupportedDevice
    from cake.program import aot, registry
    from cake.program.compiler import CompilerUnavailable

    console = Console(stderr=True)
    for name in arch:
        try:
            _ = DeviceSpec(name, 1).family
        except UnsupportedDevice as e:
            _refuse(console, f"{e}; give an --arch such as sm_80 or sm_90a")
    told = set[str]()

    def tell(done: int, total: int, made: aot.Report) -> None:
        if made.status == "unsupported":  # all its programs are: one line says it
            if made.arch not in told:
                _say(console, f"[{done}/{total}] {made.arch}: unsupported, {made.note}")
            told.add(made.arch)
            return
        words = "; ".join(made.problems) or made.note or "fine"
        _say(
            console,
            f"[{done}/{total}] {made.arch} {made.program}: {made.status}, {words}, {made.seconds:.1f} s",
        )

    try:
        made = aot.compile_all(arch, lambda _: registry.programs(), tell, out_dir=out)
    except (CompilerUnavailable, ValueError) as e:
        _refuse(console, str(e))
    except OSError as e:
        _refuse(console, f"cannot write cubins to {out}: {e.strerror or e}; give another --out")
    counts = {status: sum(r.status == status for r in made) for status in ("ok", "problem", "unsupported")}
    if as_json:
        fields = ("program", "arch", "status", "problems", "note", "seconds")
        print(json.dumps([{name: getattr(r, name) for name in fields} for r in made]))
    else:
        print(f"{counts['ok']} programs compiled, {counts['problem']} with problems", end="")
        print("".join(f"; {r.arch} unsupported: {r.note}" for r in made if r.status == "unsupported"))
    raise typer.Exit(1 if counts["problem"] else 2 if counts["unsupported"] else 0)


def _finish(outcome: Outcome, console: Console, as_json: bool) -> NoReturn:
    """Write the report, print the summary and the path, and exit with the outcome's code."""
    import reports
    from reports import terminal

    with _mendable(console, f"interrupted; make the report with cake-bench report {outcome.run.path}"):
        path = reports.write_report(outcome.run.path)
    terminal.print_summary(outcome.run.path, console if as_json else Console())
    for text in outcome.inaccurate:
        _say(console, f"inaccurate: {text}")
    for text in outcome.unmeasured:
        _say(console, f"not measured: {text}")
    if as_json:
        print(json.dumps(_summary(outcome.run, outcome.cells, path, outcome)))
    else:
        print(path)
    raise typer.Exit(outcome.exit_code)


def _summary(run: RunDir, cells: Cells, report_path: Path, outcome: Outcome) -> dict[str, Any]:
    return {
        "run": str(run.path),
        "report": str(report_path),
        "cells": str(run.path / "cells.json"),
        "rows": len(run.manifest().rows),
        "missing": list(cells.missing),
        "inaccurate": list(outcome.inaccurate),
        "problems": list(outcome.unmeasured),
        "exit_code": outcome.exit_code,
    }


def _split(text: str | None) -> tuple[str, ...] | None:
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text is not None else None


def _say(console: Console, text: str) -> None:
    """A line as it is: neither wrapped (paths are copied from it) nor coloured by its words."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


@contextmanager
def _mendable(console: Console, interrupted: str) -> Iterator[None]:
    """What a user can mend ends the program with one line and code 2; ``interrupted`` is said at Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        _refuse(console, interrupted)
    except _MENDABLE as e:
        _refuse(console, str(e))
    except OSError as e:  # a full disk, a directory that became read-only
        where = f"{e.filename}: " if e.filename else ""
        what = f"{where}{e.strerror or e}"
        _refuse(console, f"{what}; finished rows are kept: mend that and go on with --resume")


def _refuse(console: Console, message: str) -> NoReturn:
    _say(console, f"error: {message}")
    raise typer.Exit(2)


def _as_interrupt(signum: int, frame: object) -> None:
    """A batch system ends a job by SIGTERM: the row under way is lost, the rest is kept, as with Ctrl-C."""
    raise KeyboardInterrupt
