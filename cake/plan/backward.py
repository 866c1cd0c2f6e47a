"""Both gradients in one launch: which CTAs do which. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from .estimate import estimate
from .partition import CHUNK, GROUP
from .planner import Plan, ProgramKey
from .tiles import TILES

#: Rows of wgrad's tile in a program that does both. A tile of 64 rows is chosen for a dW that alone has few;
#: beside dgrad's, which fill SMs too, that should not pay (not measured), and it would double the programs.
WGRAD_ROWS = 128


@dataclass(frozen=True)
class BackwardKey:
    """A program that does both GEMMs, each as the program of its own key does it."""

    dgrad: ProgramKey
    wgrad: ProgramKey

    def __str__(self) -> str:
        d, w = self.dgrad, self.wgrad
        tiles = f"{d.tile_m}x{d.tile_n}_{w.tile_m}x{w.tile_n}"
        name = f"backward_{d.family}_{tiles}_{w.b_dtype}" + f"_{d.emulation}" * (d.emulation != "bf16x3")
        return f"{name}_planted" if w.planted else name


@dataclass(frozen=True)
class BackwardPlan:
    """``dgrad`` and ``wgrad`` as they are planned alone, but on ``ctas`` CTAs each, and with one CTA for all
    of a wgrad tile's K. The bits are those of two launches.
    """

    dgrad: Plan
    wgrad: Plan
    ctas: tuple[int, int]

    @property
    def program(self) -> BackwardKey:
        """The program that does both."""
        return BackwardKey(self.dgrad.program, self.wgrad.program)

    def __str__(self) -> str:
        return f"{self.program}: {self.dgrad} on {self.ctas[0]} CTAs, {self.wgrad} on {self.ctas[1]}"


def joined(dgrad: Plan, wgrad: Plan, sms: int) -> BackwardPlan | None:
    """Both plans as one launch, or None where they have to be two: programs of sm90 only, K in so few
    segments that one CTA sums them (CTAs of a tile would wait for each other beside CTAs that do other work),
    and G, W and X in rows.
    """
    d, w = dgrad.program, wgrad.program
    in_rows = (d.a_unit_k, d.b_unit_k, w.a_unit_k, w.b_unit_k) == (True, False, False, False)
    alike = d.family == w.family == "sm90" and d.emulation == w.emulation and not d.planted
    segments = wgrad.partition.segments
    if not (in_rows and alike and dgrad.partition.segments == 1 and segments <= GROUP["sm90"]) or sms < 2:
        return None
    if segments > 1:  # one CTA sums them, in the order in which two would be added
        wgrad = replace(wgrad, hold=segments, reduction="direct")
    if w.tile_m != WGRAD_ROWS:
        wgrad = min(_on_rows(wgrad), key=lambda plan: estimate(plan, sms))
    return BackwardPlan(dgrad, wgrad, shares(work(dgrad), work(wgrad), sms))


def _on_rows(wgrad: Plan) -> list[Plan]:
    """The plan with every tile of ``WGRAD_ROWS`` rows."""
    tiles = TILES[wgrad.program.family, wgrad.program.emulation]
    keys = [replace(wgrad.program, tile_m=m, tile_n=n) for m, n in tiles if m == WGRAD_ROWS]
    return [replace(wgrad, program=key, walkers=0) for key in keys]


@dataclass(frozen=True)
class Work:
    """The tiles of a GEMM and the time of one, in any unit."""

    tiles: int
    each: float


def work(plan: Plan) -> Work:
    """A tile takes its products, and a chunk more to begin and to store it."""
    key = plan.program
    return Work(math.prod(plan.tiles), key.tile_m * key.tile_n * (-(-plan.problem.k // CHUNK) + 1))


def shares(first: Work, second: Work, ctas: int) -> tuple[int, int]:
    """How many CTAs each gets, together at most ``ctas`` (at least 2), so that the slower one is done as
    early as can be; no more than help.
    """

    def time(work: Work, n: int) -> float:
        return -(-work.tiles // n) * work.each

    def least(work: Work, n: int) -> int:
        """The fewest CTAs that are as fast as ``n``."""
        rounds = -(-work.tiles // n)
        return -(-work.tiles // rounds)

    best = min(range(1, ctas), key=lambda n: (max(time(first, n), time(second, ctas - n)), abs(2 * n - ctas)))
    return least(first, best), least(second, ctas - best)
