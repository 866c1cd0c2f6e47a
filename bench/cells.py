"""Samples and facts to cells: what reports, gate and other programs read. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.arms import CAKE, CAKE_DET, CONTROL
from bench.model import ArmFacts, CallFacts, Cell, Cells, Manifest, RowFacts
from bench.statistics import JUDGEMENT, Array, Judgement, control_range, median_us, paired_ratio, verdict

SOTA = "sota"
Samples = Mapping[str, Array]
#: Host time per call in us, by (row key, arm).
HostTimes = Mapping[tuple[str, str], float]


def make_cells(
    manifest: Manifest,
    rows: Sequence[tuple[RowFacts, Samples]],
    host: HostTimes | None = None,
    judgement: Judgement = JUDGEMENT,
) -> Cells:
    """All cells of a run, rows in the manifest's order; rows that are not finished are listed as missing."""
    cells = [
        cell
        for facts, samples in rows
        for cell in _row_cells(manifest, facts, samples, host or {}, judgement)
    ]
    done = {facts.key for facts, _ in rows}
    return Cells(
        cells=tuple(_with_control(cells)), missing=tuple(key for key in manifest.rows if key not in done)
    )


def describe(calls: Iterable[CallFacts]) -> str:
    """The calls of an arm in words, one a GEMM: ``dgrad: cublasSgemm + wgrad: cublasLtMatmul[...]``."""
    parts = [f"{c.kind}: {c.function}" + (f"[{c.algorithm}]" if c.algorithm else "") for c in calls]
    return " + ".join(parts)


def _row_cells(
    manifest: Manifest, facts: RowFacts, samples: Samples, host: HostTimes, judgement: Judgement
) -> list[Cell]:
    cells = [_arm_cell(manifest, facts, arm, samples, host, CAKE, judgement) for arm in facts.arms]
    libraries = [arm for arm in facts.arms if arm.kind == "library"]
    times = {arm.arm: us for arm in libraries if (us := _us(arm, samples)) is not None}
    for over in (CAKE, CAKE_DET):
        if not libraries or not any(arm.arm == over for arm in facts.arms):
            continue
        if times:
            best = next(arm for arm in libraries if arm.arm == min(times, key=lambda name: times[name]))
            cell = _arm_cell(manifest, facts, best, samples, host, over, judgement)
            cells.append(cell.model_copy(update={"arm": SOTA, "call": f"{best.arm}: {cell.call}"}))
        else:
            reasons = "; ".join(f"{arm.arm} {arm.status}: {arm.reason or 'no time'}" for arm in libraries)
            cell = _arm_cell(manifest, facts, libraries[0], {}, {}, over, judgement)
            cells.append(
                cell.model_copy(
                    update={
                        "arm": SOTA,
                        "call": "",
                        "status": "unsupported"
                        if all(a.status == "unsupported" for a in libraries)
                        else "error",
                        "reason": f"no library call has a time ({reasons})",
                    }
                )
            )
    return cells


def _us(arm: ArmFacts, samples: Samples) -> float | None:
    return median_us(samples[arm.arm]) if arm.status == "ok" and arm.arm in samples else None


def _arm_cell(
    manifest: Manifest,
    facts: RowFacts,
    arm: ArmFacts,
    samples: Samples,
    host: HostTimes,
    over: str,
    judgement: Judgement,
) -> Cell:
    us = _us(arm, samples)
    accuracy = arm.accuracy_after or arm.accuracy_before
    fields: dict[str, Any] = {}
    reason = arm.reason
    base = next((a for a in facts.arms if a.arm == over), None)
    if us is None and arm.status == "ok":
        reason = reason or f"timer {manifest.timer.name} measures no intervals"
    if arm.arm != over and us is not None:
        over_us = _us(base, samples) if base else None
        ratio = None
        if over_us is not None:
            ratio = paired_ratio(samples[arm.arm], samples[over], f"{facts.key}/{arm.arm}/{over}", judgement)
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
    return Cell(
        gpu=manifest.device.name,
        arch=manifest.device.arch,
        sms=manifest.device.sms,
        node=manifest.node,
        devices=1,
        suite=facts.suite,
        op=facts.op,
        mode=facts.mode,
        T=facts.T,
        H=facts.H,
        N=facts.N,
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
        bits_equal=arm.bits == arm.bits_after if arm.bits and arm.bits_after else None,
        cublas=_cublas(manifest),
        layout=manifest.layout,
        **fields,
    )


def _cublas(manifest: Manifest) -> str:
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
