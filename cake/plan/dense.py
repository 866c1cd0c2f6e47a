"""Plans of BF16 projections. Pure: run anywhere, the same for the GPU and for the CPU that repeats them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

from ..operand import ITEMSIZE, AnyKind, Problem, View
from . import dense_rules, partition, ways
from .dense_rules import DenseRule
from .device import DeviceSpec
from .forms import FORMS
from .partition import Partition
from .planner import COUNTERS
from .raster import Raster
from .ways import Way

#: A shorter segment of K is not worth a partial sum's way through memory.
MIN_SEGMENT = 512
#: The sm80 family: the forms of its programs, rows x columns of a tile, and the share of the largest one's
#: speed that each has; row tiles of a band.
SM80_FORMS = {"128x128": 1.0, "128x64": 0.8, "64x64": 0.6}
SM80_RASTER = Raster(8)
#: Bytes of an output that is streamed: twice the L2 of an H200, where weight gradients of 151 MB and
#: more took 2 to 10 % less, and those of 101 MB and less up to 2 % more.
STREAMED_BYTES = 120e6


@dataclass(frozen=True)
class ProjectionKey:
    """What tells one compiled program from another: family, form (the tile, and what else a family names
    with it), layouts of the operands, dtype and layout of the output.
    """

    family: str
    form: str
    a_unit_k: bool
    b_unit_k: bool
    out_dtype: str
    out_unit_n: bool
    planted: bool = False

    def __str__(self) -> str:
        layout = "".join("k" if unit_k else "x" for unit_k in (self.a_unit_k, self.b_unit_k))
        stored = "r" if self.out_unit_n else "c"
        name = f"projection_{self.family}_{self.form}_{layout}_{self.out_dtype}_{stored}"
        return f"{name}_planted" if self.planted else name


@dataclass(frozen=True)
class ProjectionPlan:
    """How one projection is computed. ``partition`` and the family of ``program`` alone decide its bits; the
    rest decides its speed.

    ``problem`` is what is computed: where ``swapped``, the transpose of what was asked for. Tensor cores sum
    a segment of K through; ``reduction`` is how segments come together: ``direct`` (there is one),
    ``ordered`` (the last CTA of a tile to arrive adds all in order). ``walkers`` are the CTAs that share out
    the tiles, one each where it is 0; ``tail``: tiles of the last wave have half the height.
    """

    problem: Problem
    program: ProjectionKey
    partition: Partition
    raster: Raster
    walkers: int = 0
    tail: bool = False
    swapped: bool = False
    reduction: Literal["direct", "ordered"] = "direct"
    spin: int = 0

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of the output that are one tile."""
        return tile_of(self.program.form)

    @property
    def tiles(self) -> tuple[int, int]:
        """Row and column tiles of one matrix of the output."""
        rows, columns = self.tile
        return -(-self.problem.m // rows), -(-self.problem.n // columns)

    @property
    def parts(self) -> int:
        """Sums that a tile is made of: one a segment of K."""
        return self.partition.segments

    @property
    def grid(self) -> tuple[int, int, int]:
        """Launch grid: CTAs that walk over tiles and parts, or a CTA for each tile of the batch x parts."""
        return (self.walkers, 1, 1) if self.walkers else (self._all_tiles, self.parts, 1)

    @property
    def cut(self) -> tuple[int, int]:
        """Parts of tiles that walkers take as they are, and halves of others behind them: where ``tail``,
        what is left for a last wave is cut if all halves are one wave, and the form has two blocks to part (a
        program of one does not halve, and would go past its last tile).
        """
        units = self._all_tiles * self.parts
        left = units % self.walkers if self.walkers else 0
        form = FORMS.get(self.program.form)
        halved = self.tail and form is not None and form.height > 1 and 0 < 2 * left <= self.walkers
        return (units - left, 2 * left) if halved else (units, 0)

    @property
    def streamed(self) -> bool:
        """Whether the output is larger than an L2 can keep, so that it had better keep the operands."""
        out = self.problem.out
        return out.batch * out.rows * out.cols * ITEMSIZE[out.dtype] > STREAMED_BYTES

    @property
    def partial_floats(self) -> int:
        """FP32 workspace elements for partial sums."""
        return self._all_tiles * self.parts * math.prod(self.tile) * (self.reduction == "ordered")

    @property
    def counters(self) -> int:
        """Workspace counters, zero between launches: a line a tile."""
        return COUNTERS * self._all_tiles * (self.reduction == "ordered")

    @property
    def _all_tiles(self) -> int:
        return self.problem.batch * math.prod(self.tiles)

    def __str__(self) -> str:
        cut = f"K{self.partition.k}={self.parts}x{self.partition.segment}"
        more = (
            " swapped" * self.swapped + " tail" * self.tail + f" {self.walkers} walkers" * bool(self.walkers)
        )
        return f"{self.program} {cut} {self.reduction}{more}, {self.raster}"


def tile_of(form: str) -> tuple[int, int]:
    """The tile that a form's name has: ``128x64``, and what may stand before it."""
    found = re.search(r"(\d+)x(\d+)$", form)
    if found is None:
        raise ValueError(f"form {form!r}; needs to end with rows x columns of its tile")
    return int(found[1]), int(found[2])


def planted(plan: ProjectionPlan, spin: int) -> ProjectionPlan:
    """The plan with its program made to spin for ``spin`` clocks at the end."""
    return replace(plan, program=replace(plan.program, planted=True), spin=spin)


def projection_problem(kind: AnyKind, first: View, second: View, out: View) -> Problem:
    """The GEMM of a projection from its operands' views in call order: (X, W), (G, W), (G, X) or (A, B)."""
    if kind == "fwd":
        return Problem(kind, first, second.transposed(), out)
    return Problem(kind, first.transposed() if kind == "wgrad" else first, second, out)


def tokens(p: Problem) -> tuple[int, int, int]:
    """(T, N out features, K in features) of a projection as it was asked for; of any product (M, N, K)."""
    t, n, k = {"dgrad": (p.m, p.k, p.n), "wgrad": (p.k, p.m, p.n)}.get(p.kind, (p.m, p.n, p.k))
    return t, n, k


def default_partition(p: Problem) -> Partition:
    """The K partition of a problem whose rule names none: the shape's, and the same for its transpose."""
    return partition.filling(p.k, p.m, p.n, p.batch, MIN_SEGMENT)


def program_key(p: Problem, family: str, form: str) -> ProjectionKey:
    """The program for a problem's layouts and output."""
    return ProjectionKey(family, form, p.a.unit == 1, p.b.unit == 0, p.out.dtype, p.out.unit == 1)


def plan_projection(
    problem: Problem, spec: DeviceSpec, *, deterministic: bool = True, rule: DenseRule | None = None
) -> ProjectionPlan:
    """The plan of a non-empty projection on a device: by ``rule``, whether it matches or not, else by the
    shipped rule that does, else the one of the least estimated time.

    Raises ``UnsupportedDevice`` where no program runs, ``LookupError`` where the rule's form is none.
    """
    family = spec.projection_family
    if rule is None:
        where = (problem.kind, *tokens(problem), problem.batch, problem.out.dtype)
        rule = dense_rules.match(dense_rules.shipped(family), *where)
    if family == "sm90":
        size = problem.m, problem.n, problem.k, problem.batch, problem.out.dtype
        if rule is None:
            return by_way(problem, ways.best(*size, spec.sms), spec.sms)
        splits = ways.splits(*size) if rule.splits is None else rule.splits
        return by_way(
            problem, Way(rule.program, splits, rule.tail, rule.swapped, rule.raster.height), spec.sms
        )
    if rule:
        return _sm80(problem, rule.program, rule.raster, rule.splits)
    return min(
        (_sm80(problem, form, SM80_RASTER) for form in SM80_FORMS), key=lambda p: estimate_sm80(p, spec)
    )


def by_way(problem: Problem, way: Way, sms: int) -> ProjectionPlan:
    """The plan of a projection that is done in a way of the sm90 family by so many CTAs at most. Raises
    ``LookupError`` where its form is none.
    """
    if way.form not in FORMS:
        raise LookupError(f"form {way.form!r}; the sm90 family has {', '.join(FORMS)}")
    part = partition.pinned(problem.k, way.splits)
    computed = problem.swapped() if way.swapped else problem
    plan = ProjectionPlan(
        computed,
        program_key(computed, "sm90", way.form),
        part,
        Raster(way.raster),
        walkers=sms,
        tail=way.tail,
        swapped=way.swapped,
        reduction="ordered" if part.segments > 1 else "direct",
    )
    return replace(plan, walkers=min(sms, sum(plan.cut)))


def _sm80(problem: Problem, form: str, raster: Raster, splits: int | None = None) -> ProjectionPlan:
    """Its programs store rows: an output of columns is computed as its transpose."""
    if form not in SM80_FORMS:
        raise LookupError(f"form {form!r}; the sm80 family has {', '.join(SM80_FORMS)}")
    part = default_partition(problem) if splits is None else partition.pinned(problem.k, splits)
    swapped = problem.out.unit == 0
    computed = problem.swapped() if swapped else problem
    return ProjectionPlan(
        computed,
        program_key(computed, "sm80", form),
        part,
        raster,
        swapped=swapped,
        reduction="ordered" if part.segments > 1 else "direct",
    )


def estimate_sm80(plan: ProjectionPlan, spec: DeviceSpec) -> float:
    """About how long a plan of the sm80 family takes, in no unit: what the SM with the most CTAs multiplies,
    by how fast it does in that form.
    """
    x, y, z = plan.grid
    return -(-x * y * z // spec.sms) * math.prod(plan.tile) / SM80_FORMS[plan.program.form]
