"""A run's set-up: what the user asked for, device, timer, cold L2, libraries and arms, and the manifest."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import torch

import baselines
import cake
from baselines.gemm import Library
from bench import environment
from bench.accuracy import BUDGETS, budget_of
from bench.arms import Arm, cake_arms, library_arms, load_arms
from bench.clocks import Clocks, hard_slowdown, power_capped
from bench.l2 import L2
from bench.layers import LAYERS, DenseShape, dense_shapes
from bench.model import Flag, L2Proof, Manifest, Picks, TimerFacts
from bench.presets import Preset, in_passes, left_out, preset_for
from bench.previous import Version, load_copy, load_previous, package_digest, without_routes
from bench.statistics import JUDGEMENT
from bench.suites import MODES, SUITE_OPS, SUITES, AnyShape, Row, load_shapes, rows_of
from bench.timers import TIMERS, Timer, check_note, default_timer, make_timer
from bench.work import Bench

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
    form: str | None = None
    passes: int | None = None
    warm_l2: bool = False
    previous: str | None = None
    control_run: bool = False
    #: Of the dense suite: layers by name, numbers of tokens, dtypes of outputs.
    layers: tuple[str, ...] | None = None
    tokens: tuple[int, ...] | None = None
    outs: tuple[str, ...] | None = None
    #: How long the device idles before each step.
    pause_ms: float | None = None
    #: A tuner's candidates of a row, at most.
    most: int | None = None
    #: Patterns of row keys, as the shell has them.
    keys: tuple[str, ...] | None = None
    #: Makes the arms of the rows that are measured instead of all others; then there are no libraries and no
    #: host times.
    only: Callable[[Bench, Sequence[Row]], Sequence[Arm]] | None = None


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
    l2_state: Literal["cold", "warm"] = "cold"
    previous: Version | None = None
    control_run: bool = False
    only: tuple[Arm, ...] = ()
    pause_ms: float = 0.0

    @property
    def suite(self) -> str:
        """The suite of the rows."""
        return self.rows[0].suite

    def arms(self, picks: Picks) -> list[Arm]:
        """All arms, in print order; library arms take the calls of ``picks``."""
        if self.only:
            return list(self.only)
        own = cake_arms(self.previous.module if self.previous else None)
        arms = [*own, *library_arms(self.libraries, picks), *self.user_arms]
        return arms if self.suite == "router" else [arm for arm in arms if any(map(arm.does, self.rows))]

    def close(self) -> None:
        """Let go of the timer."""
        if self.bench.timer:
            self.bench.timer.close()


def open_session(options: Options, before: Manifest | None) -> Session:
    """Set everything up, in the order that METHOD needs: environment, timer, libraries, L2 and its proof.

    ``before`` is the manifest of a run to go on with. Raises what :func:`bench.run.conduct` names.
    """
    if before and before.merged:
        raise RunRefused(
            f"{options.resume} is a merged run: --resume one of the runs that it was made of, and merge again"
        )
    device = choose_device(options, before)
    flags = environment.check_environment(device)
    preset, rows = choose_rows(options, before, device.type)
    control_run = options.control_run or bool(before and before.control_run)
    previous = _previous(options, before, control_run)
    # Before anything is loaded onto the GPU: CUPTI misses modules that were there before it.
    timer = _timer(options, before, device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if previous:
        without_routes(device, cake, previous.module)
    # Before the first torch.mm: torch reads its workspace size once.
    libraries = [] if options.only else baselines.libraries(device.type, WORKSPACE_BYTES, rows[0].suite)
    own = cake_arms(previous.module if previous else None)
    names = [arm.name for arm in (*own, *library_arms(libraries, Picks()))]
    user_arms = load_arms(options.arms_file, names) if options.arms_file else []
    l2 = L2(device)
    warm = options.warm_l2 or (before is not None and before.l2_state == "warm")
    proof = l2.prove(timer) if timer and not warm else None
    if proof is None or not proof.proven:
        flags = (*flags, "warm")
    clocks = Clocks(device)
    pause_ms = options.pause_ms if options.pause_ms is not None else before.pause_ms if before else 0.0
    bench = Bench(
        device=device,
        capability=torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0),
        timer=timer,
        cold=_after_idle(_nothing if warm else l2.flush, pause_ms),
        clocks=clocks,
        slowed=hard_slowdown,
        capped=power_capped,
        preset=preset,
    )
    notes = [clocks.note] if clocks.note else []
    return Session(
        bench,
        rows,
        libraries,
        user_arms,
        proof,
        flags,
        notes,
        "warm" if warm else "cold",
        previous,
        control_run,
        tuple(options.only(bench, rows)) if options.only else (),
        pause_ms,
    )


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


def _formed(preset: Preset, options: Options, before: Manifest | None) -> Preset:
    """The preset in the form asked for, else in that of the resumed run."""
    asked = "passes" if options.passes is not None else preset.form
    form = options.form or (before.form if before else asked)
    if form not in ("groups", "passes"):
        raise RunRefused(f"form is {form!r}; needs groups or passes")
    if form == "groups" and options.passes is not None:
        raise RunRefused(f"--passes {options.passes} is for --form passes; leave one of them out")
    if form == preset.form and options.passes is None:
        return preset
    return in_passes(preset, options.passes) if form == "passes" else replace(preset, form="groups")


def choose_rows(options: Options, before: Manifest | None, device: str) -> tuple[Preset, list[Row]]:
    """The preset and the rows to measure: as asked for, else as the resumed run has them."""
    suite = options.suite or (before.suite if before else "router")
    if suite not in SUITES:
        raise RunRefused(f"suite {suite!r} is unknown; suites are {', '.join(SUITES)}")
    if before and suite != before.suite:
        raise RunRefused(
            f"{options.resume} is of suite {before.suite}; leave --suite {suite} out, or start a new run"
        )
    default = before.preset if before else "quick" if device == "cpu" else "full"
    preset = _formed(preset_for(options.preset or default, device, suite), options, before)
    if before and options.preset in (None, before.preset):
        preset = replace(preset, groups=before.groups, steps=before.steps, untimed=before.untimed)
    chosen = (
        options.shapes_file,
        options.ops,
        options.modes,
        options.preset,
        options.keys,
        options.layers,
        options.tokens,
        options.outs,
    )
    if before and all(choice is None for choice in chosen):
        return preset, [Row.from_key(key) for key in before.rows]
    shapes = _shapes(options, preset, suite)
    ops, modes, outs = options.ops or preset.ops, options.modes or preset.modes, options.outs or preset.outs
    for given, known, word in (
        (ops, SUITE_OPS[suite], "op"),
        (modes, MODES, "mode"),
        (outs, preset.outs if suite == "router" else tuple(BUDGETS), "output dtype"),
    ):
        for name in given:
            if name not in known:
                raise RunRefused(f"{word} {name!r} is unknown; {word}s are {', '.join(known)}")
    if device == "cpu" and "graph" in modes:
        raise RunRefused("mode graph needs a GPU: a CPU has no graphs to capture; use --modes eager")
    rows = rows_of(shapes, *(tuple(dict.fromkeys(names)) for names in (ops, modes, outs)))
    if not rows:
        raise RunRefused("no rows: fwd has no FP32 outputs; add --ops dgrad,wgrad or --outs bf16")
    if options.keys:
        chosen_rows = [row for row in rows if any(fnmatchcase(row.key, p) for p in options.keys)]
        if not chosen_rows:
            raise RunRefused(
                f"no row of preset {preset.name} is called {' or '.join(options.keys)}; its "
                f"{len(rows)} rows are {_some(rows)}"
            )
        rows = chosen_rows
    return preset, rows


def _shapes(options: Options, preset: Preset, suite: str) -> Sequence[AnyShape]:
    """The shapes asked for, else the preset's; layers and tokens are the dense suite's."""
    if suite == "router":
        if options.layers or options.tokens:
            raise RunRefused("--layers and --tokens are for --suite dense; name router shapes with --shapes")
        return load_shapes(options.shapes_file) if options.shapes_file else preset.shapes
    if options.shapes_file:
        if options.layers or options.tokens:
            raise RunRefused("--shapes names layers and tokens itself: leave --layers and --tokens out")
        return load_shapes(options.shapes_file, suite)
    if not options.layers and not options.tokens:
        return preset.shapes
    shapes = [s for s in preset.shapes if isinstance(s, DenseShape)]
    layers = options.layers or tuple(dict.fromkeys(s.layer.name for s in shapes))
    if unknown := [name for name in layers if name not in LAYERS]:
        raise RunRefused(f"layer {unknown[0]!r} is unknown; layers are {', '.join(LAYERS)}")
    return dense_shapes(dict.fromkeys(layers), dict.fromkeys(options.tokens or [s.T for s in shapes]))


def _some(rows: Sequence[Row]) -> str:
    """The keys of the first rows, as an example."""
    return ", ".join(row.key for row in rows[:3]) + ", ..." * (len(rows) > 3)


def make_manifest(options: Options, session: Session) -> Manifest:
    """The manifest of a run that starts now."""
    bench = session.bench
    facts = _timer_facts(bench.timer)
    now = datetime.now(UTC)
    return Manifest(
        run=f"{session.suite}-{now:%Y%m%d-%H%M%S}",
        command=options.command,
        suite=session.suite,
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
        at_most=bench.preset.at_most,
        row_seconds=bench.preset.row_seconds,
        instances=(bench.preset.instances or 0) if bench.timer else 1,
        reloads=bench.timer is not None,
        # Counted when the run ends.
        timer=facts.model_copy(update={"dropped_records": 0, "odd_correlations": 0}),
        l2=session.proof,
        flags=session.flags,
        notes=tuple(_notes(session, facts)),
        workspace_bytes=WORKSPACE_BYTES,
        budget=budget_of(session.rows[0]),
        pause_ms=session.pause_ms,
        most=options.most,
        form=bench.preset.form,
        l2_state=session.l2_state,
        previous=session.previous.facts if session.previous else {},
        control_run=session.control_run,
        judgement=JUDGEMENT.as_dict(),
        cake_digest=package_digest(),
    )


def default_directory(manifest: Manifest) -> Path:
    """``runs/<suite>-<device>-<timestamp>``."""
    words = "".join(c if c.isalnum() else " " for c in manifest.device.name.lower()).split()
    named = "-".join(word for word in words if word not in ("nvidia", "gpu"))
    slug = "cpu" if manifest.device.arch == "cpu" else named
    return Path("runs") / f"{manifest.suite}-{slug}-{datetime.fromisoformat(manifest.started):%Y%m%d-%H%M%S}"


def _previous(options: Options, before: Manifest | None, control_run: bool) -> Version | None:
    """The version of cake to put beside the working tree's: as asked for, else the resumed run's."""
    if options.previous is not None and control_run:
        raise RunRefused(
            "a control run puts this version of cake in the previous one's place: leave --previous out"
        )
    if control_run:
        return load_copy()
    if options.previous is not None:
        return load_previous(options.previous)
    if before is None or not before.previous:
        return None
    # By its commit: the ref may have moved since.
    return replace(load_previous(before.previous["commit"]), ref=before.previous["ref"])


def _after_idle(cold: Callable[[], None], pause_ms: float) -> Callable[[], None]:
    """``cold``, behind a time in which the device has nothing to do."""

    def paused() -> None:
        time.sleep(pause_ms * 1e-3)
        cold()

    return paused if pause_ms else cold


def _nothing() -> None:
    """Before a step of the warm view: the L2 stays as the step before left it."""


def _timer(options: Options, before: Manifest | None, device: torch.device) -> Timer | None:
    """The run's timer; ``None`` for a run of host times alone."""
    name = options.timer or (before.timer.name if before else default_timer(device))
    if name not in (*TIMERS, "host"):
        raise RunRefused(f"timer is {name!r}; needs one of {', '.join((*TIMERS, 'host'))}")
    if name == "host" and device.type == "cpu":
        raise RunRefused(
            "timer host needs a CUDA device: on a CPU a call's latency is its host time; use --timer cpu"
        )
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


def _routes_note(device: torch.device) -> list[str]:
    """That cake's plans are not all the shipped rules', where it is so."""
    try:
        routes = cake.routes(device)
    except ValueError:  # a device that cake does not support: its arms say so
        return []
    count = f"{len(routes.rules)} route{'s' * (len(routes.rules) != 1)}"
    where = routes.source or "this process"
    said = f"deterministic=False follows {count} of this device, from {where} (docs/tuning.md)"
    return [said] if routes.rules else []


def _notes(session: Session, timer: TimerFacts) -> list[str]:
    """What a reader of the run must know: rows left out, and what could not be had here."""
    notes = [*left_out(session.rows), *session.notes]
    preset = session.bench.preset
    if preset.visit_us is not None and preset.steps > 1 and session.bench.device.type != "cpu":
        notes.append(
            f"{preset.steps} timed steps a visit, but no more than fit into {preset.visit_us / 1e3:g} ms, "
            "and at least one"
        )
    if not session.only:
        notes += _routes_note(session.bench.device)
    if note := check_note(timer):
        notes.append(note)
    proof = session.proof
    if session.bench.device.type == "cpu":
        notes.append("no GPU: cake's CPU executor is a reference for checking, not a rival; caches are warm")
    elif session.l2_state == "warm":
        notes.append(
            "a warm view, as asked by --warm-l2: no flush between steps; every cell is labelled warm"
        )
    elif proof is None:
        notes.append("cold L2 is not proven, since no timer ran; every cell is labelled warm")
    elif not proof.proven:
        notes.append(
            f"the flush did not prove cold: probe {proof.cold_us:.1f} us cold, {proof.warm_us:.1f} us warm, "
            f"expected a factor of {proof.expected_ratio:.2f}; every cell is labelled warm"
        )
    return notes
