"""The verdict on a run: is the working tree's cake slower than the version before it, or wrong? Pure.

:func:`judge` reads the arm ``cake_prev`` of one run, measured beside ``cake`` in the same groups and measured
again where it was flagged. :func:`judge_runs` has two runs without a common clock; it goes through the
ratios to the library calls that both of them timed, with wider limits. A rival's failure turns neither red.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from bench.arms import CAKE, CAKE_DET, CAKE_FP16X2, CAKE_PREV, CONTROL, SEQUENCE
from bench.cells import SOTA
from bench.model import Cell, Cells, GateFinding, GateResult, Manifest
from bench.rule import other_rule
from bench.suites import row_of

#: What a ratio through library calls of two runs must exceed: ten times the minimum effect within a run. It
#: is chosen, not measured: pairing takes clocks, power and memory placement out of a ratio within a run, and
#: nothing does so between two (a long call ran at 726 to 818 TFLOP/s within a minute of an H200).
ACROSS_RUNS_EFFECT = 0.03

#: More than this share of unclear rows is no verdict: a slowdown of the effect sought could hide in them. An
#: H200's full preset leaves 12 % unclear, a preset that is too small or a busy device nearly all.
MANY_UNCLEAR = 0.25
#: So many rows are let pass among others, whatever share of a small gate they are.
FEW_UNCLEAR = 2

RowId = tuple[str, str]


def judge(cells: Cells, manifest: Manifest, notes: Sequence[str] = (), path: str = "RUN") -> GateResult:
    """The verdict of a run with a previous version as an arm. ``notes`` are said beside it; ``path`` is the
    run's directory, for what to type next.
    """
    rows = _by_row(cells)
    ids = [*rows, *((manifest.device.name, key) for key in cells.missing)]
    findings = [*_cake_arms(rows), *_missing(cells, manifest)]
    kept: dict[str, list[str]] = {"faster": [], "dismissed": [], "unclear": [], "not_compared": []}
    if CAKE_PREV not in manifest.arms:
        findings.append(
            _whole_run(
                "the run has no previous version to gate against; measure with one: "
                "cake-bench gate --previous REF"
            )
        )
    elif not rows and not cells.missing:
        findings.append(_whole_run("the run has no rows"))
    else:
        for (gpu, key), row in rows.items():
            found, word = _against_previous(gpu, key, row, _repeat(manifest, path))
            findings += found
            if word:
                kept[word].append(key)
        findings += _too_many_unclear(len(kept["unclear"]), len(rows) - len(kept["not_compared"]))
        if rows and len(kept["not_compared"]) == len(rows):
            findings.append(_whole_run(f"no row can be compared with {_version(manifest)}"))
    return GateResult(
        run=manifest.run,
        against=_version(manifest),
        form="paired",
        rows=tuple(ids),
        findings=_sorted(findings),
        notes=(*_notes(cells, manifest), *notes),
        faster=tuple(kept["faster"]),
        dismissed=tuple(kept["dismissed"]),
        unclear=tuple(kept["unclear"]),
        not_compared=tuple(kept["not_compared"]),
    )


def judge_runs(
    base_cells: Cells, base: Manifest, new_cells: Cells, new: Manifest, effect: float = ACROSS_RUNS_EFFECT
) -> GateResult:
    """The verdict of a new run against an older one, by the library calls that both timed on a row."""
    before, rows = _by_row(base_cells), _by_row(new_cells)
    findings = [*_cake_arms(rows), *_missing(new_cells, new)]
    gone = {gpu: [key for g, key in before if g == gpu and (gpu, key) not in rows] for gpu, _ in before}
    missing = {f.row for f in findings if f.kind == "missing"}
    findings += [
        GateFinding(kind="missing", row=key, gpu=gpu, reason=f"{base.run} has it, {new.run} does not")
        for gpu, keys in gone.items()
        for key in keys
        if key not in missing
    ]
    faster, unclear, not_compared = [], [], []
    for (gpu, key), row in rows.items():
        old = before.get((gpu, key))
        if old is None:
            not_compared.append(key)
            continue
        cake = row.get((CAKE, CAKE))
        if cake is None or cake.status != "ok":
            continue  # already a finding of its own
        estimate = _across(gpu, key, old, row)
        if estimate is None or estimate.ratio_lo is None or estimate.ratio_hi is None:
            why = "no library call is the same in both runs and has a ratio in both"
            findings.append(_finding("unmeasured", gpu, key, CAKE, why))
        elif estimate.ratio_hi <= 1 / (1 + effect):
            findings.append(estimate)
        elif estimate.ratio_lo >= 1 + effect:
            faster.append(key)
        elif estimate.ratio_lo <= 1 / (1 + effect):
            unclear.append(key)
    ids = [*rows, *((f.gpu, f.row) for f in findings if f.kind == "missing")]
    if not ids:
        findings.append(_whole_run("the runs have no rows"))
    elif rows and len(not_compared) == len(rows):
        findings.append(_whole_run(f"{base.run} and {new.run} have no row in common"))
    findings += _too_many_unclear(len(unclear), len(rows) - len(not_compared))
    return GateResult(
        run=new.run,
        against=base.run,
        form="across runs",
        rows=tuple(dict.fromkeys(ids)),
        findings=_sorted(findings),
        faster=tuple(faster),
        unclear=tuple(unclear),
        not_compared=tuple(not_compared),
        notes=(*_across_notes(base, new, effect), *_notes(new_cells, new)),
    )


# --- one row ------------------------------------------------------------------------------------------------


def _against_previous(
    gpu: str, key: str, row: Mapping[tuple[str, str], Cell], repeat: str
) -> tuple[list[GateFinding], str]:
    """What the previous version's cell says: findings, and the list of the result that the row enters.

    ``repeat`` says how to have a flagged row measured again.
    """
    cell, new = row.get((CAKE_PREV, CAKE)), row.get((CAKE, CAKE))
    if new is None or new.status != "ok":
        return [], ""  # a finding of its own
    if cell is None:
        return [_finding("unmeasured", gpu, key, CAKE_PREV, "the previous version was not an arm of it")], ""
    if cell.status == "unsupported":
        return [], "not_compared"
    if cell.status != "ok":
        return [_finding("unmeasured", gpu, key, CAKE_PREV, f"{cell.status}: {cell.reason}")], ""
    findings = []
    # Tile order, grid and who holds which part of K are the plan's too, and decide no bits.
    if cell.bits_unexplained:
        why = "deterministic output bits differ from the previous version's, though program and "
        why += "partition of that call are the same"
        findings.append(_finding("bits", gpu, key, CAKE_PREV, why))
    if cell.verdict == "slower":
        findings.append(_slower(gpu, key, cell))
    elif cell.ratio is None or cell.ratio_lo is None:
        why = cell.reason or "too few groups for an interval"
        findings.append(_finding("unmeasured", gpu, key, CAKE_PREV, why))
    elif cell.first_verdict == "slower" and cell.again is None:
        findings.append(_finding("unmeasured", gpu, key, CAKE_PREV, f"{cell.reason}; {repeat}"))
    elif cell.first_verdict == "slower" and cell.verdict == "same":
        return findings, "dismissed"
    elif cell.first_verdict == "faster" and cell.again is None:
        return findings, ""  # said in a note: what is not confirmed faster is not slower either
    elif cell.verdict in ("faster", "unclear"):
        return findings, str(cell.verdict)
    return findings, ""


def _slower(gpu: str, key: str, cell: Cell) -> GateFinding:
    assert cell.us is not None and cell.ratio is not None
    return GateFinding(
        kind="slower",
        row=key,
        gpu=gpu,
        arm=CAKE,
        previous_us=cell.us,
        new_us=cell.us / cell.ratio,
        ratio=cell.ratio,
        ratio_lo=cell.ratio_lo,
        ratio_hi=cell.ratio_hi,
        control_lo=cell.control_lo,
        control_hi=cell.control_hi,
        again=cell.again,
    )


def _cake_arms(rows: Mapping[RowId, Mapping[tuple[str, str], Cell]]) -> list[GateFinding]:
    """Cake's own arms that failed, were inaccurate, or gave other bits when repeated."""
    findings = []
    for (gpu, key), row in rows.items():
        for (arm, _), cell in row.items():
            if arm == CAKE_PREV or not (arm == CONTROL or arm.startswith(CAKE)):
                continue
            if arm == CAKE_FP16X2 and cell.status == "unsupported":  # the device has no programs for it
                continue
            if cell.status == "inaccurate":
                findings.append(_finding("inaccurate", gpu, key, arm, cell.reason))
            elif cell.status != "ok":
                findings.append(_finding("unmeasured", gpu, key, arm, f"{cell.status}: {cell.reason}"))
            elif arm == CAKE and cell.us is None:
                findings.append(_finding("unmeasured", gpu, key, arm, cell.reason or "it has no time"))
            elif arm == CAKE_DET and cell.bits_equal is False:
                why = "deterministic output bits differ before and after timing"
                findings.append(_finding("bits", gpu, key, arm, why))
    return findings


def _across(
    gpu: str, key: str, old: Mapping[tuple[str, str], Cell], new: Mapping[tuple[str, str], Cell]
) -> GateFinding | None:
    """Previous over new through each library call that is the same in both runs: the median of these ratios,
    and of their bounds. As a finding ``slower``, for the caller to judge; ``None`` without such a call.
    """
    through: dict[str, tuple[float, float, float]] = {}
    for (arm, over), cell in new.items():
        base = old.get((arm, over))
        rival = over == CAKE and arm not in (SOTA, SEQUENCE, CONTROL) and not arm.startswith(CAKE)
        if not rival or base is None or (base.call, base.cublas) != (cell.call, cell.cublas) or not cell.call:
            continue
        if cell.ratio is None or cell.ratio_lo is None or cell.ratio_hi is None:
            continue
        if base.ratio is None or base.ratio_lo is None or base.ratio_hi is None:
            continue
        through[arm] = (
            cell.ratio / base.ratio,
            cell.ratio_lo / base.ratio_hi,
            cell.ratio_hi / base.ratio_lo,
        )
    if not through:
        return None
    ratio, lo, hi = (statistics.median(bounds[i] for bounds in through.values()) for i in range(3))
    was = old.get((CAKE, CAKE))
    return GateFinding(
        kind="slower",
        row=key,
        gpu=gpu,
        arm=CAKE,
        reason=f"through {', '.join(sorted(through))}",
        previous_us=was.us if was else None,
        new_us=new[CAKE, CAKE].us,
        ratio=ratio,
        ratio_lo=lo,
        ratio_hi=hi,
    )


# --- a whole run --------------------------------------------------------------------------------------------


def row_key(cell: Cell) -> str:
    """The key of a cell's row."""
    return row_of(cell).key


def _by_row(cells: Cells) -> dict[RowId, dict[tuple[str, str], Cell]]:
    rows: dict[RowId, dict[tuple[str, str], Cell]] = {}
    for cell in cells.cells:
        rows.setdefault((cell.gpu, row_key(cell)), {})[cell.arm, cell.over] = cell
    return rows


def _missing(cells: Cells, manifest: Manifest) -> list[GateFinding]:
    why = "the run ended before this row was measured" if manifest.finished is None else "it has no result"
    return [
        GateFinding(kind="missing", row=key, gpu=manifest.device.name, reason=why) for key in cells.missing
    ]


def _finding(kind: str, gpu: str, key: str, arm: str, reason: str) -> GateFinding:
    return GateFinding.model_validate(
        {"kind": kind, "row": key, "gpu": gpu, "arm": arm, "reason": " ".join(reason.split())}
    )


def _too_many_unclear(unclear: int, compared: int) -> list[GateFinding]:
    """A finding where more than :data:`MANY_UNCLEAR` of the rows say nothing, unless they are few."""
    few = unclear <= FEW_UNCLEAR and unclear < compared
    if few or unclear <= MANY_UNCLEAR * compared:
        return []
    rows = f"{unclear} of {compared} row{'' if compared == 1 else 's'}"
    reason = (
        f"{rows} {'is' if unclear == 1 else 'are'} unclear and could hide the slowdown sought, which is too "
        f"many (over {100 * MANY_UNCLEAR:g} %): measure again with a larger preset, or on a device at rest"
    )
    return [_whole_run(reason)]


def _whole_run(reason: str) -> GateFinding:
    return GateFinding(kind="unmeasured", row="", reason=reason)


def _sorted(findings: Iterable[GateFinding]) -> tuple[GateFinding, ...]:
    """What turns the gate red first, the slowest row on top; each kind in the order of the run."""
    order = ("slower", "inaccurate", "bits", "missing", "unmeasured")
    return tuple(sorted(findings, key=lambda f: (order.index(f.kind), f.ratio or 0.0)))


def _version(manifest: Manifest) -> str:
    """The previous version in words."""
    ref, commit = manifest.previous.get("ref", ""), manifest.previous.get("commit", "")[:12]
    if not ref and not commit:
        return "no previous version"
    return ref if not commit or commit.startswith(ref) or ref.startswith(commit) else f"{ref} ({commit})"


def _repeat(manifest: Manifest, path: str) -> str:
    """What to type to have the flagged rows measured again; a merged run cannot be gone on with."""
    if not manifest.merged:
        return f"have it done: cake-bench gate --resume {path}"
    sources = ", ".join(line.split(",")[0] for line in manifest.merged)
    return (
        f"a merged run cannot be: cake-bench gate --resume those it was made of ({sources}), then merge again"
    )


def _notes(cells: Cells, manifest: Manifest) -> list[str]:
    """What a reader must know beside the verdict, none of which turns it red."""
    notes = []
    if manifest.control_run:
        notes.append("a control run: the working tree's cake stands in the previous version's place")
    if manifest.dirty:
        notes.append("the working tree has changes that are not committed")
    if words := other_rule(manifest):
        notes.append(f"judged by the rule recorded with the run, not by this version's: {words}")
    unknown = sum(cell.bits_unknown for cell in cells.cells)
    if unknown:
        rows = f"{unknown} row{'' if unknown == 1 else 's'}"
        notes.append(f"output bits differ on {rows}, and it is not known whether the program changed there")
    for flag in dict.fromkeys(flag for cell in cells.cells for flag in cell.flags):
        count = len({(c.gpu, row_key(c)) for c in cells.cells if flag in c.flags})
        notes.append(f"flag {flag} on {count} row{'' if count == 1 else 's'}")
    failed = [
        c
        for c in cells.cells
        if c.arm not in (SOTA, CONTROL) and not c.arm.startswith(CAKE) and c.status in ("error", "inaccurate")
    ]
    for arm in dict.fromkeys(c.arm for c in failed):
        mine = [c for c in failed if c.arm == arm]
        rows = f"{len(mine)} row{'' if len(mine) == 1 else 's'}"
        notes.append(f"{arm} is {mine[0].status} on {rows}, which decides nothing here")
    faster = [c for c in cells.cells if c.first_verdict == "faster" and c.again is None]
    if faster:
        rows = f"{len(faster)} row{'' if len(faster) == 1 else 's'}"
        notes.append(f"{rows} flagged faster, not measured again")
    return notes


def _across_notes(base: Manifest, new: Manifest, effect: float) -> list[str]:
    notes = [
        "two runs: compared through the library calls that both timed, not pair by pair; so only a "
        f"difference of more than {100 * effect:g} % counts, no row is measured again, and output bits are "
        "not compared; cake-bench gate --previous REF is the sharper gate"
    ]
    pairs = [("node", base.node, new.node), ("device", base.device.name, new.device.name)]
    pairs += [("preset", base.preset, new.preset), ("timer", base.timer.name, new.timer.name)]
    names = dict.fromkeys((*base.versions, *new.versions))
    pairs += [(n, base.versions.get(n, "unknown"), new.versions.get(n, "unknown")) for n in names]
    rules = dict.fromkeys((*base.judgement, *new.judgement))
    pairs += [(n, f"{base.judgement.get(n)}", f"{new.judgement.get(n)}") for n in rules]
    different = [f"{name} {was} and {now}" for name, was, now in pairs if was != now]
    return [*notes, *([f"the runs differ in {', '.join(different)}"] if different else [])]
