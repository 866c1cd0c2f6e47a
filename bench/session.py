"""A run's set-up: what the user asked for, device, timer, cold L2, libraries and arms, and the manifest."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

import baselines
from baselines.gemm import Library
from bench import environment
from bench.accuracy import BUDGET
from bench.arms import Arm, cake_arms, library_arms, load_arms
from bench.clocks import Clocks, hard_slowdown, power_capped
from bench.conduct import Bench
from bench.l2 import L2
from bench.model import Flag, L2Proof, Manifest, Picks, TimerFacts
from bench.presets import Preset, left_out, preset_for
from bench.statistics import JUDGEMENT
from bench.suites import MODES, OPS, Row, Shape, load_shapes, router_rows
from bench.timers import TIMERS, Timer, check_note, default_timer, make_timer

#: The workspace of every library arm: what cuBLAS itself takes on Hopper and Blackwell.
WORKSPACE_BYTES = 32 << 20


class RunRefused(Exception):
    """The run as asked for cannot be made; the message says why and what to do."""


@dataclass(frozen=True)
class Options:
    """What the user asked for. ``None`` means not given: the preset's, the device's or the resumed run's
    choice holds.
    """

    command: str = "cake-bench run"
    suite: str | None = None
    preset: str | None = None
    device: str | None = None
    timer: str | None = None
    out: Path | None = None
    resume: Path | None = None
    arms_file: Path | None = None
    shapes_file: Path | None = None
    ops: tuple[str, ...] | None = None
    modes: tuple[str, ...] | None = None


@dataclass
class Session:
    """The parts of a run that live while it runs."""

    bench: Bench
    rows: list[Row]
    libraries: list[Library]
    user_arms: list[Arm]
    proof: L2Proof | None
    flags: tuple[Flag, ...]
    notes: list[str] = field(default_factory=list)

    def arms(self, picks: Picks) -> list[Arm]:
        """All arms, in print order; library arms take the calls of ``picks``."""
        return [*cake_arms(), *library_arms(self.libraries, picks), *self.user_arms]

    def close(self) -> None:
        """Let go of the timer."""
        if self.bench.timer:
            self.bench.timer.close()


def open_session(options: Options, before: Manifest | None) -> Session:
    """Set everything up, in the order that METHOD needs: environment, timer, libraries, L2 and its proof.

    ``before`` is the manifest of a run to go on with. Raises what :func:`bench.run.conduct` names.
    """
    device = choose_device(options, before)
    flags = environment.check_environment(device)
    preset, rows = choose_rows(options, before, device.type)
    # Before anything is loaded onto the GPU: CUPTI misses modules that were there before it.
    timer = _timer(options, before, device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Before the first torch.mm: torch reads its workspace size once.
    libraries = baselines.libraries(device.type, WORKSPACE_BYTES)
    names = [arm.name for arm in (*cake_arms(), *library_arms(libraries, Picks()))]
    user_arms = load_arms(options.arms_file, names) if options.arms_file else []
    l2 = L2(device)
    proof = l2.prove(timer) if timer else None
    if proof is None or not proof.proven:
        flags = (*flags, "warm")
    clocks = Clocks(device)
    bench = Bench(
        device=device,
        capability=torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0),
        timer=timer,
        cold=l2.flush,
        clocks=clocks,
        slowed=hard_slowdown,
        capped=power_capped,
        preset=preset,
    )
    notes = [clocks.note] if clocks.note else []
    return Session(bench, rows, libraries, user_arms, proof, flags, notes)


def choose_device(options: Options, before: Manifest | None) -> torch.device:
    """The device asked for, else that of the resumed run, else the GPU where there is one."""
    name = options.device
    if name is None and before is not None:
        name = "cpu" if before.device.arch == "cpu" else "cuda"
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise RunRefused(f"device is {name!r}; needs cpu, cuda or cuda:<index>")
    device = torch.device(name)
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise RunRefused(
            f"device {name} was asked for, but torch finds no usable GPU; "
            "check nvidia-smi, or use --device cpu"
        )
    index = device.index or 0
    if index >= torch.cuda.device_count():
        raise RunRefused(f"device {name} was asked for, but there are {torch.cuda.device_count()} GPUs")
    return torch.device("cuda", index)


def choose_rows(options: Options, before: Manifest | None, device: str) -> tuple[Preset, list[Row]]:
    """The preset and the rows to measure: as asked for, else as the resumed run has them."""
    if options.suite not in (None, "router"):
        raise RunRefused(f"suite {options.suite!r} is unknown; suites are router")
    default = before.preset if before else "quick" if device == "cpu" else "full"
    preset = preset_for(options.preset or default, device)
    if before and options.preset in (None, before.preset):
        preset = replace(preset, groups=before.groups, steps=before.steps, untimed=before.untimed)
    chosen = (options.shapes_file, options.ops, options.modes, options.preset)
    if before and all(choice is None for choice in chosen):
        return preset, [Row.from_key(key) for key in before.rows]
    shapes: Sequence[Shape] = load_shapes(options.shapes_file) if options.shapes_file else preset.shapes
    ops, modes = options.ops or preset.ops, options.modes or preset.modes
    for given, known, word in ((ops, tuple(OPS), "op"), (modes, MODES, "mode")):
        for name in given:
            if name not in known:
                raise RunRefused(f"{word} {name!r} is unknown; {word}s are {', '.join(known)}")
    if device == "cpu" and "graph" in modes:
        raise RunRefused("mode graph needs a GPU: a CPU has no graphs to capture; use --modes eager")
    unique = [tuple(dict.fromkeys(names)) for names in (ops, modes)]
    return preset, router_rows(dict.fromkeys(shapes), *unique)


def make_manifest(options: Options, session: Session) -> Manifest:
    """The manifest of a run that starts now."""
    bench = session.bench
    facts = _timer_facts(bench.timer)
    now = datetime.now(UTC)
    return Manifest(
        run=f"router-{now:%Y%m%d-%H%M%S}",
        command=options.command,
        suite="router",
        preset=bench.preset.name,
        started=now.isoformat(timespec="seconds"),
        node=platform.node(),
        device=environment.describe_device(bench.device),
        versions=environment.versions(),
        environment=environment.environment(),
        git=environment.git_state(),
        rows=tuple(row.key for row in session.rows),
        arms=tuple(arm.name for arm in session.arms(Picks())),
        groups=bench.preset.groups,
        steps=bench.preset.steps,
        untimed=bench.preset.untimed,
        timer=facts.model_copy(update={"dropped_records": 0}),  # counted when the run ends
        l2=session.proof,
        flags=session.flags,
        notes=tuple(_notes(session, facts)),
        workspace_bytes=WORKSPACE_BYTES,
        budget=BUDGET,
        judgement=JUDGEMENT.as_dict(),
    )


def continued(before: Manifest, now: Manifest, path: Path) -> Manifest:
    """The manifest of a run gone on with: the old one, with a note of what changed since.

    Raises :class:`RunRefused` unless what would be measured now belongs into the run begun before.
    """

    def facts(m: Manifest) -> dict[str, object]:
        return {
            "suite": m.suite,
            "preset": m.preset,
            "rows": m.rows,
            "arms": m.arms,
            "device": (m.device.name, m.device.arch, m.device.sms, m.device.uuid),
            "timer": m.timer.name,
            "workspace": m.workspace_bytes,
            "budget": m.budget,
        }

    was, wanted = facts(before), facts(now)
    different = [f"{name} was {was[name]}, now {wanted[name]}" for name in was if was[name] != wanted[name]]
    if different:
        raise RunRefused(
            f"cannot resume {path}: {'; '.join(different)}; "
            f"repeat the run's command ({before.command}), or start a new run"
        )
    old, new = {**before.versions, **before.git}, {**now.versions, **now.git}
    changes = [
        f"{name} {old.get(name, 'unknown')} -> {new.get(name, 'unknown')}"
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]
    note = f"resumed at {now.started}" + (f" with other versions: {', '.join(changes)}" if changes else "")
    flags = tuple(dict.fromkeys((*before.flags, *now.flags)))
    return before.model_copy(update={"notes": (*before.notes, note), "flags": flags})


def default_directory(manifest: Manifest) -> Path:
    """``runs/<suite>-<device>-<timestamp>``."""
    words = "".join(c if c.isalnum() else " " for c in manifest.device.name.lower()).split()
    named = "-".join(word for word in words if word not in ("nvidia", "gpu"))
    slug = "cpu" if manifest.device.arch == "cpu" else named
    return Path("runs") / f"{manifest.suite}-{slug}-{datetime.fromisoformat(manifest.started):%Y%m%d-%H%M%S}"


def _timer(options: Options, before: Manifest | None, device: torch.device) -> Timer | None:
    """The run's timer; ``None`` for a run of host times alone."""
    name = options.timer or (before.timer.name if before else default_timer(device))
    if name not in (*TIMERS, "host"):
        raise RunRefused(f"timer is {name!r}; needs one of {', '.join((*TIMERS, 'host'))}")
    return None if name == "host" else make_timer(name, device)


def _timer_facts(timer: Timer | None) -> TimerFacts:
    """The timer's facts, with the cross-check of those that have one."""
    if timer is None:
        return TimerFacts(name="host")
    cross_check = getattr(timer, "cross_check", None)
    if cross_check is None:
        return timer.facts()
    try:
        facts: TimerFacts = cross_check()
    except RuntimeError as e:
        raise RunRefused(f"{e}; use --timer events or --timer host") from e
    return facts


def _notes(session: Session, timer: TimerFacts) -> list[str]:
    """What a reader of the run must know: rows left out, and what could not be had here."""
    notes = [*left_out(session.rows), *session.notes]
    if note := check_note(timer):
        notes.append(note)
    proof = session.proof
    if session.bench.device.type == "cpu":
        notes.append("no GPU: cake's CPU executor is a reference for checking, not a rival; caches are warm")
    elif proof is None:
        notes.append("cold L2 is not proven, since no timer ran; every cell is labelled warm")
    elif not proof.proven:
        notes.append(
            f"the flush did not prove cold: probe {proof.cold_us:.1f} us cold, {proof.warm_us:.1f} us warm, "
            f"expected a factor of {proof.expected_ratio:.2f}; every cell is labelled warm"
        )
    return notes
