"""Tables of the dense suite: every row with its speed, a line a node where a merged run has several, and
geomeans. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.model import Block
from bench.rule import rule_of
from bench.statistics import (
    Ratio,
    Sampling,
    geomean,
    median_us,
    paired_groups,
    paired_ratio,
    slower_passes,
    verdict,
)
from reports import format as fmt
from reports import tables
from reports.rows import CONTROL, DET, NEW, PREVIOUS, SOTA, Row, Run
from reports.tables import Column, Notes, Table
from reports.tally import tally

#: The call that a user's model makes by itself.
TORCH = "torch_bf16"
#: The node of the line whose figures are the cells', over all nodes of a merged run.
ALL_NODES = "all"


@dataclass(frozen=True)
class AtNode:
    """A row on one node of a merged run: both times (us), their ratio, its verdict and the slower passes."""

    node: str
    before: float
    new: float
    ratio: Ratio
    verdict: str
    slower: str


def peaks(run: Run) -> Mapping[str, float]:
    """GPU model -> the most TFLOP/s that any cell with status ok reached on it, of whatever arm."""
    found: dict[str, float] = {}
    for r in run.rows:
        for arm in run.arms:
            us = r.us(arm)
            if us and (speed := r.tflops(us)):
                found[r.gpu] = max(found.get(r.gpu, 0.0), speed)
    return found


def rows_against(run: Run, of: Sequence[Row], arm: str = SOTA) -> Table:
    """Rows of a run: us of SOTA (or of the previous version) and of cake, the speedup with its interval and
    verdict, cake's TFLOP/s and their share of the measured peak, and the slower passes; losing rows first.
    """
    notes = Notes()
    rows = sorted(of, key=tables.losing_first if arm == SOTA else _slower_than(arm))
    unit = fmt.unit_for(us for r in rows for a in (arm, NEW) if (us := r.us(a)) is not None)
    nodes = any(_nodes(run, r) for r in rows)
    passes = run.manifest.form == "passes"
    where, who = (
        ("GPU (arch, SMs)", "SMs") if run.manifest.device.driver else ("device (arch, cores)", "cores")
    )
    before = f"SOTA {unit.name} (its name)" if arm == SOTA else f"previous {unit.name}"
    columns = [Column(where, False)] + [Column("node", False)] * nodes + [Column("layer (in->out)", False)]
    columns += [Column("op", False)] + [Column("mode", False)] * (len(run.modes) > 1)
    columns += [Column("out", False), Column("T"), Column(before)]
    columns += [
        Column(f"{'cake' if arm == SOTA else 'new'} {unit.name}"),
        Column("speedup [interval] verdict"),
    ]
    columns += [Column("TFLOP/s"), Column("share of the measured peak")] + [Column("slower passes")] * passes
    peak = peaks(run)
    lines = []
    for r in rows:
        gpu = f"{r.gpu.removeprefix('NVIDIA ')} ({_arch(run, r)}, {_sms(run, r)} {who})"
        name = [r.product, r.op] + [r.mode] * (len(run.modes) > 1) + [r.out or "", str(r.T)]
        figures = _figures(run, r, arm, unit, peak, notes)
        lines.append((gpu, *[ALL_NODES] * nodes, *name, *figures[: None if passes else -1]))
        for at in each_node(run, r, arm) if _nodes(run, r) else ():
            speed = r.tflops(at.new)
            line = _pair(at.before, at.new, unit)
            line += [f"{fmt.ratio(at.ratio.value)}{_bounds(at.ratio)} {at.verdict}"]
            line += [*_speed(speed, peak.get(r.gpu)), at.slower]
            lines.append((gpu, at.node, *name, *line[: None if passes else -1]))
    return Table(tuple(columns), tuple(lines), notes.lines() + _peak_notes(peak))


def each_node(run: Run, row: Row, arm: str) -> list[AtNode]:
    """A row of a merged run node by node, from its groups' samples, where both arms have a time."""
    blocks, units = run.facts[row.key].blocks, run.facts[row.key].units
    samples, rule = run.samples.get(row.key, {}), rule_of(run.manifest)
    baseline = row.sota_arm if arm == SOTA else arm
    if baseline is None or baseline not in samples or NEW not in samples or rule is None:
        return []
    owner = np.array([b.node for b in blocks for _ in range(b.groups)])
    found = []
    for node in dict.fromkeys(b.node for b in blocks):
        mine = owner == node
        a, b = samples[baseline][mine], samples[NEW][mine]
        sampling = Sampling(run.manifest.form, tuple(int(u) for u in np.array(units)[mine]))
        before, new = median_us(a, sampling), median_us(b, sampling)
        ratio = paired_ratio(a, b, f"{row.key}/{node}/{arm}", rule, sampling)
        if before is None or new is None or ratio is None:
            continue
        tick = run.manifest.timer.tick_us
        word = verdict(ratio, before, new, tick, rule)
        slower = f"{slower_passes(a, b, tick)} of {paired_groups(a, b)}"
        found.append(AtNode(node, before, new, ratio, word, slower))
    return found


def geomeans(run: Run, by: str) -> Table:
    """Geomeans with their intervals: over all rows and by T, or by layer; each against SOTA, torch's own
    choice, the previous version where there is one, and of the control.

    ``by`` is ``T`` (a line an op, a column a T) or ``layer`` (a line a layer, a column an op).
    """
    notes = Notes()
    wanted = [(SOTA, f"SOTA/{NEW}"), (TORCH, f"{TORCH}/{NEW}"), (PREVIOUS, "previous/new")]
    wanted = [(a, word) for a, word in wanted if a == SOTA or a in run.arms]
    if by == "T":
        wanted += [(CONTROL, "control")] * (CONTROL in run.arms) + [(DET, f"{DET}/{NEW}")] * (DET in run.arms)
        lines_of: list[tuple[str, Callable[[Row], bool]]]
        lines_of = [("all", lambda r: True)] + [(op, _is(op=op)) for op in run.ops] * (len(run.ops) > 1)
        columns_of = [(f"T={t}", _is(tokens=t)) for t in run.tokens]
    else:
        lines_of = [(p, _is(product=p)) for p in dict.fromkeys(r.product for r in run.rows)]
        columns_of = [(op, _is(op=op)) for op in run.ops]
    first = "op" if by == "T" else "layer (in->out)"
    columns = [Column("geomean of", False), Column(first, False), Column("all [interval]")]
    columns += [Column(title) for title, _ in columns_of] + [Column("lowest"), Column("faster, slower of")]
    lines = []
    for arm, word in wanted:
        for name, of_line in lines_of if arm not in (CONTROL, DET) else lines_of[:1]:
            rows = [r for r in run.rows if of_line(r)]
            t = tally(run, rows, arm=arm)
            if t.mean is None:
                mark = notes.mark("none", f"no row has the ratio {word}")
                lines.append((word, name, *[mark] * (len(columns) - 2)))
                continue
            line = [word, name, fmt.ratio(t.mean.value) + _bounds(t.mean)]
            line[-1] += f" ({len(rows) - len(t.unmeasured)} rows)" * bool(t.unmeasured)
            for title, of_column in columns_of:
                line.append(_mean(run, [r for r in rows if of_column(r)], arm, title, notes))
            lowest = min(x for r in rows if (x := r.ratio(arm)) is not None)
            line += [fmt.ratio(lowest), f"{len(t.faster)}, {len(t.slower)} of {len(rows)}"]
            lines.append(tuple(line))
    return Table(tuple(columns), tuple(lines), notes.lines())


def _mean(run: Run, rows: Sequence[Row], arm: str, title: str, notes: Notes) -> str:
    """A geomean alone; its rows where it is not over all of them."""
    if not rows:
        return notes.mark("no row", f"the run has no such row of {title}")
    known = [r for r in rows if r.ratio(arm) is not None]
    mean = geomean(r.ratio(arm) or 1.0 for r in known)
    if mean is None:
        return notes.mark(*rows[0].why_not(arm))
    return fmt.ratio(mean) + f" ({len(known)} of {len(rows)})" * (len(known) < len(rows))


def _is(op: str = "", product: str = "", tokens: int = 0) -> Callable[[Row], bool]:
    """Whether a row is of what is given."""

    def told(r: Row) -> bool:
        return (not op or r.op == op) and (not product or r.product == product) and tokens in (0, r.T)

    return told


def _figures(
    run: Run, row: Row, arm: str, unit: fmt.Unit, peak: Mapping[str, float], notes: Notes
) -> list[str]:
    """Times, speedup, TFLOP/s, share and slower passes of a row's cells."""
    before, new = row.us(arm), row.us(NEW)
    if before is not None and new is not None:
        line = _pair(before, new, unit)
    else:
        line = [tables.time(row, a, 2, unit, notes) for a in (arm, NEW)]
    if arm == SOTA and before is not None:
        line[0] += f" ({row.sota_arm})"
    ratio, bounds, word = tables.judged(row, NEW, notes, arm)
    line.append(ratio if row.ratio(arm) is None else f"{ratio} {bounds} {word}")
    speed = row.tflops(new) if new else None
    line += _speed(speed, peak.get(row.gpu)) if speed else [notes.mark(*row.why_not(NEW))] * 2
    return [*line, tables.slower_passes(run, row, arm, notes)]


def _speed(speed: float | None, peak: float | None) -> list[str]:
    """TFLOP/s with 3 digits, and the share of the peak."""
    if speed is None or not peak:
        return ["not known"] * 2
    return [fmt.digits(speed), f"{100 * speed / peak:.1f} %"]


def _pair(before: float, new: float, unit: fmt.Unit) -> list[str]:
    """Two times with the decimals that reproduce their ratio."""
    places = fmt.decimals_for([(before, new)], unit, 2, [before, new])
    return [fmt.time(us, places, unit) for us in (before, new)]


def _bounds(ratio: Ratio) -> str:
    return "" if ratio.lo is None or ratio.hi is None else f" {fmt.interval(ratio.lo, ratio.hi)}"


def _nodes(run: Run, row: Row) -> tuple[Block, ...]:
    """The blocks of a row that several nodes measured; none where one node did."""
    facts = run.facts.get(row.key)
    return facts.blocks if facts and len({b.node for b in facts.blocks}) > 1 else ()


def _peak_notes(peak: Mapping[str, float]) -> tuple[str, ...]:
    """What the shares are of."""
    return tuple(
        f"the measured peak{f' on {gpu}' if len(peak) > 1 else ''} is {fmt.digits(speed)} TFLOP/s, the most "
        "that any cell of this run with status ok reached, of whatever arm"
        for gpu, speed in peak.items()
    )


def _slower_than(arm: str) -> Callable[[Row], tuple[int, float]]:
    """Sort key: the rows that are slower than an arm first, by ascending ratio."""

    def place(row: Row) -> tuple[int, float]:
        cell = row.cell(arm)
        return (0, cell.ratio or 0.0) if cell and cell.verdict == "slower" else (1, 0.0)

    return place


def _arch(run: Run, row: Row) -> str:
    return next((c.arch for c in row.cells.values()), run.manifest.device.arch)


def _sms(run: Run, row: Row) -> int:
    return next((c.sms for c in row.cells.values()), run.manifest.device.sms)
