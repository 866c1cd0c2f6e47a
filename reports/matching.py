"""Rows of several runs matched by what they are of, and what is asked of them run by run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from bench.model import Cell
from reports.rows import NEW, PREVIOUS, SOTA, Row, Run
from reports.tally import against_control


@dataclass(frozen=True)
class Matched:
    """One row in all runs: its words, and per run the row, or ``None`` where that run does not have it."""

    gpu: str
    key: str
    each: tuple[Row | None, ...]

    @property
    def row(self) -> Row:
        """The row of the first run that has it: for its names."""
        return next(r for r in self.each if r is not None)

    @property
    def where(self) -> str:
        """The row in words, with the GPU where runs have several."""
        return f"{self.gpu}: {self.row.name}" if self.gpu else self.row.name

    @property
    def common(self) -> bool:
        """Whether every run has the row."""
        return all(r is not None for r in self.each)


@dataclass(frozen=True)
class Comparison:
    """Runs, oldest argument first, and their rows matched by what they are of."""

    runs: tuple[Run, ...]
    rows: tuple[Matched, ...] = field(default=())

    @cached_property
    def labels(self) -> list[str]:
        """``run 1``, ``run 2``, ..."""
        return [f"run {i}" for i in range(1, len(self.runs) + 1)]

    @cached_property
    def reversed_labels(self) -> str:
        """``run 2 / run 1``: the newest first, as counts and time ratios are given."""
        return " / ".join(reversed(self.labels))

    @cached_property
    def arms(self) -> list[str]:
        """The arms of all runs, in print order."""
        found = list(dict.fromkeys(arm for run in self.runs for arm in run.arms))
        return [a for a in found if Run.is_cake(a)] + [a for a in found if not Run.is_cake(a)]

    @cached_property
    def judged(self) -> list[str]:
        """The arms whose ratio to cake is compared: the previous version where a run has it, and SOTA."""
        return [PREVIOUS] * (PREVIOUS in self.arms) + [SOTA]

    @cached_property
    def groups(self) -> list[tuple[str, str, str, list[Matched]]]:
        """``(gpu, mode, op, rows)`` in print order; the GPU is empty where each run has one."""
        found: dict[tuple[str, str, str], list[Matched]] = {}
        for m in self.rows:
            found.setdefault((m.gpu, m.row.mode, m.row.op), []).append(m)
        return [(*where, rows) for where, rows in found.items()]


def match(runs: Sequence[Run]) -> Comparison:
    """Match the rows of runs by suite, op, mode and shape; by GPU model too where a run has several."""
    many = any(len(run.gpus) > 1 for run in runs)
    each = [{((r.gpu if many else ""), r.key): r for r in run.rows} for run in runs]
    keys = dict.fromkeys(key for rows in each for key in rows)
    matched = [Matched(gpu, key, tuple(rows.get((gpu, key)) for rows in each)) for gpu, key in keys]
    gpus, modes, ops = (
        list(dict.fromkeys(get(m) for m in matched))
        for get in (lambda m: m.gpu, lambda m: m.row.mode, lambda m: m.row.op)
    )
    matched.sort(key=lambda m: (gpus.index(m.gpu), modes.index(m.row.mode), ops.index(m.row.op), m.row.order))
    return Comparison(tuple(runs), tuple(matched))


def of_run(rows: Sequence[Matched], i: int) -> list[Row]:
    """The rows that one run has."""
    return [r for m in rows if (r := m.each[i]) is not None]


def judged_cell(row: Row | None, arm: str) -> Cell | None:
    """The cell of an arm over cake, if it has a ratio."""
    cell = row.cell(arm) if row else None
    return cell if cell and cell.status == "ok" and cell.ratio is not None else None


def over_first(m: Matched, i: int, arm: str) -> float | None:
    """The arm's time in a run over its time in run 1."""
    first, other = m.each[0], m.each[i]
    a, b = other.us(arm) if other else None, first.us(arm) if first else None
    return a / b if a and b else None


def counts_above(c: Comparison, rows: Sequence[Matched], arm: str) -> str:
    """Cells above the control range, newest run first: ``9 / 8, of 9``; each of its total if they differ."""
    found = [
        (len(against_control(run, mine := of_run(rows, i), arm).above), len(mine))
        for i, run in enumerate(c.runs)
    ][::-1]
    if len({total for _, total in found}) == 1:
        return f"{' / '.join(str(n) for n, _ in found)}, of {found[0][1]}"
    return " / ".join(f"{n} of {total}" for n, total in found)


def why_not(row: Row | None, arm: str, label: str) -> tuple[str, str]:
    """Why an arm has no figure in a run: a word, and the reason with the run's label."""
    if row is None:
        return "no row", f"{label} does not have this row"
    word, reason = row.why_not(arm)
    return word, f"{label}: {reason}"


def ratio_name(arm: str) -> str:
    """An arm's ratio to cake in print."""
    return "previous/new" if arm == PREVIOUS else f"{arm_name(arm)}/cake"


def arm_name(arm: str) -> str:
    """An arm in print."""
    return {SOTA: "SOTA", PREVIOUS: "previous", NEW: "cake"}.get(arm, arm)
