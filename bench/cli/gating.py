"""``cake-bench gate``: the verdict of a run, for people, for CI and for other programs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from bench.cli.common import Json, measured, mendable, refuse, report_of, say, takes_run_options
from bench.gate import judge, judge_runs
from bench.merge import refuse_twice
from bench.model import GateResult
from bench.run import Outcome, cells_of, write_cells
from bench.session import Options
from bench.store import RunDir, open_run


@takes_run_options
def gate(
    options: Options,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN | BASE_RUN NEW_RUN]",
            help="A run with a previous version, or two runs; none to measure one with --previous.",
        ),
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the result as JUnit XML to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Exit 1 where a row is confirmed slower than the previous version, a cake arm is inaccurate, or bits
    changed where they must not; 2 where rows are missing or could not be measured; else 0.

    With --previous REF it measures first, and a flagged row a second time. The last line is the report's
    path.
    """
    console = Console(stderr=True)
    given = runs or []
    wanted = _given(options)
    if len(given) > 2:
        refuse(console, f"gate takes one run or two, got {len(given)}; compare them with cake-bench compare")
    if given and wanted:
        refuse(
            console,
            f"{wanted[0]} is for measuring, and {given[0]} is measured already; leave one of them out",
        )
    if not given and not {"--previous", "--control-run", "--resume"} & set(wanted):
        refuse(console, "nothing to gate: give a run, two runs, or --previous REF to measure one")
    problems: tuple[str, ...] = ()
    if not given:
        outcome = measured(options, console)
        problems = outcome.problems
    else:
        with mendable(console, f"interrupted; what {given[-1]} measured is as it was"):
            run = open_run(given[-1])
            outcome = Outcome(run, write_cells(run))
    manifest = outcome.run.manifest()
    if len(given) == 2:
        with mendable(console, "interrupted; nothing was judged"):
            base = open_run(given[0])
            refuse_twice([base.manifest(), manifest])
            result = judge_runs(cells_of(base), base.manifest(), outcome.cells, manifest)
    else:
        result = judge(outcome.cells, manifest, problems, str(outcome.run.path))
    report = report_of(outcome, console)
    _tell(outcome.run, result, report, junit, as_json, console)


def _given(options: Options) -> list[str]:
    """The options of a run that the user gave, as they are typed."""
    names = {"arms_file": "arms", "shapes_file": "shapes"}
    return [
        f"--{names.get(f.name, f.name).replace('_', '-')}"
        for f in fields(options)
        if f.name != "command" and getattr(options, f.name) != f.default
    ]


def _tell(
    run: RunDir, result: GateResult, report: Path, junit: Path | None, as_json: bool, console: Console
) -> NoReturn:
    """Say the result everywhere it is wanted, and exit with its code; a file that cannot be written makes a
    green gate 2, and hides no red one.
    """
    from reports import gate as words
    from reports import terminal

    unwritten: list[str] = []

    def attempt(path: Path, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as e:
            unwritten.append(f"cannot write {path}: {e.strerror or e}")

    text = words.comment(result, report.read_text())
    attempt(run.path / words.TEXT, lambda: words.write(run.path, result, text))
    if junit is not None:
        attempt(junit, lambda: _write_text(junit, words.junit(result)))
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        key = f"{result.run} against {result.against}"
        attempt(Path(summary), lambda: words.write_summary(Path(summary), key, text))
    out = console if as_json else Console()
    terminal.print_summary(run.path, out)
    words.print_result(result, out)
    if os.environ.get("GITHUB_ACTIONS"):
        for line in words.workflow_commands(result):
            say(out, line)
    for problem in unwritten:
        say(console, f"error: {problem}")
    code = result.exit_code or (2 if unwritten else 0)
    if as_json:
        print(json.dumps(_summary(run, result, report, code)))
    else:
        print(report)
    raise typer.Exit(code)


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _summary(run: RunDir, result: GateResult, report: Path, code: int) -> dict[str, object]:
    from reports import gate as words

    made = result.model_dump(mode="json")
    for entry, finding in zip(made["findings"], result.findings, strict=True):
        entry["text"] = f"{words.name(result, finding)}: {words.words(result, finding)}"
    return {
        "exit_code": code,
        "verdict": words.headline(result),
        **made,
        "run_dir": str(run.path),
        "report": str(report),
        "gate": str(run.path / words.FILE),
        "remarks": words.remarks(result),
    }
