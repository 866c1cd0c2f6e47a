"""CUPTI activity records: the GPU's own begin and end stamps of every kernel, copy and fill of an op.

Callbacks are registered once per process and tracing stays on until it ends: callbacks registered again
corrupt records, and modules loaded before tracing are missed. Only GPU activities are traced, no API calls,
since each traced call makes the host slower between an op's kernels.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from baselines.provenance import only_mapped
from bench.model import TimerFacts
from bench.timers import StepTime, TimerUnavailable, gpu_device
from bench.timers.attribution import Activity, attribute, is_mark
from bench.timers.records import Buffers, layouts
from bench.timers.tick import estimate_tick

#: Cycles of the delay kernel of the cross-check: 200 us at 2 GHz, ten times what a launch from Python takes.
DELAY_CYCLES = 400_000
#: Bytes of the cross-check's tensor: read and written in about 120 us at 4.3 TB/s, so that the few us which
#: events add are small.
CHECK_BYTES = 256 << 20
CHECK_REPEATS = 15
#: ``CUPTI_ACTIVITY_FLAG_FLUSH_FORCED``, which cupti-python's enum leaves out.
_FLUSH_FORCED = 1
#: Spin kernels of 0 to 16,000 cycles (8 us), to see the tick of the stamps.
TICK_CYCLES = range(0, 16_000, 53)


class CuptiTimer:
    """Times ops by CUPTI's records on one CUDA device; see :mod:`bench.timers.attribution` for how steps are
    told apart.

    Raises :class:`~bench.timers.TimerUnavailable` where CUPTI is not installed, another profiler is attached,
    or no records arrive. ``odd_correlations`` counts graph nodes whose correlation id was wrong (placed by
    their sequence).
    """

    name = "cupti"

    def __init__(self, device: torch.device | str) -> None:
        self._device = gpu_device(self.name, device)
        self._session = _session()
        self._dropped_before = self._session.dropped
        self._tick_us: float | None = None
        self._check: tuple[float, float] | None = None
        self.odd_correlations = 0
        self._measure_tick()

    def facts(self) -> TimerFacts:
        """The tick measured when the timer was made, records dropped until now, and the cross-check if it was
        made.
        """
        check_us, check_events_us = self._check or (None, None)
        return TimerFacts(
            name="cupti",
            tick_us=self._tick_us,
            dropped_records=self._session.dropped - self._dropped_before,
            odd_correlations=self.odd_correlations,
            check_us=check_us,
            check_events_us=check_events_us,
        )

    def visit(
        self,
        launch: Callable[[], None],
        *,
        cold: Callable[[], None],
        untimed: int,
        steps: int,
        expected: tuple[str, ...] | None = None,
    ) -> list[StepTime]:
        """As :meth:`bench.timers.Timer.visit`."""
        total = untimed + steps
        mark, synchronize, now = torch.cuda._sleep, torch.cuda.synchronize, time.perf_counter_ns
        with torch.cuda.device(self._device):
            synchronize()
            self._session.discard()
            collecting = gc.isenabled()
            gc.disable()  # a collection between two kernels of an eager op would be inside its interval
            host = []
            try:
                for _ in range(total):
                    begin = now()
                    mark(1)
                    cold()
                    pace = now() - begin
                    synchronize()
                    begin = now()
                    launch()
                    host.append((now() - begin, pace))
                    synchronize()
            finally:
                if collecting:
                    gc.enable()
            activities = self._session.collect(total)
        found = attribute(activities, total, expected)
        self.odd_correlations += found.odd
        timed = list(zip(found.steps, host, strict=True))[untimed:]
        return [replace(step, host_us=ns / 1e3, pace_us=pace / 1e3) for step, (ns, pace) in timed]

    def cross_check(self, launch: Callable[[], None] | None = None) -> TimerFacts:
        """Time one launch by CUPTI and by events that wait behind a delay kernel, and keep both for
        :meth:`facts`.

        ``launch`` is one kernel of 50 us or more; by default a sweep over a tensor of 256 MB. The same
        launches are timed by both. Returns :meth:`facts`; raises ``RuntimeError`` where CUPTI saw none of
        them.
        """
        with torch.cuda.device(self._device):
            if launch is None:
                launch = _sweep(self._device)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            launch()
            torch.cuda.synchronize()
            self._session.discard()
            by_events = []
            for _ in range(CHECK_REPEATS):
                torch.cuda._sleep(DELAY_CYCLES)  # the delay is the step's mark too
                begin.record()
                launch()
                end.record()
                torch.cuda.synchronize()
                by_events.append(begin.elapsed_time(end) * 1e3)
            found = attribute(self._session.collect(CHECK_REPEATS), CHECK_REPEATS)
        by_cupti = [s.us for s in found.steps if s.us is not None]
        if not by_cupti:
            raise RuntimeError(f"CUPTI cross-check: no step has a time ({found.steps[0].void})")
        self._check = statistics.median(by_cupti), statistics.median(by_events)
        return self.facts()

    def close(self) -> None:
        """Deliver what is left. Tracing stays on, as it must, until the process ends."""
        self._session.discard()

    def _measure_tick(self) -> None:
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            self._session.discard()
            for cycles in TICK_CYCLES:
                torch.cuda._sleep(cycles)
            torch.cuda.synchronize()
            activities = self._session.collect(len(TICK_CYCLES))
        durations = [a.end - a.start for a in activities if is_mark(a.name) and 0 < a.start < a.end]
        if not durations:
            raise TimerUnavailable(
                f"CUPTI is on but delivered no kernel times ({len(activities)} records for "
                f"{len(TICK_CYCLES)} launches): a profiler or a debugger may hold the GPU; "
                "detach it, or use --timer events or --timer host"
            )
        tick = estimate_tick(durations)
        self._tick_us = None if tick is None else tick / 1e3


class _Session:
    """CUPTI's state, one a process: what was registered, and the records delivered since they were last asked
    for.
    """

    def __init__(self, cupti: Any, library: Callable[[], Any]) -> None:
        self._cupti = cupti
        self._kinds = (
            cupti.ActivityKind.CONCURRENT_KERNEL,
            cupti.ActivityKind.MEMCPY,
            cupti.ActivityKind.MEMSET,
        )
        self._delivered: deque[Activity] = deque()
        self._failure: BaseException | None = None
        self._dropped = ctypes.c_size_t()
        self.dropped = 0
        self._subscriber = self._subscribe()
        try:
            # What reading raises must not reach CUPTI, so it waits for collect().
            self._buffers = Buffers(library(), layouts(cupti), self._delivered.append, self._failed)
            self._buffers.register()
            for kind in self._kinds:
                cupti.activity_enable(kind)
        except cupti.cuptiError as e:
            raise TimerUnavailable(_explain(cupti, e)) from e
        atexit.register(self._end)

    def discard(self) -> None:
        """Forget every record up to now."""
        self._cupti.activity_flush_all(0)
        self._delivered.clear()

    def collect(self, marks: int) -> list[Activity]:
        """The records since :meth:`discard`, of launches that are done; ``marks`` of them are marks.

        A plain flush hands over complete buffers; where it holds back records that are wanted, a forced one
        follows.
        """
        self._cupti.activity_flush_all(0)
        if sum(is_mark(a.name) for a in list(self._delivered)) < marks:
            self._cupti.activity_flush_all(_FLUSH_FORCED)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise RuntimeError(f"reading CUPTI's records failed: {failure!r}") from failure
        self._cupti.activity_get_num_dropped_records(0, 0, ctypes.addressof(self._dropped))
        self.dropped += self._dropped.value
        self._dropped.value = 0
        records = list(self._delivered)
        self._delivered.clear()
        return records

    def _failed(self, failure: BaseException) -> None:
        self._failure = failure

    def _subscribe(self) -> int | None:
        """Take the one subscriber's place, so that a profiler that holds it is found out, and none can come
        later.
        """
        cupti = self._cupti
        parameters = self._parameters = cupti.SubscriberParams()  # kept: CUPTI may read the name later
        parameters.struct_size = cupti.SUBSCRIBER_PARAMS_SIZE
        parameters.subscriber_name = "cake-bench"
        try:
            return int(cupti.subscribe_v2(_ignore, None, parameters.ptr))
        except cupti.cuptiError as e:
            if _status(e) == int(cupti.Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED):
                other = getattr(parameters, "old_subscriber_name", None)
                raise TimerUnavailable(
                    f"another profiler is attached to CUPTI{f' ({other})' if other else ''}: "
                    "it would change the times; run without nsys, ncu or torch.profiler, "
                    "or use --timer events"
                ) from e
            raise TimerUnavailable(_explain(cupti, e)) from e

    def _end(self) -> None:
        # CUPTI would deliver what is left when the interpreter is gone, and call back into it.
        try:
            self._cupti.activity_flush_all(_FLUSH_FORCED)
            for kind in self._kinds:
                self._cupti.activity_disable(kind)
        except self._cupti.cuptiError:
            pass


_the_session: _Session | None = None


def _session() -> _Session:
    global _the_session
    if _the_session is None:
        try:
            from cupti import cupti
        except ImportError as e:
            raise TimerUnavailable(
                f"timer cupti needs cupti-python ({e}); install it with "
                "pip install 'cupti-python>=13.0,<13.1', or use --timer events"
            ) from e
        try:
            _the_session = _Session(cupti, _library)
        except RuntimeError as e:  # cupti-python's own NotSupportedError: no driver, or no libcupti
            raise TimerUnavailable(f"CUPTI cannot be used: {e}; use --timer events or --timer host") from e
    return _the_session


def _library() -> ctypes.CDLL:
    """The CUPTI that cupti-python has loaded."""
    path = only_mapped("libcupti.so")
    if not path:
        raise RuntimeError("cupti-python is there, but no libcupti.so is mapped into this process")
    return ctypes.CDLL(path)


def _sweep(device: torch.device) -> Callable[[], None]:
    swept = torch.ones(CHECK_BYTES // 4, device=device)

    def launch() -> None:
        swept.mul_(1.0)

    return launch


def _ignore(userdata: Any, domain: int, callback_id: int, data: Any) -> None:
    """The subscription's callback: no domain is enabled, so it is never called."""


def _status(error: Any) -> int:
    return int(getattr(error, "status", -1))


def _explain(cupti: Any, error: Any) -> str:
    status = _status(error)
    known = {
        int(
            cupti.Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
        ): "another profiler is attached; run without it",
        int(cupti.Result.ERROR_INSUFFICIENT_PRIVILEGES): (
            "this user may not trace the GPU; run as root, "
            "or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
        ),
        int(cupti.Result.ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED): "CUPTI does not work on this virtual GPU",
        int(cupti.Result.ERROR_MIG_DEVICE_NOT_SUPPORTED): "CUPTI does not work on this MIG slice",
        int(cupti.Result.ERROR_HARDWARE_BUSY): "another process profiles this GPU; wait until it is done",
    }
    what = known.get(status, "see the CUPTI documentation for this code")
    return f"CUPTI cannot trace: {error} ({what}); or use --timer events or --timer host"
