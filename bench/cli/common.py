"""What the commands share: the options of a run, one-line refusals, and how a command ends."""

from __future__ import annotations

import functools
import inspect
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_type_hints

import typer
from rich.console import Console

from bench.arms import ArmsError
from bench.environment import EnvironmentRefused
from bench.previous import PreviousError
from bench.run import Outcome, conduct
from bench.session import Options, RunRefused
from bench.store import StoreError
from bench.timers import TimerUnavailable

#: What a user can mend: shown as one line, without a stack trace.
MENDABLE = (
    ArmsError,
    EnvironmentRefused,
    PreviousError,
    RunRefused,
    StoreError,
    TimerUnavailable,
    ValueError,
)
#: A step after a longer pause would take a run of 294 rows a day.
MAX_PAUSE_MS = 1000.0
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout, everything else on stderr.")
]


def run_options(
    suite: Annotated[str | None, typer.Option(help="Suite to run: router (default) or dense.")] = None,
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
        Path | None,
        typer.Option(
            help="TOML file, shapes = [{T = 64, H = 4096, N = 256}]; dense: [{layer = 'mine', T, K, N}]."
        ),
    ] = None,
    ops: Annotated[str | None, typer.Option(help="Comma-separated: fwd,dgrad,wgrad,bwd,2fwd+bwd.")] = None,
    modes: Annotated[str | None, typer.Option(help="Comma-separated: eager,graph.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; default cuda where there is one.")] = None,
    form: Annotated[
        str | None, typer.Option(help="groups (default), or passes: order-balanced, for small gains.")
    ] = None,
    passes: Annotated[
        int | None, typer.Option(help="Passes a row, default 16; implies --form passes.")
    ] = None,
    warm_l2: Annotated[
        bool, typer.Option("--warm-l2", help="Leave the L2 as the last step did; labelled warm everywhere.")
    ] = False,
    layers: Annotated[
        str | None, typer.Option(help="Dense suite: comma-separated layers, e.g. q_a,kv_a.")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(help="Dense suite: comma-separated numbers of tokens, e.g. 64,256.")
    ] = None,
    outs: Annotated[
        str | None, typer.Option(help="Dense suite: dtypes of outputs, bf16 (default), f32 or both.")
    ] = None,
    pause_ms: Annotated[
        float | None,
        typer.Option("--pause-ms", help="Let the device idle so long before each step: single launches."),
    ] = None,
    previous: Annotated[
        str | None,
        typer.Option(metavar="REF", help="Put the cake of this git ref beside the working tree's."),
    ] = None,
    control_run: Annotated[
        bool,
        typer.Option("--control-run", help="The working tree's cake takes the previous version's place too."),
    ] = False,
) -> Options:
    """The options of every command that measures; refuses what contradicts itself."""
    console = Console(stderr=True)
    if out is not None and resume is not None:
        refuse(console, "--out and --resume exclude each other: a resumed run stays where it is")
    if pause_ms is not None and not 0 <= pause_ms <= MAX_PAUSE_MS:
        refuse(console, f"--pause-ms is {pause_ms:g}; needs 0 to {MAX_PAUSE_MS:g}")
    return Options(
        command=shlex.join(["cake-bench", *sys.argv[1:]]),
        suite=suite,
        preset=preset,
        device=device,
        timer=timer,
        out=out,
        resume=resume,
        arms_file=arms,
        shapes_file=shapes,
        ops=listed(console, "--ops", ops),
        modes=listed(console, "--modes", modes),
        form=form,
        passes=passes,
        warm_l2=warm_l2,
        previous=previous,
        control_run=control_run,
        layers=listed(console, "--layers", layers),
        tokens=numbers(console, "--tokens", tokens),
        outs=listed(console, "--outs", outs),
        pause_ms=pause_ms,
    )


def takes_run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose parameter ``options`` the user gives as the options of :func:`run_options`."""
    own, given = inspect.signature(command), inspect.signature(run_options)
    hints = get_type_hints(run_options, include_extras=True) | get_type_hints(command, include_extras=True)
    kept = [p for p in own.parameters.values() if p.name != "options"]

    @functools.wraps(command)
    def made(**values: Any) -> Any:
        options = run_options(**{name: values.pop(name) for name in given.parameters})
        return command(options=options, **values)

    parameters = [
        p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for p in (*kept, *given.parameters.values())
    ]
    del made.__wrapped__  # its annotations would win over these
    made.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    made.__annotations__ = {p.name: p.annotation for p in parameters}
    return made


def measured(options: Options, console: Console) -> Outcome:
    """Make the run; SIGTERM, with which batch systems end a job, keeps finished rows as Ctrl-C does."""
    handler = signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        with mendable(console, "interrupted before the first row", options.resume or options.out):
            return conduct(options, console)
    finally:
        signal.signal(signal.SIGTERM, handler)


def report_of(outcome: Outcome, console: Console) -> Path:
    """Write the run's report; its path."""
    import reports

    with mendable(console, f"interrupted; make the report with cake-bench report {outcome.run.path}"):
        return reports.write_report(outcome.run.path)


def finish(outcome: Outcome, console: Console, as_json: bool) -> NoReturn:
    """Write the report, print the summary and the path, and exit with the outcome's code."""
    path = report_of(outcome, console)
    from reports import terminal

    terminal.print_summary(outcome.run.path, console if as_json else Console())
    for text in outcome.inaccurate:
        say(console, f"inaccurate: {text}")
    for text in outcome.unmeasured:
        say(console, f"not measured: {text}")
    if as_json:
        print(json.dumps(_summary(outcome, path)))
    else:
        print(path)
    raise typer.Exit(outcome.exit_code)


def _summary(outcome: Outcome, report_path: Path) -> dict[str, Any]:
    return {
        "run": str(outcome.run.path),
        "report": str(report_path),
        "cells": str(outcome.run.path / "cells.json"),
        "rows": len(outcome.run.manifest().rows),
        "missing": list(outcome.cells.missing),
        "inaccurate": list(outcome.inaccurate),
        "problems": list(outcome.unmeasured),
        "exit_code": outcome.exit_code,
    }


def say(console: Console, text: str) -> None:
    """A line as it is: neither wrapped (paths are copied from it) nor coloured by its words."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


@contextmanager
def mendable(console: Console, interrupted: str, run: Path | None = None) -> Iterator[None]:
    """What a user can mend ends the program with one line and code 2; ``interrupted`` is said at Ctrl-C.

    ``run`` is the run directory to go on with, where the user named it.
    """
    try:
        yield
    except KeyboardInterrupt:
        refuse(console, interrupted)
    except MENDABLE as e:
        refuse(console, str(e))
    except OSError as e:  # a full disk, a directory that became read-only
        where = f"{e.filename}: " if e.filename else ""
        resume = f"--resume {run}" if run else "--resume"
        refuse(
            console, f"{where}{e.strerror or e}; finished rows are kept: mend that and go on with {resume}"
        )


def refuse(console: Console, message: str) -> NoReturn:
    """One line that says what is wrong and what to do, and exit code 2; also an annotation in CI."""
    say(console, f"error: {message}")
    if os.environ.get("GITHUB_ACTIONS"):
        from reports.gate import command

        say(console, command("error", "cake-bench could not measure", message))
    raise typer.Exit(2)


def listed(console: Console, option: str, text: str | None) -> tuple[str, ...] | None:
    """The words of a comma-separated option, ``None`` where it was not given; refuses a list of none."""
    if text is None:
        return None
    words = tuple(part.strip() for part in text.split(",") if part.strip())
    if not words:
        refuse(console, f"{option} is {text!r}, which names none; leave it out for the preset's choice")
    return words


def numbers(console: Console, option: str, text: str | None) -> tuple[int, ...] | None:
    """The positive integers of a comma-separated option, ``None`` where it was not given."""
    words = listed(console, option, text)
    if words is None:
        return None
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        refuse(console, f"{option} is {text!r}; needs positive integers, e.g. 64,256")
    return tuple(map(int, words))


def _as_interrupt(signum: int, frame: object) -> None:
    """A batch system ends a job by SIGTERM: the row under way is lost, the rest is kept, as with Ctrl-C."""
    raise KeyboardInterrupt
