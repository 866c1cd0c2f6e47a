"""Tuning: on each row the plans that the device could run, as arms beside the shipped rule's, and what of it.

Rows of both suites: a router's find routes and rules, a projection's rules alone.

The arms go through the run that all arms go through. ``cake`` is the shipped rule's plan without a promise of
bits, ``control`` the same again, ``cake_det`` its plan for a deterministic call where that is another one;
the other arms are the candidates of :mod:`cake.candidates` or :mod:`cake.projection_candidates`, each on the
rows it is one of. What takes the
shipped plan's place must be faster than ``cake`` and than ``control``: of many candidates the luckiest comes
first, and so it is not luck of the base at least.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import cake
from bench.arms import CAKE, CAKE_DET, CONTROL, Arm, Prepared, described, operands
from bench.cells import Samples
from bench.model import ArmFacts, Manifest, RowFacts, Tried, TunedRow, Tuning
from bench.previous import drop_programs
from bench.rule import rule_of
from bench.statistics import JUDGEMENT, Judgement, median_us, paired_ratio, verdict
from bench.store import RunDir, finished_rows
from bench.suites import Row
from bench.tensors import Tensors, dense_views
from bench.work import Bench
from cake import projection_candidates
from cake.candidates import MOST, Candidate, base, candidates, prepare, problem
from cake.launch.routes import target_of
from cake.operand import OPERANDS, Problem
from cake.plan import dense_rules, routes
from cake.plan.device import CPU, DeviceSpec
from cake.plan.routes import Target
from cake.plan.rules import Rule, line
from cake.projection_candidates import ProjectionCandidate, own_partition

#: Candidates of a row of a suite, unless told otherwise.
USUAL = {"router": MOST, "dense": projection_candidates.MOST}
#: What a rule says of itself whose partition is not the shape's, or not the one that was shipped.
BITS_CHANGE = "; bits change"
#: The ops that are one GEMM, and so have one plan.
OPS = ("fwd", "dgrad", "wgrad")


@dataclass(frozen=True)
class TunedArm(Arm):
    """A way to do those rows that it has a plan for."""

    plans: Mapping[str, Candidate | ProjectionCandidate] = field(default_factory=dict)

    def does(self, row: Row) -> bool:
        """Whether the arm exists for this row."""
        return row.key in self.plans


@cache
def projection_plans(
    row: Row, spec: DeviceSpec, most: int | None = None
) -> Mapping[str, ProjectionCandidate]:
    """The plans that are measured on a row of the dense suite, by the arm's name: ``most`` candidates."""
    p = _projection(row)
    ours = projection_candidates.base(p, spec)
    found = projection_candidates.candidates(p, spec, USUAL["dense"] if most is None else most)
    return {CAKE: ours, CONTROL: ours} | {str(c): c for c in found}


def _projection(row: Row) -> Problem:
    kind: Any = row.op
    views = dense_views(row)
    first, second = (getattr(views, name) for name in OPERANDS[kind][:2])
    return projection_candidates.problem(kind, first, second, views.output(kind))


@cache
def row_plans(row: Row, spec: DeviceSpec, most: int | None = None) -> Mapping[str, Candidate]:
    """The plans that are measured on a row of the router suite, by the arm's name: ``most`` candidates."""
    kind: Any = row.op
    s = row.router
    p = problem(kind, s.T, s.H, s.N)
    ours, calls = base(p, spec), base(p, spec, deterministic=True)
    own = {CAKE: ours, CONTROL: ours} | ({CAKE_DET: calls} if calls.plan != ours.plan else {})
    return own | {str(c): c for c in candidates(p, spec, USUAL["router"] if most is None else most)}


def _plans(
    row: Row, spec: DeviceSpec, most: int | None
) -> Mapping[str, Candidate] | Mapping[str, ProjectionCandidate]:
    return projection_plans(row, spec, most) if row.suite == "dense" else row_plans(row, spec, most)


def tune_arms(bench: Bench, rows: Sequence[Row], most: int | None = None) -> list[Arm]:
    """The arms of all rows, of each the ``most`` likely candidates (``None``: as many as is usual)."""
    spec = target_of(bench.device).spec
    found: dict[str, dict[str, Candidate | ProjectionCandidate]] = {CAKE: {}, CONTROL: {}, CAKE_DET: {}}
    for row in rows:
        for name, candidate in _plans(row, spec, most).items():
            found.setdefault(name, {})[row.key] = candidate
    # Only cake's own intervals decide whether a row gets more groups: 24 candidates' would on every row.
    return [
        TunedArm(name, partial(_prepare, plans), "cake" if name in (CAKE, CONTROL) else "user", plans=plans)
        for name, plans in found.items()
        if plans
    ]


def _prepare(plans: Mapping[str, Candidate | ProjectionCandidate], row: Row, tensors: Tensors) -> Prepared:
    drop_programs(cake)  # every instance has its programs at another place: see conduct._instance
    kind: Any = row.op
    chosen, given = plans[row.key], operands(row.op, tensors)
    launch: Any
    if isinstance(chosen, ProjectionCandidate):
        launch = projection_candidates.prepare(kind, chosen, **given)
    else:
        launch = prepare(kind, chosen, **given)
    return described(cake, row, launch, launch)


def tuning(run: RunDir) -> Tuning:
    """What a tuner's run found, by the rule that it was judged by. The code must be that which measured."""
    manifest, rows = run.manifest(), []
    spec = CPU if manifest.device.arch == "cpu" else DeviceSpec(manifest.device.arch, manifest.device.sms)
    for facts, samples in finished_rows(run, manifest.rows):
        judged = _Judged(manifest, facts, samples, rule_of(manifest) or JUDGEMENT)
        row = Row.from_key(facts.key)
        if row.suite == "dense":
            rows.append(_projection_row(judged, projection_plans(row, spec, manifest.most), row, spec))
        else:
            rows.append(_router_row(judged, row_plans(row, spec, manifest.most)))
    return Tuning(
        run=manifest.run,
        device=manifest.device,
        started=manifest.started,
        suite=manifest.suite,
        rows=tuple(rows),
        flags=manifest.flags,
        missing=tuple(key for key in manifest.rows if key not in run.finished()),
    )


@dataclass(frozen=True)
class _Judged:
    """A row's arms with their samples, judged against each other."""

    manifest: Manifest
    facts: RowFacts
    samples: Samples
    judgement: Judgement

    def arms(self, plans: Mapping[str, Any]) -> list[str]:
        """The names of the arms that a plan is known of, in their order."""
        return [arm.arm for arm in self.facts.arms if arm.arm in plans]

    def tried(self, name: str, over: str, plan: object) -> Tried:
        """An arm, which has a plan, against another one."""
        arms = {arm.arm: arm for arm in self.facts.arms}
        us, over_us = (_us(arms[arm], self.samples) for arm in (name, over))
        judged: dict[str, Any] = {}
        ratio = None
        if name != over and us is not None and over_us is not None:
            key = f"{self.facts.key}/{over}/{name}"
            ratio = paired_ratio(self.samples[over], self.samples[name], key, self.judgement)
        if ratio and us is not None and over_us is not None:
            said = verdict(ratio, over_us, us, self.manifest.timer.tick_us, self.judgement)
            judged = {"ratio": ratio.value, "ratio_lo": ratio.lo, "ratio_hi": ratio.hi, "verdict": said}
        arm = arms[name]
        return Tried(
            name=name,
            plan=str(plan),
            status=arm.status,
            reason=arm.reason,
            flags=arm.flags,
            us=us,
            **judged,
        )

    def best(
        self, plans: Mapping[str, Any], bases: Sequence[str], fits: Callable[[Any], bool]
    ) -> Tried | None:
        """The fastest of the candidates that are faster than all bases, against the first of them."""
        own = (CAKE, CONTROL, CAKE_DET)
        found = [
            [self.tried(name, over, plans[name].plan) for over in bases]
            for name in self.arms(plans)
            if name not in own and fits(plans[name])
        ]
        faster = [each[0] for each in found if all(t.verdict == "faster" for t in each)]
        return min(faster, key=lambda t: t.us or 0.0, default=None)

    def row(self, plans: Mapping[str, Any], arm: str, *, route: str = "", rule: str = "") -> TunedRow:
        """The row, fastest arm first, with what should take the shipped plan's place."""
        others = [self.tried(name, CAKE, plans[name].plan) for name in self.arms(plans) if name != CAKE]
        return TunedRow(
            row=self.facts.key,
            base=self.tried(CAKE, CAKE, plans[CAKE].plan),
            tried=tuple(sorted(others, key=lambda t: float("inf") if t.us is None else t.us)),
            arm=arm,
            route=route,
            rule=rule,
        )


def _router_row(judged: _Judged, plans: Mapping[str, Candidate]) -> TunedRow:
    def written(t: Tried | None) -> str:
        return line(replace(plans[t.name].rule, why=_why(judged.manifest, t))) if t else ""

    free = (CAKE, CONTROL)
    calls = (CAKE_DET,) if CAKE_DET in judged.arms(plans) else free
    # What a deterministic call does, a call without that promise may not come to by any rule.
    route = judged.best(plans, free, lambda c: not c.deterministic)
    rule = judged.best(plans, calls, lambda c: c.keeps_bits)
    return judged.row(plans, route.name if route else "", route=written(route), rule=written(rule))


def _projection_row(
    judged: _Judged, plans: Mapping[str, ProjectionCandidate], row: Row, spec: DeviceSpec
) -> TunedRow:
    t = judged.best(plans, (CAKE, CONTROL), lambda c: True)
    if t is None:
        return judged.row(plans, "")
    chosen, shipped = plans[t.name], plans[CAKE].plan.partition
    keeps = chosen.plan.partition == shipped == own_partition(_projection(row), spec)
    why = _projection_why(judged.manifest, t) + BITS_CHANGE * (not keeps)
    return judged.row(plans, t.name, rule=dense_rules.line(replace(chosen.rule, why=why)))


def _us(arm: ArmFacts, samples: Samples) -> float | None:
    return median_us(samples[arm.arm]) if arm.status == "ok" and arm.arm in samples else None


def _why(manifest: Manifest, t: Tried) -> str:
    """The evidence of a route."""
    assert t.us is not None and t.ratio is not None and t.ratio_lo is not None and t.ratio_hi is not None
    device = manifest.device
    words = [
        f"{t.us * t.ratio:.2f} -> {t.us:.2f} us",
        f"{t.ratio:.3f} [{t.ratio_lo:.3f}, {t.ratio_hi:.3f}]",
        device.name,
        f"driver {device.driver}" * bool(device.driver),
        *dict.fromkeys((*manifest.flags, *t.flags)),
        manifest.started[:10],
    ]
    return ", ".join(word for word in words if word)


def _projection_why(manifest: Manifest, t: Tried) -> str:
    """The evidence of a projection's rule."""
    assert t.us is not None and t.ratio is not None and t.ratio_lo is not None and t.ratio_hi is not None
    times = f"{t.us * t.ratio:.2f} -> {t.us:.2f} us [{t.ratio_lo:.3f}, {t.ratio_hi:.3f}]"
    labels = dict.fromkeys((*manifest.flags, *t.flags))
    return ", ".join([f"{manifest.device.name.removeprefix('NVIDIA ')}: {times}", *labels])


def found_routes(t: Tuning, target: Target) -> tuple[Rule, ...]:
    """The routes of a tuning, for the device it was made on."""
    lines = ", ".join(row.route for row in t.rows if row.route)
    return routes.read(f"routes = [{lines}]", target)


def routes_with(old: Sequence[Rule], t: Tuning, target: Target) -> tuple[Rule, ...]:
    """Routes that a device has, with those found in place of what they had for the rows that were tuned."""
    tuned = [
        routes.key_of(row_plans(Row.from_key(row.row), target.spec)[CAKE].rule)
        for row in t.rows
        if row.base.us is not None
    ]
    return routes.merged(old, found_routes(t, target), tuned)


def proposed(t: Tuning, family: str) -> str:
    """The lines for the shipped rules, as text to be pasted there."""
    if t.suite == "dense":
        file = f"cake/plan/rules/projection_{family}.toml"
        lead = f"# For {file}, by cake-bench tune. Where `why` says so, bits change."
    else:
        lead = f"# For cake/plan/rules/{family}.toml, by cake-bench tune. Partitions stay: no bits change."
    return "\n".join([lead, *(f"  {row.rule}," for row in t.rows if row.rule), ""])
