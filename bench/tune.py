"""Tuning: on each row the plans that the device could run, as arms beside the shipped rule's, and what of it.

The arms go through the run that all arms go through. ``cake`` is the shipped rule's plan without a promise of
bits, ``control`` the same again, ``cake_det`` its plan for a deterministic call where that is another one;
the other arms are the candidates of :mod:`cake.candidates`, each on the rows it is one of. What takes the
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
from bench.tensors import Tensors
from bench.work import Bench
from cake.candidates import Candidate, base, candidates, prepare, problem
from cake.launch.routes import target_of
from cake.plan import routes
from cake.plan.device import CPU, DeviceSpec
from cake.plan.routes import Target
from cake.plan.rules import Rule, line

#: The ops that are one GEMM, and so have one plan.
OPS = ("fwd", "dgrad", "wgrad")


@dataclass(frozen=True)
class TunedArm(Arm):
    """A way to do those rows that it has a plan for."""

    plans: Mapping[str, Candidate] = field(default_factory=dict)

    def does(self, row: Row) -> bool:
        """Whether the arm exists for this row."""
        return row.key in self.plans


@cache
def row_plans(row: Row, spec: DeviceSpec) -> Mapping[str, Candidate]:
    """The plans that are measured on a row, by the arm's name."""
    kind: Any = row.op
    s = row.router
    p = problem(kind, s.T, s.H, s.N)
    ours, calls = base(p, spec), base(p, spec, deterministic=True)
    own = {CAKE: ours, CONTROL: ours} | ({CAKE_DET: calls} if calls.plan != ours.plan else {})
    return own | {str(c): c for c in candidates(p, spec)}


def tune_arms(bench: Bench, rows: Sequence[Row]) -> list[Arm]:
    """The arms of all rows."""
    spec = target_of(bench.device).spec
    found: dict[str, dict[str, Candidate]] = {CAKE: {}, CONTROL: {}, CAKE_DET: {}}
    for row in rows:
        for name, candidate in row_plans(row, spec).items():
            found.setdefault(name, {})[row.key] = candidate
    # Only cake's own intervals decide whether a row gets more groups: 24 candidates' would on every row.
    return [
        TunedArm(name, partial(_prepare, plans), "cake" if name in (CAKE, CONTROL) else "user", plans=plans)
        for name, plans in found.items()
        if plans
    ]


def _prepare(plans: Mapping[str, Candidate], row: Row, tensors: Tensors) -> Prepared:
    drop_programs(cake)  # every instance has its programs at another place: see conduct._instance
    kind: Any = row.op
    launch = prepare(kind, plans[row.key], **operands(row.op, tensors))
    return described(cake, row, launch, launch)


def tuning(run: RunDir) -> Tuning:
    """What a tuner's run found, by the rule that it was judged by. The code must be that which measured."""
    manifest, rows = run.manifest(), []
    spec = CPU if manifest.device.arch == "cpu" else DeviceSpec(manifest.device.arch, manifest.device.sms)
    for facts, samples in finished_rows(run, manifest.rows):
        plans = row_plans(Row.from_key(facts.key), spec)
        rows.append(_row(manifest, facts, samples, plans, rule_of(manifest) or JUDGEMENT))
    return Tuning(
        run=manifest.run,
        device=manifest.device,
        started=manifest.started,
        rows=tuple(rows),
        flags=manifest.flags,
        missing=tuple(key for key in manifest.rows if key not in run.finished()),
    )


def _row(
    manifest: Manifest,
    facts: RowFacts,
    samples: Samples,
    plans: Mapping[str, Candidate],
    judgement: Judgement,
) -> TunedRow:
    arms = {arm.arm: arm for arm in facts.arms if arm.arm in plans}

    def tried(name: str, over: str) -> Tried:
        us, over_us = (_us(arms[arm], samples) for arm in (name, over))
        judged: dict[str, Any] = {}
        ratio = None
        if name != over and us is not None and over_us is not None:
            key = f"{facts.key}/{over}/{name}"
            ratio = paired_ratio(samples[over], samples[name], key, judgement)
        if ratio and us is not None and over_us is not None:
            said = verdict(ratio, over_us, us, manifest.timer.tick_us, judgement)
            judged = {"ratio": ratio.value, "ratio_lo": ratio.lo, "ratio_hi": ratio.hi, "verdict": said}
        arm = arms[name]
        return Tried(
            name=name,
            plan=str(plans[name].plan),
            status=arm.status,
            reason=arm.reason,
            flags=arm.flags,
            us=us,
            **judged,
        )

    def best(bases: Sequence[str], fits: Callable[[Candidate], bool]) -> tuple[str, str]:
        """The fastest of the candidates that are faster than all bases, and its rule with the evidence."""
        own = (CAKE, CONTROL, CAKE_DET)
        found = [
            [tried(name, over) for over in bases] for name in arms if name not in own and fits(plans[name])
        ]
        faster = [each[0] for each in found if all(t.verdict == "faster" for t in each)]
        if not faster:
            return "", ""
        t = min(faster, key=lambda t: t.us or 0.0)
        return t.name, line(replace(plans[t.name].rule, why=_why(manifest, t)))

    free = (CAKE, CONTROL)
    calls = (CAKE_DET,) if CAKE_DET in arms else free
    others = [tried(name, CAKE) for name in arms if name != CAKE]
    # What a deterministic call does, a call without that promise may not come to by any rule.
    arm, route = best(free, lambda c: not c.deterministic)
    return TunedRow(
        row=facts.key,
        base=tried(CAKE, CAKE),
        tried=tuple(sorted(others, key=lambda t: float("inf") if t.us is None else t.us)),
        arm=arm,
        route=route,
        rule=best(calls, lambda c: c.keeps_bits)[1],
    )


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
    lead = f"# For cake/plan/rules/{family}.toml, by cake-bench tune. Partitions stay: no bits change."
    return "\n".join([lead, *(f"  {row.rule}," for row in t.rows if row.rule), ""])
