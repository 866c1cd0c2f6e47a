"""From activity records to the interval of each step. Pure: records in, steps out.

Each step of a visit begins with a *mark*, a kernel that no op launches (torch's spin kernel); the flush
follows, then the op. Records of plain launches belong to the step whose mark's correlation id is the last one
before theirs: ids rise with every call of the process, so this holds whatever the clocks say. The nodes of a
graph carry the id of their graph launch, and some versions of CUPTI (before 13.1 update 1) get it wrong for
replays; they are placed by their order on the GPU, between marks, and stand only if their kernel sequence is
the known one. Marks and flush kernels are left out by name.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from bench.timers import StepTime

#: Part of the name of the kernel of ``torch.cuda._sleep``, mangled or not.
MARK = "spin_kernel"
#: Kernels that set the L2's state before a step; see :mod:`bench.l2`.
FLUSH = frozenset({"bench_l2_write", "bench_l2_read", "bench_l2_warm"})


class Activity(NamedTuple):
    """One record: a kernel's normalised name, or ``memset``/``memcpy``; stamps in ns; ``graph`` is 0 for a
    plain launch.
    """

    name: str
    start: int
    end: int
    correlation: int
    graph: int = 0


@dataclass(frozen=True)
class Attribution:
    """The steps of a visit, untimed ones included; ``odd`` counts graph nodes whose correlation id fits no
    step of theirs.
    """

    steps: tuple[StepTime, ...]
    odd: int = 0


def is_mark(name: str) -> bool:
    """Whether a kernel delimits steps."""
    return MARK in name


def attribute(
    activities: Sequence[Activity], steps: int, expected: tuple[str, ...] | None = None
) -> Attribution:
    """The interval of each of ``steps`` steps: from the first begin to the last end of the op's records.

    Records from before the first mark are ignored. A step is void where a record of it has a zero, missing or
    reversed stamp, where it overlaps the flush, where it has no records, or where its kernels are not
    ``expected`` (if ``None``: not the visit's usual ones; of two equally usual sequences, the first). Where
    marks are missing, every step is void.
    """
    marks = sorted((a for a in activities if is_mark(a.name)), key=lambda a: a.correlation)
    if problem := _marks_problem(marks, steps):
        return Attribution((StepTime(None, problem),) * steps)
    ids = [m.correlation for m in marks]
    starts = [m.start for m in marks]
    ops: list[list[Activity]] = [[] for _ in marks]
    #: When the step's mark and flush were over: the op cannot have begun before.
    ready = [m.end for m in marks]
    odd = 0
    for a in activities:
        if is_mark(a.name):
            continue
        by_id = bisect_right(ids, a.correlation) - 1
        step = by_id
        if a.graph and a.start > 0:
            step = bisect_right(starts, a.start) - 1
            odd += step >= 0 and step != by_id
        if step < 0:
            continue
        if a.name in FLUSH:
            ready[step] = max(ready[step], a.end)
        else:
            ops[step].append(a)
    for op in ops:
        op.sort(key=lambda a: a.start if a.graph else a.correlation)
    names = [tuple(a.name for a in op) for op in ops]
    if expected is None and any(names):
        expected = Counter(n for n in names if n).most_common(1)[0][0]
    ends = [*starts[1:], None]
    return Attribution(
        tuple(_step(op, n, expected, r, e) for op, n, r, e in zip(ops, names, ready, ends, strict=True)), odd
    )


def _marks_problem(marks: Sequence[Activity], steps: int) -> str:
    if len(marks) != steps:
        return f"records lost: {len(marks)} marks for {steps} steps"
    if any(m.start <= 0 or m.end <= 0 for m in marks):
        return "a mark has no stamp"
    if any(a.start >= b.start for a, b in pairwise(marks)):
        return "marks are out of order: correlation ids or stamps are wrong"
    return ""


def _step(
    op: Sequence[Activity],
    names: tuple[str, ...],
    expected: tuple[str, ...] | None,
    ready: int,
    next_mark: int | None,
) -> StepTime:
    if not op:
        return StepTime(None, "no records")
    if any(a.start <= 0 or a.end <= 0 for a in op):
        return StepTime(None, "missing stamp", names)
    if any(a.end <= a.start for a in op):
        return StepTime(None, "zero or reversed interval", names)
    # Branches of a graph may swap places from replay to replay; the same kernels in another order are the
    # same op there.
    same = names == expected or (
        expected is not None and all(a.graph for a in op) and Counter(names) == Counter(expected)
    )
    if not same:
        return StepTime(None, f"other kernels: {_short(names)} instead of {_short(expected or ())}", names)
    begin, end = min(a.start for a in op), max(a.end for a in op)
    if begin < ready or (next_mark is not None and end > next_mark):
        return StepTime(None, "overlaps the flush or the next step", names)
    return StepTime((end - begin) / 1e3, "", expected if expected is not None else names)


def _short(names: tuple[str, ...]) -> str:
    return " + ".join(n if len(n) <= 60 else n[:57] + "..." for n in names) or "none"


@lru_cache(maxsize=4096)
def normalise(name: str) -> str:
    """A kernel's name without return type, parameters and anonymous namespaces; template arguments stay.

    ``name`` may be mangled. Names that are no C++ names come back as they are.
    """
    text = _demangle(name)
    text = text.replace("(anonymous namespace)::", "").removeprefix("void ")
    depth = 0
    for i, c in enumerate(text):
        if c == "<":
            depth += 1
        elif c == ">" and text[i - 1] != "-":
            depth -= 1
        elif c == "(" and depth == 0 and i > 0:
            text = text[:i]
            break
    return re.sub(r"\s+", " ", text).strip()


def _demangle(name: str) -> str:
    if not name.startswith("_Z"):
        return name
    import torch

    return str(torch._C._demangle(name))
