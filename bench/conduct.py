"""One row's work: prepare the arms, gate their accuracy, time them in rotated groups, gate them again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pandas as pd
import torch

from baselines.emulation import judge
from bench import accuracy
from bench.accuracy import References
from bench.arms import SEQUENCE, Arm, Prepared
from bench.bits import digest
from bench.capture import capture
from bench.groups import time_groups
from bench.model import (
    SAMPLE_COLUMNS,
    Accuracy,
    ArmFacts,
    CallFacts,
    RowFacts,
)
from bench.schedule import position_counts
from bench.suites import Row
from bench.tensors import Tensors, shape_of
from bench.timers import Timer
from bench.work import Bench, Work, guard


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
        guard(bench, row, work, partial(_prepare, bench, row, tensors, refs, work))
    _judge_emulated(bench, works)
    timed = [w for w in works if w.alive]
    preset = bench.preset.within(next((w.us for w in timed if w.us is not None), None))
    timing = time_groups(replace(bench, preset=preset), row, timed, progress)
    for work in works:
        if work.alive:
            guard(bench, row, work, partial(_check_again, bench, row, tensors, refs, work))
    samples = [s for w in works for s in w.samples]
    facts = RowFacts.model_validate(
        {
            "key": row.key,
            "suite": row.suite,
            "op": row.op,
            "mode": row.mode,
            **shape_of(row),
            "seed": row.seed,
            "arms": tuple(_facts(row, w) for w in works),
            "positions": position_counts(timing.orders),
            "clocks": tuple(timing.clocks),
            "repeated_groups": timing.repeated,
            "slow_host_groups": len(timing.slow_host),
            "started": started.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - begin, 3),
        }
    )
    return facts, pd.DataFrame(samples, columns=list(SAMPLE_COLUMNS))


def _prepare(bench: Bench, row: Row, tensors: Tensors, refs: References, work: Work) -> None:
    accuracy.poison(row, tensors)
    work.prepared = work.arm.bind(row, tensors)
    work.launches = [work.prepared.run]
    if row.mode == "graph":
        work.launches = [capture(work.prepared.run).replay]
        work.another = partial(_instance, row, tensors, work.arm)
        work.instances = bench.preset.instances
    work.before = _errors(bench, row, tensors, refs, work.launches)
    if work.hashed:
        work.bits = _bits(row, tensors)
    if missed := accuracy.failure(work.before, accuracy.budget_of(row, bench.budget)):
        work.fail("inaccurate", missed)
        return
    if work.prepared.deterministic is not None:
        _call_deterministic(bench, row, tensors, work, work.prepared.deterministic)
    if bench.timer is not None:
        work.kernels, work.us = _seen(bench.timer, bench, work.launches[0])


def _instance(row: Row, tensors: Tensors, arm: Arm) -> Callable[[], None]:
    """One more instance of an arm in graph mode: prepared, loaded and captured anew.

    Where an instance's code, workspace and graph lie in memory moves its time for its whole life: on an H200
    the same program, loaded 8 times, scatters by 0.1 to 0.3 % where an op is one kernel and by 0.3 to 0.7 %
    (at most 1.3 %) where it is several. No number of steps averages that out, and a control that shares the
    code cannot show it; so every group has its own. In eager mode cake's programs are loaded anew for every
    visit instead.
    """
    replay: Callable[[], None] = capture(arm.bind(row, tensors).run).replay
    return replay


def _errors(
    bench: Bench, row: Row, tensors: Tensors, refs: References, launches: Sequence[Callable[[], None]]
) -> Accuracy:
    """Run every instance of an arm once: its worst errors. The outputs are then the last one's.

    An instance whose outputs equal those measured last is as good as they are, and is not measured again.
    """
    found: list[Accuracy] = []
    measured: list[torch.Tensor] = []
    outputs = [tensors.output(kind) for kind in dict.fromkeys(row.gemms)]
    for launch in launches:
        accuracy.poison(row, tensors)
        launch()
        bench.synchronize()
        if measured and all(map(torch.equal, outputs, measured)):
            continue
        measured = [out.clone() for out in outputs]
        found.append(accuracy.measure(row, tensors, refs, accuracy.budget_of(row, bench.budget)))
    return accuracy.worst(found)


def _seen(timer: Timer, bench: Bench, launch: Callable[[], None]) -> tuple[tuple[str, ...], float | None]:
    """The kernel names of one op, as the timer sees them (every timed step must show them again), and about
    how long it takes.
    """
    if timer.name == "cpu":  # it sees no kernels, and a step of a large op takes a while
        return (), None
    seen = timer.visit(launch, cold=bench.cold, untimed=1, steps=3)
    good = next((step for step in seen if not step.void), None)
    # Without a known sequence no later step could be found to differ from it.
    if good is None and timer.name == "cupti":
        raise RuntimeError(f"the op's kernels were not seen: {seen[0].void}")
    return (good.kernels, good.us) if good else ((), None)


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


def _check_again(bench: Bench, row: Row, tensors: Tensors, refs: References, work: Work) -> None:
    work.after = _errors(bench, row, tensors, refs, work.launches)
    if work.arm.kind == "cake":
        work.bits_after = _bits(row, tensors)
    if missed := accuracy.failure(work.after, accuracy.budget_of(row, bench.budget)):
        work.fail("inaccurate", f"after timing: {missed}")


def _bits(row: Row, tensors: Tensors) -> str:
    """The bits of the op's outputs, in the order of its GEMMs."""
    return digest(tensors.output(kind) for kind in dict.fromkeys(row.gemms))


def _call_deterministic(
    bench: Bench, row: Row, tensors: Tensors, work: Work, bind: Callable[[], Prepared]
) -> None:
    """Keep the bits of one deterministic call, and what made them. That it fails is not the arm's failure:
    there are no bits then.
    """
    accuracy.poison(row, tensors)
    try:
        det = bind()
        det.run()
    except Exception:
        bench.synchronize()  # raises where the context went with it
        return
    bench.synchronize()
    work.det, work.det_bits = det, _bits(row, tensors)


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
        det_program=work.det.program if work.det else None,
        det_partition=work.det.partition if work.det else None,
        det_program_digest=work.det.digest if work.det else None,
        bits_after=work.bits_after,
        slow_visits=work.slow_visits,
        voided=sum(s.us is None for s in work.samples),
    )
