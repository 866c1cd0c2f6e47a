"""What the versions of cake have, and what they plan: counts and a plan diff, without a GPU.

The planner of each version is asked for every GEMM of a suite on every architecture. A version whose planner
cannot be asked, or refuses, has no plan there, with the reason in its place.
"""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

import cake
from bench.previous import program_digest
from bench.suites import ROUTER_SHAPES, Shape

#: Architecture -> SMs of the board it is planned for: A100, H200, GB200, GB300, R200.
ARCHITECTURES: Mapping[str, int] = {
    "sm_80": 108,
    "sm_90a": 132,
    "sm_100a": 152,
    "sm_103a": 152,
    "sm_107a": 212,
}
KINDS = ("fwd", "dgrad", "wgrad")


@dataclass(frozen=True, order=True)
class Planned:
    """A row that is planned: one GEMM of the suite, deterministic or not."""

    kind: str
    shape: Shape
    deterministic: bool

    def __str__(self) -> str:
        s = self.shape
        how = "deterministic" if self.deterministic else "deterministic=False"
        return f"{self.kind} T={s.T} H={s.H} N={s.N} {how}"


@dataclass(frozen=True)
class PlanFacts:
    """A plan in words, by what may change of it. ``digest`` is what the program is made of.

    Where there is no plan, ``plan`` says why and the rest is empty.
    """

    plan: str
    program: str = ""
    partition: str = ""
    digest: str | None = None


@dataclass(frozen=True)
class Listing:
    """One version: programs and rules by architecture (``None``: the version has no such list), and the plan
    of every row on every architecture.
    """

    programs: Mapping[str, int | None]
    rules: Mapping[str, int | None]
    plans: Mapping[tuple[str, Planned], PlanFacts]

    def used(self, arch: str) -> int:
        """How many programs the suite's rows use on an architecture."""
        return len({f.program for (a, _), f in self.plans.items() if a == arch and f.program})


@dataclass(frozen=True)
class Change:
    """A row that two versions plan differently on architectures, and what of it: ``program``, ``partition``,
    ``plan``.
    """

    row: Planned
    archs: tuple[str, ...]
    what: tuple[str, ...]
    before: PlanFacts
    after: PlanFacts


def suite_rows(shapes: Iterable[Shape] = ROUTER_SHAPES) -> list[Planned]:
    """All GEMMs of a suite: shapes x fwd, dgrad, wgrad x deterministic or not."""
    return [Planned(kind, shape, det) for kind in KINDS for shape in shapes for det in (True, False)]


def list_version(
    package: ModuleType = cake,
    architectures: Mapping[str, int] = ARCHITECTURES,
    rows: Sequence[Planned] | None = None,
) -> Listing:
    """Ask a version of cake what it has and what it plans."""
    rows = suite_rows() if rows is None else rows
    programs = {arch: _programs(package, arch) for arch in architectures}
    rules = {arch: _rules(package, arch, sms) for arch, sms in architectures.items()}
    plans = {
        (arch, row): _planned(package, arch, sms, row) for arch, sms in architectures.items() for row in rows
    }
    return Listing(programs, rules, plans)


def changes(before: Listing, after: Listing) -> list[Change]:
    """The rows that are planned differently, those that change in the same way on several architectures
    together.
    """
    found: dict[tuple[Planned, PlanFacts, PlanFacts], list[str]] = {}
    for (arch, row), new in after.plans.items():
        old = before.plans[arch, row]
        if differ(old, new):
            found.setdefault((row, old, new), []).append(arch)
    return [Change(row, tuple(archs), differ(old, new), old, new) for (row, old, new), archs in found.items()]


def differ(old: PlanFacts, new: PlanFacts) -> tuple[str, ...]:
    """What of a plan differs: ``program``, ``partition``, ``plan``."""
    return tuple(
        name for name in ("program", "partition", "plan") if getattr(old, name) != getattr(new, name)
    )


def remade(before: Listing, after: Listing) -> list[str]:
    """The programs of the suite that have one name in both versions, but are made differently: of another
    source, other defines or another launch shape.
    """
    old, new = ({f.program: f.digest for f in listing.plans.values()} for listing in (before, after))
    return sorted(
        name for name in old.keys() & new.keys() if old[name] and new[name] and old[name] != new[name]
    )


def lines(after: Listing, before: Listing | None = None) -> list[str]:
    """The listing in words, one line each; with a version before it, counts before -> after and the diff."""
    first = before or after
    said = []
    for arch in after.programs:
        counts = (
            ("programs", first.programs[arch], after.programs[arch]),
            ("rules", first.rules[arch], after.rules[arch]),
            ("programs that the suite uses", first.used(arch), after.used(arch)),
        )
        said.append(f"{arch}: " + ", ".join(f"{word} {arrow(old, new)}" for word, old, new in counts))
    planless: dict[str, int] = Counter(f.plan for f in after.plans.values() if not f.program)
    said += [f"{n} rows have {reason}" for reason, n in planless.items()]
    if before is None:
        return said
    changed = changes(before, after)
    for c in changed:
        transition = f"{c.before.plan} -> {c.after.plan}"
        said.append(f"{', '.join(c.archs)}: {c.row}: {', '.join(c.what)}: {transition}")
    names = remade(before, after)
    if names:
        said.append(f"made differently under the same name: {', '.join(names)}")
    n, total = sum(len(c.archs) for c in changed), len(after.plans)
    if not n:
        return [*said, f"all {total} rows plan the same programs"]
    what = Counter(word for c in changed for word in c.what for _ in c.archs)
    named = ", ".join(f"{word} in {what[word]}" for word in ("program", "partition", "plan") if what[word])
    rest = f"all other {total - n} rows plan the same programs" if total > n else "no row stays the same"
    return [*said, f"{n} of {total} rows change ({named}); {rest}"]


def as_json(after: Listing, before: Listing | None = None) -> dict[str, Any]:
    """The listing for machines."""

    def counts(listing: Listing, arch: str) -> dict[str, int | None]:
        return {
            "programs": listing.programs[arch],
            "rules": listing.rules[arch],
            "used": listing.used(arch),
        }

    made: dict[str, Any] = {"architectures": {}, "rows": len(after.plans)}
    for arch in after.programs:
        entry: dict[str, Any] = {"sms": ARCHITECTURES.get(arch), "after": counts(after, arch)}
        if before is not None:
            entry["before"] = counts(before, arch)
        made["architectures"][arch] = entry
    if before is None:
        made["plans"] = [_row_json(row) | {"arch": arch} | _json(f) for (arch, row), f in after.plans.items()]
        return made
    made["changed"] = [
        _row_json(c.row)
        | {"archs": c.archs, "what": c.what, "before": _json(c.before), "after": _json(c.after)}
        for c in changes(before, after)
    ]
    made["remade"] = remade(before, after)
    made["same"] = len(after.plans) - sum(len(c["archs"]) for c in made["changed"])
    return made


def _row_json(row: Planned) -> dict[str, Any]:
    s = row.shape
    return {"gemm": row.kind, "T": s.T, "H": s.H, "N": s.N, "deterministic": row.deterministic}


def _json(facts: PlanFacts) -> dict[str, Any]:
    return {"program": facts.program, "partition": facts.partition, "plan": facts.plan}


def arrow(old: int | None, new: int | None) -> str:
    """A count, before -> after where they differ; ``None`` is unknown."""
    shown = ["unknown" if n is None else str(n) for n in (old, new)]
    return shown[1] if old == new else " -> ".join(shown)


# --- asking a version ---------------------------------------------------------------------------------------


T = TypeVar("T")


def asked(question: Callable[[], T]) -> T | None:
    """What a version answers; ``None`` where it keeps things in another way, or has them not."""
    try:
        return question()
    except Exception:
        return None


def part(package: ModuleType, name: str) -> Any:
    """A module of a version of cake."""
    return importlib.import_module(f"{package.__name__}.{name}")


def _programs(package: ModuleType, arch: str) -> int | None:
    """How many programs a version compiles for an architecture."""

    def question() -> int:
        programs = part(package, "program.registry").programs
        return len(programs(arch) if inspect.signature(programs).parameters else programs())

    return asked(question)


def _rules(package: ModuleType, arch: str, sms: int) -> int | None:
    """How many rules a version has for an architecture's program family."""

    def question() -> int:
        spec = part(package, "plan").DeviceSpec(arch, sms)
        return len(part(package, "plan.rules").shipped(spec.family))

    return asked(question)


def _planned(package: ModuleType, arch: str, sms: int, row: Planned) -> PlanFacts:
    """What a version plans for a row; whatever it raises is why there is no plan."""
    try:
        planner = part(package, "plan")
        view = part(package, "operand").View
        t, h, n = row.shape.T, row.shape.H, row.shape.N

        def matrix(rows: int, cols: int) -> Any:
            return view(rows=rows, cols=cols, ld=cols, unit=1, dtype="f32")

        shapes = {
            "fwd": ((t, h), (n, h), (t, n)),
            "dgrad": ((t, n), (n, h), (t, h)),
            "wgrad": ((t, n), (t, h), (n, h)),
        }[row.kind]
        problem = planner.router_problem(row.kind, *(matrix(*shape) for shape in shapes))
        spec = planner.DeviceSpec(arch, sms)
        known = list(inspect.signature(planner.plan).parameters)
        where = spec.family if known[1] == "family" else spec
        size = {"sms": sms} if "sms" in known else {}
        plan = planner.plan(problem, where, deterministic=row.deterministic, **size)
        key = plan.program
        return PlanFacts(str(plan), str(key), str(plan.partition), program_digest(package, key))
    except Exception as e:
        return PlanFacts(f"no plan ({type(e).__name__}: {e})")
