"""Several runs of one suite, on several GPUs or in several processes, made one run directory.

A merged row holds the groups of all its runs, one block a run (:class:`bench.model.Block`), so that cells and
report are made as those of any run: medians over GPUs, intervals resampled on two levels. Of a library arm
only the runs with its faster cuBLAS version are kept; of an arm that fails on some of its runs, cake's has
failed and a library's or user's goes on with the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.accuracy import worst
from bench.arms import CAKE, CAKE_DET, CAKE_PREV
from bench.cells import cublas_version
from bench.model import Accuracy, ArmFacts, Block, Manifest, RowFacts
from bench.statistics import Sampling, median_us
from bench.store import RunDir, StoreError, create_run, open_run, sample_arrays

#: Of the statuses of a cake arm on several runs, the one that stands.
_WORST = ("inaccurate", "error", "unsupported", "fell-back", "ok")


class MergeRefused(ValueError):
    """The runs are not of one thing; the message says what differs and what to do."""


@dataclass(frozen=True)
class _Part:
    """One run's share of a row."""

    number: int
    manifest: Manifest
    facts: RowFacts
    samples: pd.DataFrame

    def arm(self, name: str) -> ArmFacts | None:
        """The facts of an arm, where the row has it."""
        return next((a for a in self.facts.arms if a.arm == name), None)


def merge(paths: Sequence[Path], out: Path, command: str) -> RunDir:
    """Merge runs into a new run directory, which has no cells yet.

    Raises :class:`MergeRefused` where the runs do not belong together, and :class:`bench.store.StoreError`
    where one cannot be read (its schema is another version's) or ``out`` cannot be written.
    """
    runs = [open_run(path) for path in paths]
    manifests = [run.manifest() for run in runs]
    _check(manifests)
    done = [run.finished() for run in runs]
    again = [run.finished(again=True) for run in runs]
    merged = create_run(out)
    notes = dict[str, list[str]]()
    rows = tuple(dict.fromkeys(key for m in manifests for key in m.rows))
    for key in rows:
        for repeated, have in ((False, done), (True, again)):
            parts = [
                _Part(i, m, run.row(key, repeated), run.samples(key, repeated))
                for i, (run, m) in enumerate(zip(runs, manifests, strict=True), 1)
                if key in have[i - 1]
            ]
            if parts:
                merged.write_row(*_merged_row(parts, notes), again=repeated)
    measured = {key: [i for i, have in enumerate(done, 1) if key in have] for key in rows}
    for key, numbers in measured.items():
        if 0 < len(numbers) < len(runs):
            notes.setdefault(f"measured in run {_numbers(numbers)} alone", []).append(key)
    finished = all(measured.values())
    merged.write_json("host.json", _host(runs))
    merged.write_manifest(_manifest(manifests, rows, finished, command, _said(notes), done))
    return merged


def _check(manifests: Sequence[Manifest]) -> None:
    """Refuse runs that are not of the same code, suite, kind of measurement and GPU model."""
    if len(manifests) < 2:
        raise MergeRefused("one run alone cannot be merged; give two or more run directories")

    def facts(m: Manifest) -> dict[str, object]:
        return {
            "suite": m.suite,
            "GPU model": (m.device.name, m.device.arch, m.device.sms),
            "commit": m.git.get("commit", "not recorded"),
            "cake's files": m.cake_digest[:12] or "not recorded",
            "previous version": m.previous.get("commit", "none"),
            "control run": m.control_run,
            "timer": m.timer.name,
            "form": m.form,
            "L2": m.l2_state,
            "pause before a step in ms": m.pause_ms,
            "workspace": m.workspace_bytes,
            "accuracy budget": m.budget,
            "judgement": m.judgement,
            "instances in graph mode": m.instances,
            "groups at most": m.at_most * m.groups,
            "seconds for more groups": m.row_seconds,
        }

    first = facts(manifests[0])
    for number, m in enumerate(manifests[1:], 2):
        other = facts(m)
        wrong = [f"{name} is {first[name]} and {other[name]}" for name in first if first[name] != other[name]]
        if wrong:
            raise MergeRefused(
                f"runs 1 and {number} cannot be merged: {'; '.join(wrong)}; cake-bench compare shows them "
                "side by side"
            )
    refuse_twice(manifests)
    for number, m in enumerate(manifests, 1):
        if m.merged:
            raise MergeRefused(f"run {number} ({m.run}) is a merged one; give the runs that it was made of")


def refuse_twice(manifests: Sequence[Manifest]) -> None:
    """Raise :class:`MergeRefused` where two of the runs are one, maybe copied elsewhere."""
    seen = dict[tuple[str, ...], int]()
    for number, m in enumerate(manifests, 1):
        same = seen.setdefault((m.run, m.node, m.device.uuid, m.started, *m.merged), number)
        if same != number:
            raise MergeRefused(f"runs {same} and {number} are the same run ({m.run}); give each once")


def _merged_row(parts: Sequence[_Part], notes: dict[str, list[str]]) -> tuple[RowFacts, pd.DataFrame]:
    names = list(dict.fromkeys(a.arm for p in parts for a in p.facts.arms))
    used = {name: _used(name, parts, notes) for name in names}
    frames, blocks, clocks, first = [], [], [], 0
    for p in parts:
        wanted = [name for name in names if p in used[name]]
        kept = p.samples[p.samples["arm"].isin(wanted)]
        groups = int(kept["group"].max()) + 1 if len(kept) else 0
        frames.append(kept.assign(group=kept["group"] + first))
        m = p.manifest
        blocks.append(
            Block(
                run=f"run {p.number}",
                node=m.node,
                gpu=m.device.uuid or m.device.name,
                cublas=cublas_version(m),
                layout=m.layout,
                groups=groups,
            )
        )
        clocks += [c.model_copy(update={"group": c.group + first}) for c in p.facts.clocks]
        first += groups
    positions = {
        name: tuple(
            sum(counts)
            for counts in zip_longest(*(p.facts.positions.get(name, ()) for p in parts), fillvalue=0)
        )
        for name in dict.fromkeys(name for p in parts for name in p.facts.positions)
    }
    facts = parts[0].facts.model_copy(
        update={
            "arms": tuple(_merged_arm(name, parts, used[name]) for name in names),
            "positions": positions,
            "clocks": tuple(clocks),
            "repeated_groups": sum(p.facts.repeated_groups for p in parts),
            "slow_host_groups": sum(p.facts.slow_host_groups for p in parts),
            "started": min(p.facts.started for p in parts),
            "seconds": round(sum(p.facts.seconds for p in parts), 3),
            "blocks": tuple(blocks),
        }
    )
    return facts, pd.concat(frames, ignore_index=True)


def _used(name: str, parts: Sequence[_Part], notes: dict[str, list[str]]) -> list[_Part]:
    """The runs whose samples of an arm make its cell; none where it has no time."""
    having = [(p, arm) for p in parts if (arm := p.arm(name))]
    good = [p for p, arm in having if arm.status == "ok"]
    for p, arm in having:
        if good and arm.status != "ok":
            why = f"`{name}` is {arm.status} in run {p.number}: {arm.reason}"
            notes.setdefault(why, []).append(p.facts.key)
    if having[0][1].kind == "cake":
        return good if len(good) == len(having) else []
    versions = dict[str, list[_Part]]()
    for p in good:
        versions.setdefault(cublas_version(p.manifest) if having[0][1].kind == "library" else "", []).append(
            p
        )
    if len(versions) < 2:
        return good
    speed = {version: us for version, of in versions.items() if (us := _median(name, of)) is not None}
    if not speed:
        return good
    best = min(speed, key=lambda version: speed[version])
    notes.setdefault(f"`{name}` is faster with cuBLAS {best}", []).append(parts[0].facts.key)
    return versions[best]


def _median(name: str, parts: Sequence[_Part]) -> float | None:
    """The median of the runs' medians."""
    found = []
    for p in parts:
        samples = sample_arrays(p.samples).get(name)
        us = None if samples is None else median_us(samples, Sampling(p.manifest.form))
        found += [] if us is None else [us]
    return float(np.median(found)) if found else None


def _merged_arm(name: str, parts: Sequence[_Part], used: Sequence[_Part]) -> ArmFacts:
    having = [(p, arm) for p in parts if (arm := p.arm(name))]
    if not used:
        number, worst = min(
            ((p.number, arm) for p, arm in having), key=lambda found: _WORST.index(found[1].status)
        )
        if worst.status != "ok":
            return worst.model_copy(update={"reason": f"run {number}: {worst.reason or worst.status}"})
    arms = [arm for p, arm in having if p in used] or [arm for _, arm in having]
    before, after = arms[0].bits, arms[0].bits_after
    for arm in arms:
        if arm.bits and arm.bits_after and arm.bits != arm.bits_after:
            before, after = arm.bits, arm.bits_after
        elif name == CAKE_DET and arm.bits and arm.bits != before:
            after = arm.bits  # deterministic, hence the same on every GPU and in every process
    return arms[0].model_copy(
        update={
            "flags": tuple(dict.fromkeys(flag for arm in arms for flag in arm.flags)),
            "accuracy_before": _worst(arm.accuracy_before for arm in arms),
            "accuracy_after": _worst(arm.accuracy_after for arm in arms),
            "bits": before,
            "bits_after": after,
            "det_bits": _det_bits(name, parts) or arms[0].det_bits,
            "voided": sum(arm.voided for arm in arms),
            "slow_visits": sum(arm.slow_visits for arm in arms),
        }
    )


def _det_bits(name: str, parts: Sequence[_Part]) -> str | None:
    """An arm's deterministic bits from the run where the two versions of cake differ, else from the first."""
    both = [(p, new, old) for p in parts if (new := p.arm(CAKE)) and (old := p.arm(CAKE_PREV))]
    lead = next((p for p, new, old in both if new.det_bits != old.det_bits), parts[0])
    arm = lead.arm(name)
    return arm.det_bits if arm else None


def _worst(found: Iterable[Accuracy | None]) -> Accuracy | None:
    known = [a for a in found if a]
    return worst(known) if known else None


def _host(runs: Sequence[RunDir]) -> dict[str, Any]:
    """Host times: per row and arm the median over runs."""
    found = dict[tuple[str, str], list[float]]()
    seconds = 0.0
    for run in runs:
        data = run.read_json("host.json") or {}
        try:
            seconds += float(data.get("seconds", 0.0))
            for entry in data.get("times", ()):
                found.setdefault((entry["row"], entry["arm"]), []).append(float(entry["us"]))
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise StoreError(f"{run.path / 'host.json'} is damaged ({e!r}); delete it") from e
    times = [{"row": row, "arm": arm, "us": float(np.median(us))} for (row, arm), us in found.items()]
    return {"seconds": round(seconds, 1), "times": times, "problems": []}


def _manifest(
    manifests: Sequence[Manifest],
    rows: tuple[str, ...],
    finished: bool,
    command: str,
    notes: Sequence[str],
    done: Sequence[set[str]],
) -> Manifest:
    first = manifests[0]
    ends = [m.finished for m in manifests if m.finished]
    ticks = [m.timer.tick_us for m in manifests if m.timer.tick_us]
    dropped = sum(m.timer.dropped_records for m in manifests)
    odd = sum(m.timer.odd_correlations for m in manifests)
    dirtied = next((m for m in manifests if m.dirty), first)
    return first.model_copy(
        update={
            "run": f"{first.suite}-merged-{len(manifests)}-runs",
            "command": command,
            "preset": _joined(m.preset for m in manifests),
            "started": min(m.started for m in manifests),
            "finished": max(ends) if finished and ends else None,
            "seconds": sum(m.seconds or 0.0 for m in manifests) if finished and ends else None,
            "node": _joined(m.node for m in manifests),
            "versions": _mapping([m.versions for m in manifests]),
            "libraries": _mapping([m.libraries for m in manifests]),
            "environment": _mapping([m.environment for m in manifests]),
            "git": dirtied.git,
            "rows": rows,
            "arms": tuple(dict.fromkeys(arm for m in manifests for arm in m.arms)),
            "timer": first.timer.model_copy(
                update={
                    "tick_us": max(ticks, default=None),
                    "dropped_records": dropped,
                    "odd_correlations": odd,
                }
            ),
            "l2": next((m.l2 for m in manifests if m.l2 is None or not m.l2.proven), first.l2),
            "flags": tuple(dict.fromkeys(flag for m in manifests for flag in m.flags)),
            "notes": (*dict.fromkeys(note for m in manifests for note in m.notes), *notes),
            "layout": _joined(m.layout for m in manifests),
            "merged": tuple(
                _line(i, m, len(have)) for i, (m, have) in enumerate(zip(manifests, done, strict=True), 1)
            ),
        }
    )


def _line(number: int, m: Manifest, rows: int) -> str:
    version = cublas_version(m)
    parts = [f"run {number}: {m.run}", m.node, m.device.uuid or m.device.name]
    parts += [f"cuBLAS {version}"] * bool(version) + [m.layout, f"{rows} of {len(m.rows)} rows"]
    return ", ".join([*parts, f"started {m.started}", f"`{m.command}`"])


def _said(notes: dict[str, list[str]]) -> list[str]:
    """Each note with the rows that it is of."""
    shown = []
    for note, keys in notes.items():
        rows = list(dict.fromkeys(keys))
        named = ", ".join(rows) if len(rows) <= 3 else f"{len(rows)} rows"
        shown.append(f"{note} ({named})")
    return shown


def _mapping(found: Sequence[dict[str, str]]) -> dict[str, str]:
    """Entries of all runs; one that differs shows every value."""
    names = dict.fromkeys(name for entries in found for name in entries)
    return {name: " / ".join(dict.fromkeys(e.get(name, "none") for e in found)) for name in names}


def _joined(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def _numbers(values: Sequence[int]) -> str:
    return " and ".join(map(str, values))
