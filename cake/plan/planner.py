"""Problem + DeviceSpec -> Plan. Pure: runs anywhere, and the same for the GPU and for the CPU that repeats
it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from ..operand import Problem, View
from . import partition, rules
from .device import CPU
from .estimate import estimate
from .partition import GROUP, Partition
from .raster import Raster
from .routes import Routes
from .rules import Rule
from .tiles import TILES

Reduction = Literal["direct", "ordered", "atomic", "spread"]

#: Words from one tile's counters to the next: a 128-byte line. In one line, the tiles' atomics queue at one
#: slice of the L2, and where it lies made two launches of one program differ by 1.2 % (H200, fwd T=256).
COUNTERS = 32

#: From how many partial sums a tile on atomics pay (H200, fwd H=4096, atomic against ordered): 16 parts 15.3
#: against 17.7 us, 4 parts 66.8 against 64.1.
ATOMIC_PARTS = 8


@dataclass(frozen=True)
class ProgramKey:
    """What tells one compiled program from another: template family, tile, layouts and dtypes of the
    operands, emulation.
    """

    family: str
    tile_m: int
    tile_n: int
    a_unit_k: bool
    b_unit_k: bool
    a_dtype: str
    b_dtype: str
    emulation: str = "bf16x3"
    planted: bool = False

    def __str__(self) -> str:
        layout = "".join("k" if unit_k else "x" for unit_k in (self.a_unit_k, self.b_unit_k))
        name = f"router_{self.family}_{self.tile_m}x{self.tile_n}_{layout}_{self.a_dtype}_{self.b_dtype}"
        # BF16x3 has no name of its own: it was the only one at first.
        name += f"_{self.emulation}" * (self.emulation != "bf16x3")
        return f"{name}_planted" if self.planted else name


@dataclass(frozen=True)
class Plan:
    """How one router GEMM is computed. ``partition``, family and emulation of ``program`` alone decide its
    bits; the rest decides its speed.

    ``hold`` is the number of K segments one CTA sums; ``reduction`` how CTAs of a tile put their sums
    together: ``direct`` (one CTA a tile), ``ordered`` (the last to arrive adds all in a fixed order),
    ``spread`` (each waits for all and adds its share of the tile, in the same order; all CTAs must run at
    once), ``atomic``. ``walkers`` are the CTAs that share out the tiles, one each where it is 0.
    """

    problem: Problem
    program: ProgramKey
    partition: Partition
    hold: int
    raster: Raster
    reduction: Reduction
    walkers: int = 0
    spin: int = 0

    @property
    def tiles(self) -> tuple[int, int]:
        """Row and column tiles of the output."""
        return -(-self.problem.m // self.program.tile_m), -(-self.problem.n // self.program.tile_n)

    @property
    def parts(self) -> int:
        """CTAs a tile."""
        return -(-self.partition.segments // self.hold)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Launch grid: CTAs that walk over the tiles x parts."""
        return self.walkers or math.prod(self.tiles), self.parts, 1

    @property
    def partial_floats(self) -> int:
        """FP32 workspace elements for partial sums: of all parts, or of one that holds several segments (the
        sm90 family keeps the sum of those before there).
        """
        split = self.reduction in ("ordered", "spread")
        held = self.program.family == "sm90" and self.hold > 1 and self.partition.segments > 1
        tile = self.program.tile_m * self.program.tile_n
        return math.prod(self.tiles) * self.parts * tile * (split or held)

    @property
    def counters(self) -> int:
        """Workspace counters, zero between launches: a line a tile."""
        return COUNTERS * math.prod(self.tiles) * (self.reduction != "direct")

    def __str__(self) -> str:
        return f"{self.program} {self.partition} hold {self.hold} {self.reduction}, {self.raster}"


def planted(plan: Plan, spin: int) -> Plan:
    """The plan with its program made to spin for ``spin`` clocks at the end."""
    return replace(plan, program=replace(plan.program, planted=True), spin=spin)


def tokens(p: Problem) -> tuple[int, int, int]:
    """(T, N experts, H features) of a router GEMM."""
    return {"fwd": (p.m, p.n, p.k), "dgrad": (p.m, p.k, p.n), "wgrad": (p.k, p.m, p.n)}[p.kind]


def default_partition(p: Problem) -> Partition:
    """The K partition of a problem whose caller pins none."""
    t, n, h = tokens(p)
    return partition.for_wgrad(t, n, h) if p.kind == "wgrad" else partition.by_k(p.k)


def plan(
    problem: Problem,
    family: str,
    *,
    sms: int = CPU.sms,
    deterministic: bool = True,
    emulation: str = "bf16x3",
    splits: int | None = None,
    routes: Routes | None = None,
) -> Plan:
    """The plan of a non-empty router GEMM for a device's program family (``DeviceSpec.family_of`` the
    emulation) and its number of SMs.

    ``splits`` pins the number of K segments. Raises ``ValueError`` unless it is 1 to 16. A device's
    ``routes`` are asked before the shipped rules where neither bits nor partition are promised: a pinned
    partition is not the one that a route was measured with.
    """
    where = (problem.kind, *tokens(problem), problem.out.dtype, emulation)
    free = not deterministic and splits is None
    route = routes.find(*where) if routes and free and routes.family == family else None
    rule = route or rules.find(rules.shipped(family), *where)
    return by_rule(
        problem, family, rule, sms=sms, deterministic=deterministic, emulation=emulation, splits=splits
    )


def by_rule(
    problem: Problem,
    family: str,
    rule: Rule,
    *,
    sms: int = CPU.sms,
    deterministic: bool = True,
    emulation: str = "bf16x3",
    splits: int | None = None,
) -> Plan:
    """The plan that a rule gives a problem, whether it matches or not: of one without a tile the plan of the
    least estimated time. ``splits`` goes before the rule's.
    """
    splits = rule.splits if splits is None else splits
    part = default_partition(problem) if splits is None else partition.pinned(problem.k, splits)

    def on(tile: tuple[int, int], hold: int) -> Plan:
        key = program_key(problem, family, tile, emulation)
        hold = hold if part.segments > 1 else 1
        return _reduced(Plan(problem, key, part, hold, rule.raster, "direct"), sms, deterministic)

    if rule.tile:
        return on(rule.tile, rule.hold)
    holds = (1, GROUP[family]) if part.segments > 1 else (1,)
    plans = (on(tile, hold) for tile, hold in product(TILES[family, emulation], holds))
    return min(plans, key=lambda plan: estimate(plan, sms))


def _reduced(made: Plan, sms: int, deterministic: bool) -> Plan:
    """The plan with the reduction that its parts need."""
    tiles, family = math.prod(made.tiles), made.program.family
    if made.parts == 1:
        # One CTA an SM, all with as many tiles: the next tile's loads hide the last one's stores.
        return replace(made, walkers=-(-tiles // -(-tiles // sms))) if family == "sm90" else made
    if family == "sm90":
        return replace(made, reduction="spread" if tiles * made.parts <= sms else "ordered")
    # Atomics add FP32 only; a BF16 output is rounded once, from the ordered sum.
    may_race = not deterministic and made.problem.out.dtype == "f32"
    return replace(made, reduction="atomic" if may_race and made.parts >= ATOMIC_PARTS else "ordered")


def program_key(p: Problem, family: str, tile: tuple[int, int], emulation: str) -> ProgramKey:
    """The program for a problem's layouts and dtypes."""
    return ProgramKey(family, *tile, p.a.unit == 1, p.b.unit == 0, p.a.dtype, p.b.dtype, emulation)


def router_problem(kind: Literal["fwd", "dgrad", "wgrad"], x: View, w: View, out: View) -> Problem:
    """The GEMM of a router product from its operands' views in call order: (X, W), (G, W) or (G, X)."""
    if kind == "fwd":
        return Problem(kind, x, w.transposed(), out)
    if kind == "dgrad":
        return Problem(kind, x, w, out)
    return Problem(kind, x.transposed(), w, out)
