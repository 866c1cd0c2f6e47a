"""The plans that a device could do a GEMM by, besides its rule's: what a tuner measures. Not for use.

:func:`candidates` is pure; :func:`prepare` binds an op to one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

from . import router
from .launch.entry import Entry, Options
from .operand import ITEMSIZE, Kind, Problem, View
from .plan.device import DeviceSpec
from .plan.estimate import estimate
from .plan.partition import GROUP, MIN_SEGMENT
from .plan.planner import Plan, by_rule, default_partition, router_problem, tokens
from .plan.raster import Raster
from .plan.rules import Rule, find, shipped
from .plan.tiles import TILES
from .planted import in_place_of_plain
from .router import Entries, PreparedRouter, prepare_router

#: Besides the shipped rule's raster and partition.
RASTERS = (1, 2, 4, 16)
SPLITS = (1, 2, 4, 8, 16)
#: A candidate is estimated to take at most this many times as long as the best one.
WITHIN = 2.0
#: Candidates of one GEMM.
MOST = 24


@dataclass(frozen=True)
class Candidate:
    """A way to do one GEMM: the rule that chooses it, exact in all its keys, and the plan that comes of it.

    ``deterministic``: as a deterministic call does it, where a call without that promise would use atomics.
    """

    rule: Rule
    plan: Plan
    deterministic: bool = False

    def __str__(self) -> str:
        r = self.rule
        assert r.tile
        name = f"{r.tile[0]}x{r.tile[1]} hold {r.hold} raster {r.raster.height}"
        return name + f" splits {r.splits}" * bool(r.splits) + " deterministic" * self.deterministic

    @property
    def keeps_bits(self) -> bool:
        """Whether a deterministic call may be done so: the partition is the shape's, and nothing races."""
        return self.rule.splits is None and self.plan.reduction != "atomic"


def problem(kind: Kind, t: int, h: int, n: int) -> Problem:
    """The GEMM of FP32 matrices in row-major order: X[T, H], W[N, H], G[T, N] and the outputs."""
    x, w, g = (View(rows, cols, cols, 1, "f32") for rows, cols in ((t, h), (n, h), (t, n)))
    views = {"fwd": (x, w, g), "dgrad": (g, w, x), "wgrad": (g, x, w)}[kind]
    return router_problem(kind, *views)


def base(
    p: Problem, spec: DeviceSpec, *, deterministic: bool = False, emulation: str = "bf16x3"
) -> Candidate:
    """The shipped rule's way, routes or not."""
    t, n, h = tokens(p)
    rule = find(shipped(spec.family_of(emulation)), p.kind, t, n, h, p.out.dtype, emulation)
    exact = replace(rule, n=n, k=h, out=p.out.dtype, emulation=emulation, first=t, last=t)
    plan = _plan(p, spec, exact, deterministic)
    tile = plan.program.tile_m, plan.program.tile_n
    return Candidate(replace(exact, tile=tile, hold=plan.hold), plan, deterministic)


def candidates(
    p: Problem, spec: DeviceSpec, most: int = MOST, *, emulation: str = "bf16x3"
) -> list[Candidate]:
    """The ways worth measuring against the shipped rule's, which is none of them, the likeliest first.

    All tiles of the device's family x hold x rasters x partitions, less

    * what comes to a plan that is there already: a raster means nothing to one row or column of tiles, a hold
      nothing to one segment
    * segments shorter than ``MIN_SEGMENT``
    * partial sums that take more memory than operands and output together
    * what is estimated to take more than ``WITHIN`` times as long as the best

    and of the rest the ``most`` with the lowest estimate; rasters other than the rule's come last, since the
    L2 alone sees them.
    """
    ours = base(p, spec, emulation=emulation)
    calls = base(p, spec, deterministic=True, emulation=emulation)
    known = {ours.plan, calls.plan}
    found: list[Candidate] = []
    for candidate in _all(p, spec, ours.rule):
        if candidate.plan not in known and _light(candidate.plan):
            known.add(candidate.plan)
            found.append(candidate)
    least = min(estimate(c.plan, spec.sms) for c in (ours, *found))

    def likely(c: Candidate) -> tuple[bool, float]:
        return c.rule.raster != _raster(ours.rule.raster, c.plan), estimate(c.plan, spec.sms)

    near = [c for c in found if estimate(c.plan, spec.sms) <= WITHIN * least]
    return sorted(near, key=likely)[:most]


def prepare(op: Kind, candidate: Candidate, **arguments: Any) -> PreparedRouter:
    """:func:`cake.prepare_router` of a GEMM with the same arguments, planned as a candidate is. One thread at
    a time.
    """
    emulation = candidate.plan.program.emulation
    with in_place_of_plain(_Chosen(candidate.rule)):
        return prepare_router(op, deterministic=candidate.deterministic, emulation=emulation, **arguments)


class _Chosen(Entries):
    """Makes entries whose plan comes of one rule, exact in its emulation."""

    def __init__(self, rule: Rule) -> None:
        super().__init__(router.MAX_ENTRIES)
        self._rule = rule

    def make(
        self, kind: Kind, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor, options: Options
    ) -> Entry:
        entry = super().make(kind, first, second, out, options)
        if entry.plan is not None:
            entry.plan = _plan(entry.problem, entry.spec, self._rule, options.deterministic)
        return entry


def _plan(p: Problem, spec: DeviceSpec, rule: Rule, deterministic: bool) -> Plan:
    emulation = rule.emulation or "bf16x3"
    family = spec.family_of(emulation)
    made = by_rule(p, family, rule, sms=spec.sms, deterministic=deterministic, emulation=emulation)
    return replace(made, raster=_raster(made.raster, made))


def _raster(raster: Raster, plan: Plan) -> Raster:
    """The lowest bands that give the tiles of a plan the same order."""
    rows, columns = plan.tiles
    return Raster(1 if columns == 1 else min(raster.height, rows))


def _all(p: Problem, spec: DeviceSpec, ours: Rule) -> Iterator[Candidate]:
    rasters = dict.fromkeys((ours.raster.height, *RASTERS))
    emulation = ours.emulation or "bf16x3"
    family = spec.family_of(emulation)
    holds = (1, GROUP[family])
    for tile, hold, splits, height in product(TILES[family, emulation], holds, (None, *SPLITS), rasters):
        rule = replace(ours, tile=tile, hold=hold, splits=splits, raster=Raster(height))
        plan = _plan(p, spec, rule, False)
        cut = plan.partition
        if splits and (cut == default_partition(p) or (cut.segments > 1 and cut.segment < MIN_SEGMENT)):
            continue
        rule = replace(rule, raster=plan.raster, hold=plan.hold)
        yield Candidate(rule, plan)
        if not splits and (ordered := _plan(p, spec, rule, True)) != plan:
            yield Candidate(rule, ordered, True)


def _light(plan: Plan) -> bool:
    p = plan.problem
    views = (p.a, p.b, p.out)
    return 4 * plan.partial_floats <= sum(v.rows * v.cols * ITEMSIZE[v.dtype] for v in views)
