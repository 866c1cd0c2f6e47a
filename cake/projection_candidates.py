"""The plans that a device could do a projection by, besides its rule's: what a tuner measures. Not for use.

:func:`candidates` is pure; :func:`prepare` binds a projection to one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from . import operand, projection
from .launch.projection import ProjectionEntry
from .operand import OPERANDS, AnyKind, Problem
from .plan import ways
from .plan.dense import (
    SM80_FORMS,
    ProjectionPlan,
    by_way,
    default_partition,
    estimate_sm80,
    plan_projection,
    projection_problem,
    tokens,
)
from .plan.dense_rules import DenseRule
from .plan.device import DeviceSpec
from .plan.partition import Partition, pinned
from .projection import Options, PreparedProjection, ProjectionOp, prepared

#: Candidates of one projection.
MOST = 6


@dataclass(frozen=True)
class ProjectionCandidate:
    """A way to do one projection: the rule that chooses it, exact in all its keys, and the plan that comes of
    it.
    """

    rule: DenseRule
    plan: ProjectionPlan

    def __str__(self) -> str:
        r = self.rule
        cut = f" splits {r.splits}" * bool(r.splits)
        return f"{r.program}{cut}{' tail' * r.tail}{' swapped' * r.swapped} raster {r.raster.height}"


def problem(kind: AnyKind, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> Problem:
    """The GEMM of a projection's tensors in call order, which may be without memory (``meta``)."""
    name1, name2, name = OPERANDS[kind]
    inputs = operand.batched_view(name1, first), operand.batched_view(name2, second)
    return projection_problem(kind, *inputs, operand.output_view(name, out))


def base(p: Problem, spec: DeviceSpec) -> ProjectionCandidate:
    """The shipped way: by its rule, else of the least estimated time."""
    return _candidate(p, spec, plan_projection(p, spec))


def own_partition(p: Problem, spec: DeviceSpec) -> Partition:
    """How the shape's K is cut where no rule cuts it."""
    if spec.projection_family == "sm90":
        return pinned(p.k, ways.splits(p.m, p.n, p.k, p.batch, p.out.dtype))
    return default_partition(p)


def candidates(p: Problem, spec: DeviceSpec, most: int = MOST) -> list[ProjectionCandidate]:
    """The ways worth measuring against the shipped one, which is none of them: the ``most`` with the least
    estimated time, that one first. Of the sm90 family all forms x cuts of K x tail x swapped, of others the
    forms.
    """
    known, found = {_work(plan_projection(p, spec))}, list[ProjectionCandidate]()
    for plan in _likely(p, spec):
        if len(found) == most:
            break
        if _work(plan) not in known:
            known.add(_work(plan))
            found.append(_candidate(p, spec, plan))
    return found


def prepare(op: ProjectionOp, candidate: ProjectionCandidate, **arguments: Any) -> PreparedProjection:
    """:func:`cake.prepare_projection` with the same arguments, planned as a candidate is."""
    return prepared(_Chosen(candidate.rule), op, **arguments)


class _Chosen(projection.Entries):
    """Makes entries whose plan comes of one rule."""

    def __init__(self, rule: DenseRule) -> None:
        super().__init__(projection.MAX_ENTRIES)
        self._rule = rule

    def make(
        self, kind: AnyKind, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor, options: Options
    ) -> ProjectionEntry:
        entry = super().make(kind, first, second, out, options)
        if entry.plan is not None:
            entry.plan = plan_projection(entry.problem, entry.spec, rule=self._rule)
        return entry


def _candidate(p: Problem, spec: DeviceSpec, plan: ProjectionPlan) -> ProjectionCandidate:
    """The candidate of a plan. What a family's rules do not decide, its rule leaves out."""
    t, n, k = tokens(p)
    sm90 = spec.projection_family == "sm90"
    rule = DenseRule(
        op=p.kind,
        n=n,
        k=k,
        out=p.out.dtype,
        first=t,
        last=t,
        heads=p.batch,
        ragged=False,
        program=plan.program.form,
        raster=plan.raster,
        why="",
        splits=plan.parts if sm90 or plan.partition != default_partition(p) else None,
        tail=plan.tail,
        swapped=plan.swapped and sm90,
    )
    return ProjectionCandidate(rule, plan)


def _likely(p: Problem, spec: DeviceSpec) -> Iterator[ProjectionPlan]:
    """All plans, those of the least estimated time first."""
    if spec.projection_family == "sm90":
        every = ways.ways(p.m, p.n, p.k, p.batch, p.out.dtype, spec.sms)
        for _, way in sorted(every, key=lambda found: found[0]):
            yield by_way(p, way, spec.sms)
    else:
        rule = base(p, spec).rule
        plans = [plan_projection(p, spec, rule=replace(rule, program=form)) for form in SM80_FORMS]
        yield from sorted(plans, key=lambda plan: estimate_sm80(plan, spec))


def _work(plan: ProjectionPlan) -> ProjectionPlan:
    """The plan without a tail that cuts nothing."""
    return replace(plan, tail=plan.cut[1] > 0)
