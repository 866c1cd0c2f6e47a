"""Cells grouped into the rows of a report, in print order, with what the run knows of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from bench.model import Cell, Cells, Manifest, RowFacts
from bench.statistics import Array, Sampling
from bench.store import finished_rows, open_run

#: Arms of the code under test, and the best rival's; any other arm is a library's or a user's.
NEW, CONTROL, DET, PREVIOUS, SOTA = "cake", "control", "cake_det", "cake_prev", "sota"
FP16X2 = "cake_fp16x2"
#: The cake arms that the best library call is judged against, where they ran.
JUDGED = (NEW, DET, FP16X2)
#: The arm that is made of other arms' calls.
SEQUENCE = "sequence"
#: Stands where a figure has no meaning; a note says why.
NOT_APPLICABLE = "n/a"
#: A dense row's output where it is of another dtype than the suite's.
F32 = "f32"
#: Reasons are cut here: a compiler's log in a table's note would bury the table.
LONGEST_REASON = 400


@dataclass(frozen=True)
class Row:
    """One row: its name, its cells by ``(arm, over)``, and the reason where it has none."""

    gpu: str
    suite: str
    op: str
    mode: str
    T: int
    H: int | None
    N: int
    cells: Mapping[tuple[str, str], Cell] = field(default_factory=dict)
    missing: str = ""
    show_n: bool = False
    layer: str | None = None
    K: int | None = None
    out: str | None = None
    heads: int = 1
    #: Whether the layer is none of the suite's: then its key has its features, too.
    own: bool = False

    @property
    def key(self) -> str:
        """The row's key, as its files are named."""
        if self.layer is not None:
            features, wide = f"-K{self.K}-N{self.N}" * self.own, f"-{F32}" * (self.out == F32)
            return f"{self.suite}-{self.op}-{self.mode}-{self.layer}-T{self.T}{features}{wide}"
        return f"{self.suite}-{self.op}-{self.mode}-T{self.T}-H{self.H}-N{self.N}"

    @property
    def shape(self) -> str:
        """The shape in words, with N only where the run has more than one; a dense row's layer and T."""
        if self.layer is not None:
            return f"{self.layer} T={self.T}" + f" {F32}" * (self.out == F32)
        return " ".join(
            [f"T={self.T}"] + [f"H={self.H}"] * (self.H is not None) + [f"N={self.N}"] * self.show_n
        )

    @property
    def name(self) -> str:
        """The row in words: op, mode and shape."""
        return f"{self.op} {self.mode} {self.shape}"

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key of the shape: numbers, not their text."""
        return (self.T, self.H or 0, self.N)

    @property
    def product(self) -> str:
        """A dense row's layer as ``o_proj (16384->6144)``, heads first where there are several."""
        if self.K is None:
            return self.layer or ""
        heads = f"{self.heads} x " * (self.heads > 1)
        return f"{self.layer} ({heads}{self.K}->{self.N})"

    def tflops(self, us: float) -> float | None:
        """TFLOP/s of a dense row's one GEMM in ``us`` microseconds."""
        return None if self.K is None else 2 * self.T * self.K * self.N * self.heads / us / 1e6

    def cell(self, arm: str, over: str = NEW) -> Cell | None:
        """The cell of an arm over another."""
        found = self.cells.get((arm, over))
        if found is None and over == NEW:
            found = next((c for (name, _), c in self.cells.items() if name == arm), None)
        return found

    def us(self, arm: str, over: str = NEW) -> float | None:
        """The arm's time (us), where it has one."""
        cell = self.cell(arm, over)
        return cell.us if cell and cell.status == "ok" else None

    def ratio(self, arm: str, over: str = NEW) -> float | None:
        """``us(arm) / us(over)``, where both have a time."""
        cell = self.cell(arm, over)
        return cell.ratio if cell and cell.status == "ok" else None

    def why_not(self, arm: str, over: str = NEW) -> tuple[str, str]:
        """Status word and reason, on one line, of a figure that is not there."""
        word, reason = self._why_not(arm, over)
        text = " ".join(reason.split()).rstrip(".")
        if len(text) > LONGEST_REASON:
            text = f"{text[:LONGEST_REASON]} ... (the rest is in rows/{self.key}.json)"
        return word, text

    def _why_not(self, arm: str, over: str) -> tuple[str, str]:
        if self.missing:
            return "not run", self.missing
        cell = self.cell(arm, over)
        if cell is None and arm == SEQUENCE:
            return NOT_APPLICABLE, "a sequence needs an op of two GEMMs or more"
        if cell is None:
            return "not run", f"`{arm}` was not an arm of this row"
        if cell.status != "ok":
            return cell.status, cell.reason or f"status {cell.status}, with no reason recorded"
        if cell.us is None:
            return "no time", cell.reason or "every timed step was voided"
        against = self.cell(over)
        if against is None or against.status != "ok":
            status, reason = self._why_not(over, NEW) if over != arm else ("not run", "it has no time")
            return "no ratio", f"`{over}` is {status}: {reason}"
        return "no ratio", cell.reason or "the cell holds no ratio"

    @property
    def sota_arm(self) -> str | None:
        """The library arm that is the fastest here."""
        cell = self.cell(SOTA)
        return cell.call.partition(":")[0] if cell and cell.status == "ok" and cell.call else None


@dataclass(frozen=True)
class Run:
    """A run as reports see it: the manifest, all its rows in print order, and what the arms are."""

    manifest: Manifest
    rows: tuple[Row, ...]
    facts: Mapping[str, RowFacts]
    samples: Mapping[str, Mapping[str, Array]]

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Arm -> ``cake``, ``library`` or ``user``."""
        return {arm.arm: arm.kind for facts in self.facts.values() for arm in facts.arms}

    @cached_property
    def gpus(self) -> list[str]:
        """GPU models, as they come."""
        return _unique(row.gpu for row in self.rows)

    @cached_property
    def modes(self) -> list[str]:
        """Modes, in the order of the run."""
        return _unique(row.mode for row in self.rows)

    @cached_property
    def ops(self) -> list[str]:
        """Ops, in the order of the run."""
        return _unique(row.op for row in self.rows)

    @cached_property
    def tokens(self) -> list[int]:
        """Every T, ascending."""
        return sorted({row.T for row in self.rows})

    @cached_property
    def dense(self) -> bool:
        """Whether the rows are of layers, as the dense suite's are."""
        return any(row.layer is not None for row in self.rows)

    @cached_property
    def layers(self) -> list[str]:
        """Layers, in the order of the run."""
        return _unique(row.layer for row in self.rows if row.layer is not None)

    @cached_property
    def outs(self) -> list[str]:
        """Dtypes of dense rows' outputs, as they come."""
        return _unique(row.out for row in self.rows if row.out is not None)

    @cached_property
    def arms(self) -> list[str]:
        """Arms in print order: cake's, then the others as the manifest lists them."""
        return [a for a in self.manifest.arms if self.is_cake(a)] + [
            a for a in self.manifest.arms if not self.is_cake(a)
        ]

    @cached_property
    def rivals(self) -> list[str]:
        """The library arms, in print order."""
        return [a for a in self.arms if not self.is_cake(a) and self.kinds.get(a, "library") == "library"]

    @cached_property
    def calls(self) -> list[str]:
        """Every arm but the control: the different calls that were measured."""
        return [a for a in self.arms if a != CONTROL]

    @cached_property
    def judged(self) -> list[str]:
        """The cake arms that the best library call is judged against: ``cake``, and the others that ran."""
        return [a for a in JUDGED if a == NEW or any((SOTA, a) in r.cells for r in self.rows)]

    def sampling(self, row: Row) -> Sampling:
        """What the groups of a row's samples are."""
        facts = self.facts.get(row.key)
        return Sampling(self.manifest.form, facts.units if facts else ())

    @staticmethod
    def is_cake(arm: str) -> bool:
        """Whether an arm is of the code under test."""
        return arm in (CONTROL, NEW) or arm.startswith(f"{NEW}_")

    def select(
        self,
        gpu: str | None = None,
        mode: str | None = None,
        op: str | None = None,
        tokens: int | None = None,
        layer: str | None = None,
        out: str | None = None,
    ) -> list[Row]:
        """The rows of a GPU, mode, op, T, layer and output dtype; ``None`` takes all."""
        return [
            r
            for r in self.rows
            if gpu in (None, r.gpu)
            and mode in (None, r.mode)
            and op in (None, r.op)
            and tokens in (None, r.T)
            and layer in (None, r.layer)
            and out in (None, r.out)
        ]


def load(run_dir: Path) -> Run:
    """Read a run directory. Raises :class:`bench.store.StoreError` where it is none, or has no cells yet."""
    run = open_run(run_dir)
    manifest = run.manifest()
    return group(manifest, run.cells(), finished_rows(run, manifest.rows))


class _Id(NamedTuple):
    """What a row's key says: its suite, op and mode, and H and N of a router row or layer and out of a dense
    one.
    """

    suite: str
    op: str
    mode: str
    T: int
    H: int | None
    N: int | None
    layer: str | None = None
    out: str | None = None


def group(manifest: Manifest, cells: Cells, finished: Sequence[tuple[RowFacts, Mapping[str, Array]]]) -> Run:
    """A run's rows: GPU, mode and op in the order of the run, shapes by number, layers in the order of the
    run; those without cells too.
    """
    keys = {key: _parse(key) for key in (*manifest.rows, *cells.missing)}
    many_n = len({c.N for c in cells.cells} | {parts.N for parts in keys.values()}) > 1
    found: dict[tuple[str, _Id], dict[tuple[str, str], Cell]] = {}
    for c in cells.cells:
        row_id = _Id(c.suite, c.op, c.mode, c.T, c.H, None if c.layer else c.N, c.layer, c.out)
        found.setdefault((c.gpu, row_id), {})[c.arm, c.over] = c
    sizes: dict[str | None, tuple[int | None, int, int]]
    sizes = {c.layer: (c.K, c.N, c.heads) for c in cells.cells if c.layer is not None}
    named = {parts: key for key, parts in keys.items()}
    rows = [_row(gpu, row_id, sizes, many_n, by_arm, named) for (gpu, row_id), by_arm in found.items()]
    seen = {row.key for row in rows}
    why = (
        "the run ended before this row was measured"
        if manifest.finished is None
        else "the run holds no result of it"
    )
    for key, parts in keys.items():
        if key not in seen:
            rows.append(_row(manifest.device.name, parts, sizes, many_n, {}, named, why))
    sequence = list(keys.values())
    ops, modes = _unique(p.op for p in sequence), _unique(p.mode for p in sequence)
    layers = _unique(p.layer for p in sequence if p.layer is not None)
    gpus = _unique(row.gpu for row in rows)
    rows.sort(
        key=lambda r: (
            gpus.index(r.gpu),
            _place(modes, r.mode),
            r.out == F32,
            _place(layers, r.layer or ""),
            _place(ops, r.op),
            r.order,
        )
    )
    return Run(manifest, tuple(rows), {f.key: f for f, _ in finished}, {f.key: s for f, s in finished})


def _row(
    gpu: str,
    parts: _Id,
    sizes: Mapping[str | None, tuple[int | None, int, int]],
    show_n: bool,
    cells: Mapping[tuple[str, str], Cell],
    named: Mapping[_Id, str],
    missing: str = "",
) -> Row:
    """A row of what its key or its cells say; ``sizes`` are K, N and heads of the layers that have cells,
    ``named`` the keys of the run's rows.
    """
    suite, op, mode, t, h, n, layer, out = parts
    if layer is None:
        return Row(gpu, suite, op, mode, t, h, n or 0, cells, missing, show_n)
    k, n, heads = sizes.get(layer, (None, 0, 1))
    own = re.search(r"-K\d+-N\d+", named.get(parts, "")) is not None
    return Row(gpu, suite, op, mode, t, None, n, cells, missing, False, layer, k, out, heads, own)


def _parse(key: str) -> _Id:
    """``suite-op-mode-T64-H4096-N256`` or ``suite-op-mode-layer-T64[-f32]`` -> its parts."""
    router = re.fullmatch(r"([^-]+)-([^-]+)-([^-]+)-T(\d+)-H(\d+)-N(\d+)", key)
    if router:
        suite, op, mode, t, h, n = router.groups()
        return _Id(suite, op, mode, int(t), int(h), int(n))
    dense = re.fullmatch(r"([^-]+)-([^-]+)-([^-]+)-(.+)-T(\d+)(?:-K\d+-N\d+)?(-f32)?", key)
    if dense is None:
        raise ValueError(
            f"row key {key!r}: needs suite-op-mode-T<n>-H<n>-N<n> or suite-op-mode-layer-T<n>[-f32]"
        )
    suite, op, mode, layer, t, wide = dense.groups()
    return _Id(suite, op, mode, int(t), None, None, layer, F32 if wide else "bf16")


def name_of(key: str) -> str:
    """A row's key in words: op, mode and the whole shape."""
    r = _parse(key)
    if r.layer is not None:
        return f"{r.op} {r.mode} {r.layer} T={r.T}" + f" {F32}" * (r.out == F32)
    return f"{r.op} {r.mode} T={r.T} H={r.H} N={r.N}"


def _unique(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))


def _place(order: Sequence[str], item: str) -> int:
    return order.index(item) if item in order else len(order)
