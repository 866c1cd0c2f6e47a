"""Samples and facts to cells: what reports, gate and other programs read. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from bench.arms import CAKE, CAKE_DET, CAKE_FP16X2, CAKE_PREV, CONTROL
from bench.model import Again, ArmFacts, CallFacts, Cell, Cells, Manifest, RowFacts, Status
from bench.statistics import (
    JUDGEMENT,
    Array,
    Judgement,
    Sampling,
    control_range,
    median_us,
    paired_ratio,
    slower_passes,
    verdict,
)

SOTA = "sota"
Samples = Mapping[str, Array]
#: Host time per call in us, by (row key, arm).
HostTimes = Mapping[tuple[str, str], float]
#: A row's facts and samples.
Measured = tuple[RowFacts, Samples]
#: Verdicts against a version of cake that stand only if measuring the row again repeats them.
FLAGS = ("faster", "slower")


def make_cells(
    manifest: Manifest,
    rows: Sequence[tuple[RowFacts, Samples]],
    host: HostTimes | None = None,
    judgement: Judgement = JUDGEMENT,
    again: Mapping[str, Measured] | None = None,
) -> Cells:
    """All cells of a run, rows in the manifest's order; rows that are not finished are listed as missing.

    ``again`` holds the re-measurements of flagged rows, by key.
    """
    repeats = again or {}
    cells = [
        _confirmed(cell, manifest, repeats.get(facts.key), judgement)
        for facts, samples in rows
        for cell in _row_cells(manifest, facts, samples, host or {}, judgement)
    ]
    done = {facts.key for facts, _ in rows}
    return Cells(
        cells=tuple(_with_control(cells)), missing=tuple(key for key in manifest.rows if key not in done)
    )


def flagged(
    manifest: Manifest,
    rows: Iterable[Measured],
    again: Mapping[str, Measured],
    judgement: Judgement = JUDGEMENT,
) -> list[str]:
    """The keys of the rows that are flagged against a version of cake and have no re-measurement yet."""
    keys = []
    for facts, samples in rows:
        cell = _previous_cell(manifest, facts, samples, judgement)
        if cell and cell.verdict in FLAGS:
            repeat = again.get(facts.key)
            confirmed = _confirmed(cell, manifest, repeat, judgement)
            if confirmed.again is None:
                keys.append(facts.key)
    return keys


def _previous_cell(
    manifest: Manifest, facts: RowFacts, samples: Samples, judgement: Judgement
) -> Cell | None:
    arm = next((a for a in facts.arms if a.arm == CAKE_PREV), None)
    return _arm_cell(manifest, facts, arm, samples, {}, CAKE, judgement) if arm else None


def _confirmed(cell: Cell, manifest: Manifest, repeat: Measured | None, judgement: Judgement) -> Cell:
    """A cell of the previous version with what its re-measurement says; any other cell as it is.

    A flag that was not measured again is ``unclear``, and so is one whose repeat is too wide to say; one that
    the repeat contradicts is ``same``.
    """
    first = cell.verdict
    if cell.arm != CAKE_PREV or first is None:
        return cell
    if first not in FLAGS:
        return cell.model_copy(update={"first_verdict": first})
    pending: dict[str, Any] = {"first_verdict": first, "verdict": "unclear"}
    if repeat is None:
        return cell.model_copy(update={**pending, "reason": f"flagged {first}, not measured again"})
    second = _previous_cell(manifest, *repeat, judgement)
    if second is None or second.us is None or second.ratio is None or second.verdict is None:
        why = (second.reason or second.status) if second else f"{CAKE_PREV} was not an arm then"
        reason = f"flagged {first}; measured again without a ratio: {why}"
        return cell.model_copy(update={**pending, "reason": reason})
    made = Again(
        us=second.us,
        over_us=second.us / second.ratio,
        ratio=second.ratio,
        ratio_lo=second.ratio_lo,
        ratio_hi=second.ratio_hi,
        verdict=second.verdict,
    )
    stands = made.verdict if made.verdict in (first, "unclear") else "same"
    return cell.model_copy(update={"first_verdict": first, "verdict": stands, "again": made})


def describe(calls: Iterable[CallFacts]) -> str:
    """The calls of an arm in words, one a GEMM: ``dgrad: cublasSgemm + wgrad: cublasLtMatmul[...]``."""
    parts = [f"{c.kind}: {c.function}" + (f"[{c.algorithm}]" if c.algorithm else "") for c in calls]
    return " + ".join(parts)


def _row_cells(
    manifest: Manifest, facts: RowFacts, samples: Samples, host: HostTimes, judgement: Judgement
) -> list[Cell]:
    cells = [_arm_cell(manifest, facts, arm, samples, host, CAKE, judgement) for arm in facts.arms]
    libraries = [arm for arm in facts.arms if arm.kind == "library"]
    sampling = Sampling(manifest.form, facts.units)
    times = {arm.arm: us for arm in libraries if (us := _us(arm, samples, sampling)) is not None}
    for over in (CAKE, CAKE_DET, CAKE_FP16X2):
        if not libraries or not any(_judged(arm, over) for arm in facts.arms):
            continue
        if times:
            best = next(arm for arm in libraries if arm.arm == min(times, key=lambda name: times[name]))
            cell = _arm_cell(manifest, facts, best, samples, host, over, judgement)
            cells.append(cell.model_copy(update={"arm": SOTA, "call": f"{best.arm}: {cell.call}"}))
        else:
            untimed = f"timer {manifest.timer.name} measures no intervals"
            reasons = "; ".join(f"{arm.arm} {arm.status}: {arm.reason or untimed}" for arm in libraries)
            cell = _arm_cell(manifest, facts, libraries[0], {}, {}, over, judgement)
            cells.append(
                cell.model_copy(
                    update={
                        "arm": SOTA,
                        "call": "",
                        "status": _without_time(libraries),
                        "reason": f"no library call has a time ({reasons})",
                    }
                )
            )
    return cells


def _judged(arm: ArmFacts, over: str) -> bool:
    """Whether it is the arm that the libraries are put over; not where the device has no FP16x2."""
    return arm.arm == over and not (over == CAKE_FP16X2 and arm.status == "unsupported")


def _without_time(libraries: Sequence[ArmFacts]) -> Status:
    """The status of a SOTA without a time: an error only if something failed."""
    found = {arm.status for arm in libraries}
    return "ok" if "ok" in found else "unsupported" if found == {"unsupported"} else "error"


def _us(arm: ArmFacts, samples: Samples, sampling: Sampling) -> float | None:
    return median_us(samples[arm.arm], sampling) if arm.status == "ok" and arm.arm in samples else None


def _arm_cell(
    manifest: Manifest,
    facts: RowFacts,
    arm: ArmFacts,
    samples: Samples,
    host: HostTimes,
    over: str,
    judgement: Judgement,
) -> Cell:
    sampling = Sampling(manifest.form, facts.units)
    us = _us(arm, samples, sampling)
    base = next((a for a in facts.arms if a.arm == over), None)
    cause = _cause(arm, base) if arm.arm == CAKE_PREV and base else ""
    accuracy = arm.accuracy_after or arm.accuracy_before
    fields: dict[str, Any] = {}
    reason = arm.reason
    if us is None and arm.status == "ok":
        reason = reason or f"timer {manifest.timer.name} measures no intervals"
    if arm.arm != over and us is not None:
        over_us = _us(base, samples, sampling) if base else None
        ratio = None
        if over_us is not None:
            key = f"{facts.key}/{arm.arm}/{over}"
            ratio = paired_ratio(samples[arm.arm], samples[over], key, judgement, sampling)
        if ratio is None or over_us is None:
            why = (base.reason or base.status) if base else "not an arm here"
            reason = reason or f"no ratio: {over} has no time ({why})"
        else:
            fields = {
                "ratio": ratio.value,
                "ratio_lo": ratio.lo,
                "ratio_hi": ratio.hi,
                "verdict": verdict(ratio, us, over_us, manifest.timer.tick_us, judgement),
            }
            if manifest.form == "passes":
                slower = slower_passes(samples[arm.arm], samples[over], manifest.timer.tick_us)
                fields["slower_passes"] = slower
    return Cell(
        gpu=manifest.device.name,
        arch=manifest.device.arch,
        sms=manifest.device.sms,
        suite=facts.suite,
        op=facts.op,
        mode=facts.mode,
        T=facts.T,
        H=facts.H,
        N=facts.N,
        layer=facts.layer,
        K=facts.K,
        out=facts.out,
        heads=facts.heads,
        arm=arm.arm,
        call=describe(arm.calls),
        status=arm.status,
        reason=reason,
        flags=tuple(dict.fromkeys((*manifest.flags, *arm.flags))),
        us=us,
        over=over,
        rel_fro=_worst(arm),
        top8_equal=accuracy.top8_equal if accuracy else None,
        host_us=host.get((facts.key, arm.arm)) if arm.status == "ok" else None,
        program=arm.program,
        partition=arm.partition,
        bits_equal=_bits_equal(arm, base),
        changed=_changed(arm, base) if arm.arm == CAKE_PREV and base else (),
        bits_unexplained=cause == "none",
        bits_unknown=cause == "unknown",
        **_ran_on(manifest, facts, samples.get(arm.arm)),
        **fields,
    )


def _bits_equal(arm: ArmFacts, base: ArmFacts | None) -> bool | None:
    """Whether outputs have equal bits: a previous version's with the working tree's, else before and after
    timing; ``None`` where one of them is not known.
    """
    one, other = arm.bits, arm.bits_after
    if arm.arm == CAKE_PREV:
        one, other = arm.det_bits, base.det_bits if base else None
    return one == other if one and other else None


def _changed(previous: ArmFacts, new: ArmFacts) -> tuple[str, ...]:
    """What of a row differs between two versions of cake; what is not known of both counts as equal."""

    def plans(arm: ArmFacts) -> tuple[str, ...] | None:
        texts = tuple(call.algorithm for call in arm.calls)
        return texts if all(texts) else None

    pairs: list[tuple[str, Any, Any]] = [
        ("program", previous.program, new.program),
        ("program", previous.program_digest, new.program_digest),
        ("plan", plans(previous), plans(new)),
        ("partition", previous.partition, new.partition),
        ("bits", previous.det_bits, new.det_bits),
    ]
    return tuple(dict.fromkeys(name for name, one, other in pairs if _differ(one, other)))


def _cause(previous: ArmFacts, new: ArmFacts) -> Literal["", "made otherwise", "none", "unknown"]:
    """Why deterministic bits differ, empty where they do not: the call's program or partition, which decide
    them, are others; ``none``, since both are the same; or one of them is not known.
    """
    if not _differ(previous.det_bits, new.det_bits):
        return ""
    kept = previous.det_program is not None and new.det_program is not None

    def decides(arm: ArmFacts) -> tuple[str | None, str | None, str | None]:
        if kept:
            return arm.det_program, arm.det_program_digest, arm.det_partition
        return arm.program, arm.program_digest, arm.partition  # a run of before the call's were kept

    was, now = decides(previous), decides(new)
    if any(map(_differ, was, now)):
        return "made otherwise"
    # A name alone tells no program from another of that name: its digest must be known.
    return "none" if all((*was, *now)) else "unknown"


def _differ(one: Any, other: Any) -> bool:
    """Whether two known facts differ."""
    return bool(one and other and one != other)


def _ran_on(manifest: Manifest, facts: RowFacts, samples: Array | None) -> dict[str, Any]:
    """Node, number of GPUs, cuBLAS version and layout; in a merged run, of the groups behind the cell."""
    if not facts.blocks:
        return {
            "node": manifest.node,
            "devices": 1,
            "cublas": cublas_version(manifest),
            "layout": manifest.layout,
        }
    blocks, first = [], 0
    for block in facts.blocks:
        if samples is not None and np.isfinite(samples[first : first + block.groups]).any():
            blocks.append(block)
        first += block.groups
    used = blocks or list(facts.blocks)

    def joined(words: Iterable[str]) -> str:
        return ", ".join(dict.fromkeys(word for word in words if word))

    return {
        "node": joined(b.node for b in used),
        "devices": len({(b.node, b.gpu) for b in used}),
        "cublas": joined(b.cublas for b in used),
        "layout": joined(b.layout for b in used),
    }


def cublas_version(manifest: Manifest) -> str:
    """The version of the one cuBLAS that the process had; empty where none was used."""
    found = re.search(r"cuBLAS(?:Lt)? (\d[\d.]*)", " ".join(manifest.libraries.values()))
    return found[1] if found else ""


def _worst(arm: ArmFacts) -> float | None:
    errors = [a.rel_fro for a in (arm.accuracy_before, arm.accuracy_after) if a]
    return max(errors, default=None)


def _with_control(cells: Iterable[Cell]) -> Iterable[Cell]:
    """Every cell with the range of the control ratio over the rows of its GPU, mode and op."""
    cells = list(cells)
    ratios: dict[tuple[str, str, str], list[float | None]] = {}
    for cell in cells:
        if cell.arm == CONTROL:
            ratios.setdefault((cell.gpu, cell.mode, cell.op), []).append(cell.ratio)
    for cell in cells:
        known = control_range(ratios.get((cell.gpu, cell.mode, cell.op), ()))
        yield cell.model_copy(update={"control_lo": known[0], "control_hi": known[1]}) if known else cell
