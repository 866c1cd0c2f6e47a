"""One row's work: prepare the arms, gate their accuracy, time them in rotated groups, gate them again."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

import pandas as pd
import torch

from baselines.emulation import judge
from baselines.gemm import Unsupported
from bench import accuracy
from bench.accuracy import References
from bench.arms import SEQUENCE, Arm, Prepared
from bench.capture import capture
from bench.model import SAMPLE_COLUMNS, Accuracy, ArmFacts, CallFacts, ClockReading, Flag, RowFacts, Status
from bench.presets import Preset
from bench.schedule import passes, position_counts, rotation
from bench.suites import Row, Tensors
from bench.timers import Timer

#: How many times an arm is prepared and captured in graph mode; the instances take turns from group to group.
#: Where an instance's code, workspace and graph lie in memory moves its time for its whole life: on an H200
#: the same program, loaded 8 times, scatters by 0.1 to 0.3 % where an op is one kernel and by 0.3 to 0.7 %
#: (at most 1.3 %) where it is several. No number of steps averages that out, and a control that shares the
#: code cannot show it. In eager mode cake's programs are loaded anew for every visit instead.
INSTANCES = 5
#: Share of a row's steps that may be void before the arm's reason says so.
VOIDED_SHARE = 0.05
#: How often a group is measured again because the GPU slowed down for heat or a hardware reason.
REPEATS = 2


class ContextLost(Exception):
    """The CUDA context died: no arm can run any more in this process. The message names the arm and row."""


class ClockReader(Protocol):
    """What a row needs of :mod:`bench.clocks`."""

    def read(self, group: int) -> ClockReading | None:
        """Clocks and throttle reasons now."""


@dataclass(frozen=True)
class Bench:
    """What every row of a run shares. ``timer`` is ``None`` in a run without interval times."""

    device: torch.device
    capability: tuple[int, int]
    timer: Timer | None
    cold: Callable[[], None]
    clocks: ClockReader
    slowed: Callable[[ClockReading], bool]
    capped: Callable[[ClockReading], bool]
    preset: Preset
    budget: float = accuracy.BUDGET


@dataclass
class Work:
    """An arm while its row is measured."""

    arm: Arm
    status: Status = "ok"
    reason: str = ""
    prepared: Prepared | None = None
    #: Its instances, each of which does the op.
    launches: list[Callable[[], None]] = field(default_factory=list)
    kernels: tuple[str, ...] = ()
    before: Accuracy | None = None
    after: Accuracy | None = None
    bits: str | None = None
    bits_after: str | None = None
    det_bits: str | None = None
    #: Whether the bits of its outputs are wanted: those of cake's arms, of emulated ones and their native
    #: calls.
    hashed: bool = False
    flags: list[Flag] = field(default_factory=list)
    samples: list[tuple[str, int, int, int, float | None, str]] = field(default_factory=list)

    def fail(self, status: Status, reason: str) -> None:
        """Give up on the arm: it keeps its reason, and nothing more is run of it."""
        self.status, self.reason, self.launches = status, reason, []

    @property
    def alive(self) -> bool:
        """Whether the arm is still measured."""
        return self.status == "ok"


def measure_row(
    bench: Bench,
    row: Row,
    tensors: Tensors,
    refs: References,
    arms: Sequence[Arm],
    progress: Callable[[float], None] = lambda part: None,
) -> tuple[RowFacts, pd.DataFrame]:
    """Measure all arms on a row. ``progress`` is told parts of the row done, adding up to 1.

    An arm that fails ends with a status and a reason; the others go on. Raises :class:`ContextLost` if none
    can.
    """
    started, begin = datetime.now(UTC), time.monotonic()
    compared = {name for arm in arms if arm.native for name in (arm.name, arm.native)}
    works = [Work(arm, hashed=arm.kind == "cake" or arm.name in compared) for arm in arms if arm.does(row)]
    for work in works:
        _guard(bench, row, work, partial(_prepare, bench, row, tensors, refs, work))
    _judge_emulated(bench, works)
    timed = [w for w in works if w.alive]
    orders, readings, repeated = _time_groups(bench, row, timed, progress)
    for work in works:
        if work.alive:
            _guard(bench, row, work, partial(_check_again, bench, row, tensors, refs, work))
    samples = [s for w in works for s in w.samples]
    facts = RowFacts(
        key=row.key,
        suite=row.suite,
        op=row.op,
        mode=row.mode,
        T=row.shape.T,
        H=row.shape.H,
        N=row.shape.N,
        seed=row.seed,
        arms=tuple(_facts(row, w) for w in works),
        positions=position_counts(orders),
        clocks=tuple(readings),
        repeated_groups=repeated,
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - begin, 3),
    )
    return facts, pd.DataFrame(samples, columns=list(SAMPLE_COLUMNS))


def _guard(bench: Bench, row: Row, work: Work, step: Callable[[], None]) -> None:
    """Run a step of an arm; whatever an arm raises is the arm's failure, unless the context went with it."""
    try:
        step()
    except Unsupported as e:
        work.fail("unsupported", str(e))
    except Exception as e:
        work.fail("error", f"{type(e).__name__}: {e}")
        try:
            _synchronize(bench)
        except Exception as gone:
            raise ContextLost(
                f"arm {work.arm.name} on {row.key} broke the CUDA context ({type(e).__name__}: {e}); "
                "finished rows are kept; if it does so again, start a new run without the arm"
            ) from gone


def _prepare(bench: Bench, row: Row, tensors: Tensors, refs: References, work: Work) -> None:
    accuracy.poison(row, tensors)
    work.prepared = work.arm.bind(row, tensors)
    launches = [work.prepared.run]
    if row.mode == "graph":
        instances = min(INSTANCES, bench.preset.groups) if bench.timer else 1
        again = (work.arm.bind(row, tensors) for _ in range(instances - 1))
        launches = [capture(prepared.run).replay for prepared in (work.prepared, *again)]
        accuracy.poison(row, tensors)
    launches[0]()
    _synchronize(bench)
    work.before = accuracy.measure(row, tensors, refs, bench.budget)
    if work.hashed:
        work.bits = _bits(row, tensors)
    if missed := accuracy.failure(work.before, bench.budget):
        work.fail("inaccurate", missed)
        return
    work.launches = launches
    if work.prepared.deterministic is not None:
        work.det_bits = _deterministic_bits(bench, row, tensors, work.prepared.deterministic)
    if bench.timer is not None:
        work.kernels = _kernels_of(bench.timer, bench, launches[0])


def _kernels_of(timer: Timer, bench: Bench, launch: Callable[[], None]) -> tuple[str, ...]:
    """The kernel names of one op, as the timer sees them: every timed step must show them again."""
    if timer.name == "cpu":  # it sees no kernels, and a step of a large op takes a while
        return ()
    seen = timer.visit(launch, cold=bench.cold, untimed=1, steps=3)
    good = next((step for step in seen if not step.void), None)
    # Without a known sequence no later step could be found to differ from it.
    if good is None and timer.name == "cupti":
        raise RuntimeError(f"the op's kernels were not seen: {seen[0].void}")
    return good.kernels if good else ()


def _judge_emulated(bench: Bench, works: Sequence[Work]) -> None:
    """An emulated arm that is the native call in disguise is no second rival: it ends as ``fell-back``, not
    timed.
    """
    by_name = {w.arm.name: w for w in works}
    # Of all native calls: a searched emulated call may fall back onto another algorithm than its native one.
    natives = [w for w in works if w.arm.kind == "library" and not w.arm.native and w.arm.name != SEQUENCE]
    kernels = {name for w in natives for name in w.kernels}
    for work in works:
        native = by_name.get(work.arm.native or "")
        if native is None or not work.alive:
            continue
        equal = work.bits is not None and any(work.bits == w.bits for w in natives)
        status, reason = judge(
            bench.capability, work.kernels, kernels.union(native.kernels) if native.kernels else (), equal
        )
        if status != "ok":
            work.fail(status, reason)


def _time_groups(
    bench: Bench, row: Row, works: Sequence[Work], progress: Callable[[float], None]
) -> tuple[list[tuple[str, ...]], list[ClockReading], int]:
    """All groups of a row: the orders they ran in, the clock readings around them, and how many were
    repeated.
    """
    if bench.timer is None or not works:
        progress(1.0)
        return [], [], 0
    by_name = {w.arm.name: w for w in works}
    ordered = passes if bench.preset.form == "passes" else rotation
    orders = ordered(list(by_name), bench.preset.groups)
    readings: list[ClockReading] = []
    repeated = 0
    for group, order in enumerate(orders):
        for attempt in range(REPEATS + 1):
            around, samples = _one_group(bench, bench.timer, row, group, order, by_name)
            readings += around  # those of a repeated group too: they are why it was
            slow = any(bench.slowed(r) for r in around)
            if not slow or attempt == REPEATS:
                break
            repeated += 1
        for name, steps in samples.items():
            work = by_name[name]
            work.samples += steps
            if slow:
                _flag(work, "thermal")
            if any(bench.capped(r) for r in around):
                _flag(work, "power-cap")
        progress(1 / len(orders))
    for work in works:
        _check_samples(work)
    return orders, readings, repeated


def _one_group(
    bench: Bench, timer: Timer, row: Row, group: int, order: Sequence[str], works: dict[str, Work]
) -> tuple[list[ClockReading], dict[str, list[Any]]]:
    readings = [bench.clocks.read(group)]
    samples: dict[str, list[Any]] = {}
    for position, name in enumerate(order):
        work = works[name]
        if not work.alive:
            continue
        steps = samples.get(name, [])  # of the way there, on a pass's way back

        def visit(work: Work = work, steps: list[Any] = steps, position: int = position) -> None:
            if work.prepared and work.prepared.reload:
                work.prepared.reload()
            times = timer.visit(
                work.launches[group % len(work.launches)],
                cold=bench.cold,
                untimed=bench.preset.untimed,
                steps=bench.preset.steps,
                expected=work.kernels or None,
            )
            first = len(steps)
            steps += [
                (work.arm.name, group, position, step, t.us, t.void) for step, t in enumerate(times, first)
            ]

        _guard(bench, row, work, visit)
        if work.alive:
            samples[name] = steps
    readings.append(bench.clocks.read(group))
    return [r for r in readings if r is not None], samples


def _check_samples(work: Work) -> None:
    if not work.alive:
        return
    if all(us is None for *_, us, _ in work.samples):
        reason, count = Counter(void for *_, void in work.samples).most_common(1)[0]
        work.fail("error", f"none of {len(work.samples)} steps has a time; {count} because: {reason}")
        return
    voids = Counter(void for *_, us, void in work.samples if us is None)
    if voids.total() > VOIDED_SHARE * len(work.samples):
        reason, count = voids.most_common(1)[0]
        work.reason = (
            f"{voids.total()} of {len(work.samples)} steps are void, {count} of them because: {reason}"
        )


def _check_again(bench: Bench, row: Row, tensors: Tensors, refs: References, work: Work) -> None:
    accuracy.poison(row, tensors)
    work.launches[-1]()  # the instance that was not seen before
    _synchronize(bench)
    work.after = accuracy.measure(row, tensors, refs, bench.budget)
    if work.arm.kind == "cake":
        work.bits_after = _bits(row, tensors)
    if missed := accuracy.failure(work.after, bench.budget):
        work.fail("inaccurate", f"after timing: {missed}")


def _bits(row: Row, tensors: Tensors) -> str:
    """SHA-256 over the op's outputs, in the order of its GEMMs."""
    digest = hashlib.sha256()
    for kind in dict.fromkeys(row.gemms):
        digest.update(tensors.output(kind).cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _deterministic_bits(bench: Bench, row: Row, tensors: Tensors, call: Callable[[], None]) -> str | None:
    """The bits of one deterministic call; ``None`` where it fails, which is not the arm's own failure."""
    accuracy.poison(row, tensors)
    try:
        call()
    except Exception:
        _synchronize(bench)  # raises where the context went with it
        return None
    _synchronize(bench)
    return _bits(row, tensors)


def _facts(row: Row, work: Work) -> ArmFacts:
    calls = work.prepared.calls if work.prepared else ()
    return ArmFacts(
        arm=work.arm.name,
        kind=work.arm.kind,
        status=work.status,
        reason=work.reason,
        flags=tuple(work.flags),
        calls=tuple(
            CallFacts(
                kind=kind,
                library=call.library,
                function=call.function,
                version=call.version,
                path=call.path,
                algorithm=call.algorithm,
                # A sequence's kernels are known as a whole only; a single GEMM's are its call's.
                kernels=work.kernels if len(calls) == 1 else call.kernels,
            )
            for kind, call in zip(row.gemms, calls, strict=False)
        ),
        kernels=work.kernels,
        accuracy_before=work.before,
        accuracy_after=work.after,
        program=work.prepared.program if work.prepared else None,
        partition=work.prepared.partition if work.prepared else None,
        program_digest=work.prepared.digest if work.prepared else None,
        bits=work.bits if work.arm.kind == "cake" else None,
        det_bits=work.det_bits,
        bits_after=work.bits_after,
        voided=sum(us is None for *_, us, _ in work.samples),
    )


def _flag(work: Work, flag: Flag) -> None:
    if flag not in work.flags:
        work.flags.append(flag)


def _synchronize(bench: Bench) -> None:
    if bench.device.type == "cuda":
        torch.cuda.synchronize(bench.device)
