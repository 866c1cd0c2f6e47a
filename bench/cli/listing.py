"""``cake-bench list``."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from bench.cli.common import Json, mendable


def list_programs(
    previous: Annotated[
        str | None, typer.Option(metavar="REF", help="Compare with the cake of this git ref.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Count programs and rules by architecture; with --previous, before -> after and every row of the suite
    whose plan changes. No GPU needed.
    """
    from bench import listing
    from bench.previous import load_previous

    with mendable(Console(stderr=True), "interrupted"):
        version = load_previous(previous) if previous is not None else None
    before = listing.list_version(version.module) if version else None
    after = listing.list_version()
    if as_json:
        facts = {"previous": version.facts} if version else {}
        print(json.dumps({**facts, **listing.as_json(after, before)}))
        return
    if version:
        print(f"{version.ref} ({version.commit[:12]}) -> working tree")
    for line in listing.lines(after, before):
        print(line)
