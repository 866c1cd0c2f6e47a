"""Rules and programs of the versions of cake, counted by what they are for, as Markdown that pull requests
quote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from types import ModuleType
from typing import Any

import cake
from bench.listing import ARCHITECTURES, arrow, asked, part
from bench.suites import SUITES

#: How a rule names T, as the look-up goes: columns of the table.
KEYS = ("exact T", "range", "ragged", "default")
#: The class of a program's key -> what it is a program of: columns of the table.
PROGRAMS = {"ProgramKey": "router", "BackwardKey": "backward", "ProjectionKey": "projection"}
OTHER = "other"

#: The lines of a suite: an op with no rule has one too.
OPS = ("fwd", "dgrad", "wgrad")


@dataclass(frozen=True)
class Counts:
    """One version: rules by suite and architecture, then by op, then by how their key names T; programs by
    architecture, then by kind. ``None``: the version keeps them in another way.
    """

    rules: Mapping[tuple[str, str], Mapping[str, Mapping[str, int]] | None]
    programs: Mapping[str, Mapping[str, int] | None]


def count(package: ModuleType = cake, architectures: Mapping[str, int] = ARCHITECTURES) -> Counts:
    """Ask a version of cake what it has."""
    places = product(SUITES, architectures.items())
    return Counts(
        {(suite, arch): asked(partial(_rules, package, suite, arch, sms)) for suite, (arch, sms) in places},
        {arch: asked(partial(_programs, package, arch)) for arch in architectures},
    )


def rules_table(after: Counts, before: Counts | None = None) -> list[str]:
    """Rules by suite, architectures (those of equal counts together), op and key."""
    old = (before or after).rules
    same: dict[tuple[str, tuple[tuple[str, ...], ...]], list[str]] = {}
    for (suite, arch), new in after.rules.items():
        was = old[suite, arch]
        ops = dict.fromkeys((*OPS, *(was or {}), *(new or {})))
        lines = tuple((op, *_cells(KEYS, _of(was, op), _of(new, op))) for op in ops)
        same.setdefault((suite, lines), []).append(arch)
    head = ("suite", "architectures", "op", *KEYS, "all")
    rows = [(suite, ", ".join(archs), *line) for (suite, lines), archs in same.items() for line in lines]
    return _table(head, rows, texts=3)


def programs_table(after: Counts, before: Counts | None = None) -> list[str]:
    """Programs by architecture and kind."""
    old = (before or after).programs
    found = [counts for counts in (*after.programs.values(), *old.values()) if counts]
    kinds = [kind for kind in (*PROGRAMS.values(), OTHER) if kind != OTHER or any(OTHER in c for c in found)]
    rows = [(arch, *_cells(kinds, old[arch], new)) for arch, new in after.programs.items()]
    return _table(("architecture", *kinds, "all"), rows, texts=1)


def as_json(counts: Counts) -> dict[str, Any]:
    """The counts for machines."""
    rules = [{"suite": suite, "arch": arch, "ops": found} for (suite, arch), found in counts.rules.items()]
    return {"rules": rules, "programs": dict(counts.programs)}


def _rules(package: ModuleType, suite: str, arch: str, sms: int) -> dict[str, Counter[str]]:
    """The rules that a version has for an architecture's program family of a suite."""
    spec = part(package, "plan").DeviceSpec(arch, sms)
    if suite == "dense":
        try:
            module = part(package, "plan.dense_rules")
        except ModuleNotFoundError:  # a version from before there were any
            return {}
        rules = module.shipped(spec.projection_family)
    else:
        rules = part(package, "plan.rules").shipped(spec.family)
    found: dict[str, Counter[str]] = {}
    for rule in rules:
        found.setdefault(rule.op, Counter())[_key(rule)] += 1
    return found


def _programs(package: ModuleType, arch: str) -> Counter[str]:
    """The programs that a version compiles for an architecture, by kind."""
    keys = part(package, "program.registry").keys_of(arch)
    return Counter(PROGRAMS.get(type(key).__name__, OTHER) for key in keys)


def _key(rule: Any) -> str:
    """How a rule names T."""
    if getattr(rule, "ragged", False):
        return "ragged"
    if rule.first is None:
        return "default"
    return "exact T" if rule.first == rule.last else "range"


def _of(ops: Mapping[str, Mapping[str, int]] | None, op: str) -> Mapping[str, int] | None:
    return None if ops is None else ops.get(op, {})


def _cells(
    names: Sequence[str], old: Mapping[str, int] | None, new: Mapping[str, int] | None
) -> tuple[str, ...]:
    """A count each, and all together; before -> after where they differ."""

    def counted(counts: Mapping[str, int] | None) -> list[int | None]:
        if counts is None:
            return [None] * (len(names) + 1)
        return [*(counts.get(name, 0) for name in names), sum(counts.values())]

    return tuple(arrow(*pair) for pair in zip(counted(old), counted(new), strict=True))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> list[str]:
    """A Markdown table whose first ``texts`` columns are words, the others numbers."""
    rule = ["---"] * texts + ["--:"] * (len(head) - texts)
    return [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]
