"""``cake-bench list``."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from bench.cli.common import Json, mendable
from bench.counts import Counts


def list_programs(
    previous: Annotated[
        str | None, typer.Option(metavar="REF", help="Compare with the cake of this git ref.")
    ] = None,
    rules: Annotated[
        bool, typer.Option("--rules", help="Rules of both suites by architecture, op and key, as Markdown.")
    ] = False,
    programs: Annotated[
        bool, typer.Option("--programs", help="Programs by architecture and kind, as Markdown.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Count programs and rules by architecture; with --previous, before -> after and every row of the suite
    whose plan changes. No GPU needed.

    With --rules or --programs the tables of those counts alone.
    """
    from bench import counts, listing
    from bench.previous import load_previous

    with mendable(Console(stderr=True), "interrupted"):
        version = load_previous(previous) if previous is not None else None
    if rules or programs:
        _tables(rules, programs, counts.count(), counts.count(version.module) if version else None, as_json)
        return
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


def _tables(rules: bool, programs: bool, after: Counts, before: Counts | None, as_json: bool) -> None:
    """The tables asked for, a blank line between them."""
    from bench import counts

    if as_json:
        found = {"after": after} | ({"before": before} if before else {})
        print(json.dumps({name: counts.as_json(c) for name, c in found.items()}))
        return
    tables = [counts.rules_table(after, before)] * rules + [counts.programs_table(after, before)] * programs
    print("\n\n".join("\n".join(table) for table in tables))
