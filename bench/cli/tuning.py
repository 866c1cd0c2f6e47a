"""``cake-bench tune``."""

from __future__ import annotations

import json
import shlex
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.cli.common import Json, listed, measured, mendable, numbers, refuse, say
from bench.model import Tuning
from bench.session import Options
from bench.store import RunDir, atomic_write, open_run


def tune(
    suite: Annotated[str | None, typer.Option(help="Suite to tune: router (default) or dense.")] = None,
    rows: Annotated[
        str | None, typer.Option(help="Comma-separated patterns of row keys, e.g. 'router-fwd-graph-*'.")
    ] = None,
    ops: Annotated[str | None, typer.Option(help="Comma-separated: fwd,dgrad,wgrad.")] = None,
    layers: Annotated[
        str | None, typer.Option(help="Dense suite: comma-separated layers, e.g. q_a,kv_a.")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(help="Dense suite: comma-separated numbers of tokens, e.g. 64,256.")
    ] = None,
    outs: Annotated[
        str | None, typer.Option(help="Dense suite: dtypes of outputs, bf16 (default), f32 or both.")
    ] = None,
    most: Annotated[
        int | None, typer.Option(min=1, help="Candidates of a row at most; default 24, dense 6.")
    ] = None,
    passes: Annotated[
        int | None, typer.Option(help="Passes a row, as of run; the dense suite's form is passes.")
    ] = None,
    shapes: Annotated[
        Path | None,
        typer.Option(
            help="TOML file, shapes = [{T = 64, H = 4096, N = 256}]; dense: [{layer = 'mine', T, K, N}]."
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="full, quick or smoke; default full on a GPU, quick on a CPU.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; default cuda where there is one.")] = None,
    timer: Annotated[str | None, typer.Option(help="cupti, events or cpu.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/tune-<time>.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with this run; a finished one is judged again.")
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Put the routes where cake looks for this device's.")
    ] = False,
    rules: Annotated[
        bool,
        typer.Option("--rules", help="Also write lines for the shipped rules: rules.toml (dense: always)."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Time the plans that this device could run beside those of the shipped rules: forward, input and weight
    gradient of the suite's shapes.

    Writes routes.toml (what is faster, for deterministic=False; of the dense suite rules.toml in its place),
    tuning.md (all that was tried) and tuning.json. Exit 1 if a plan is inaccurate, 2 if something was not
    measured.
    """
    from bench.tune import OPS, tune_arms, tuning

    console = Console(stderr=True)
    if out is not None and resume is not None:
        refuse(console, "--out and --resume exclude each other: a resumed run stays where it is")
    if timer == "host":
        refuse(console, "timer host measures no plan; use --timer cupti, or --timer events")
    # What a resumed run's rows are, it knows itself.
    anew = resume is None or any((shapes, preset, rows, ops, layers, tokens, outs))
    if resume is not None:
        with mendable(console, "interrupted"):
            before = open_run(resume).manifest()
        suite, most = suite or before.suite, before.most if most is None else most
    if suite == "dense" and install:
        refuse(
            console, "--install is for routes, which projections have none of: paste the lines of rules.toml"
        )
    kinds = listed(console, "--ops", ops)
    for kind in kinds or ():
        if kind not in OPS:
            refuse(console, f"op {kind!r} has no plan of its own; ops are {', '.join(OPS)}")
    options = Options(
        command=shlex.join(["cake-bench", *sys.argv[1:]]),
        suite=suite or "router",
        preset=preset,
        device=device,
        timer=timer,
        out=None if resume else out or Path("runs") / f"tune-{datetime.now(UTC):%Y%m%d-%H%M%S}",
        resume=resume,
        shapes_file=shapes,
        ops=kinds or (OPS if anew else None),
        modes=_modes(device) if anew else None,
        keys=_patterns(rows),
        passes=passes,
        layers=listed(console, "--layers", layers),
        tokens=numbers(console, "--tokens", tokens),
        outs=listed(console, "--outs", outs),
        most=most,
        only=partial(tune_arms, most=most),
    )
    outcome = measured(options, console)
    with mendable(console, f"interrupted; go on with cake-bench tune --resume {outcome.run.path}"):
        found = tuning(outcome.run)
        _show(found, _write(found, outcome.run, install, rules), console, as_json)
    for problem in outcome.problems:
        say(console, f"not measured: {problem}")
    raise typer.Exit(found.exit_code or (2 if outcome.problems else 0))


def _patterns(rows: str | None) -> tuple[str, ...] | None:
    return tuple(part.strip() for part in rows.split(",") if part.strip()) or None if rows else None


def _modes(device: str | None) -> tuple[str, ...]:
    """Graphs where there are any: a plan changes nothing of the host's time."""
    import torch

    on_gpu = torch.cuda.is_available() if device is None else device != "cpu"
    return ("graph",) if on_gpu else ("eager",)


def _write(found: Tuning, run: RunDir, install: bool, rules: bool) -> dict[str, Path]:
    """Write what was found; the files' paths by what they are."""
    from bench import tune
    from cake.launch import routes as installed
    from cake.plan.routes import text
    from reports import tuning

    on = "cpu" if found.device.arch == "cpu" else None
    target = installed.target_of(on)
    dense = found.suite == "dense"
    files = {
        "tuning": (run.path / "tuning.json", found.model_dump_json(indent=1) + "\n"),
        "report": (run.path / "tuning.md", tuning.document(found)),
    }
    if not dense:
        files["routes"] = (run.path / "routes.toml", text(tune.found_routes(found, target), target))
    if rules or dense:
        family = target.spec.projection_family if dense else target.spec.family
        files["rules"] = (run.path / "rules.toml", tune.proposed(found, family))
    if install:
        path = installed.path_of(target)
        try:
            old = installed.load(path, target)
        except ValueError:  # none, or of no use any more
            old = ()
        if kept := tune.routes_with(old, found, target):
            path.parent.mkdir(parents=True, exist_ok=True)
            files["installed"] = (path, text(kept, target))
        else:
            path.unlink(missing_ok=True)
    for path, content in files.values():
        atomic_write(path, content.encode())
    return {name: path for name, (path, _) in files.items()}


def _show(found: Tuning, files: dict[str, Path], console: Console, as_json: bool) -> None:
    from reports import tuning

    for line in (*tuning.gains(found), tuning.headline(found)):
        say(console if as_json else Console(), line)
    for words in (*found.of("inaccurate", "error", "unsupported"), *found.missing):
        say(console, f"without a time: {words}")
    paths = {name: str(path) for name, path in files.items()}
    for name in ("routes", "rules", "installed"):
        if name in paths and not as_json:
            say(Console(), f"{name}: {paths[name]}")
    if as_json:
        facts = found.model_dump(mode="json", include={"run", "rows", "missing"})
        print(json.dumps({**facts, "files": paths, "exit_code": found.exit_code}))
    else:
        print(paths["report"])
