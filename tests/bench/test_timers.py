"""The timers (bench.timers): on stand-ins for CUPTI and torch.cuda, and on a GPU."""

from __future__ import annotations

import ctypes
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from activity_builders import Recorder

import bench.timers.cupti as cupti_module
import bench.timers.events as events_module
from bench.capture import capture
from bench.model import TimerFacts
from bench.timers import StepTime, TimerUnavailable, check_note, default_timer, make_timer
from bench.timers.attribution import Activity
from bench.timers.cpu import CpuTimer
from bench.timers.events import EventsTimer
from bench.timers.records import MAX_LIMIT_REACHED, layouts, newest_dtype

# --- timers -------------------------------------------------------------------------------------------------


def test_cpu_timer_runs_every_step_in_order() -> None:
    log: list[str] = []
    timer = make_timer("cpu", "cpu")
    steps = timer.visit(lambda: log.append("op"), cold=lambda: log.append("cold"), untimed=2, steps=3)
    assert log == ["cold", "op"] * 5
    assert len(steps) == 3
    assert all((s.us is not None) == (s.void == "") and s.kernels == () for s in steps)
    assert timer.facts().name == "cpu"
    assert timer.facts().tick_us == pytest.approx(1e-3)
    timer.close()


def test_timers_refuse_what_they_cannot_time() -> None:
    with pytest.raises(TimerUnavailable, match="cpu times ops on the CPU, got cuda"):
        CpuTimer("cuda")
    for name in ("cupti", "events"):
        with pytest.raises(TimerUnavailable, match=f"timer {name} needs a CUDA device, got cpu"):
            make_timer(name, "cpu")
    with pytest.raises(ValueError, match="timer is 'stopwatch'; needs one of cupti, events, cpu"):
        make_timer("stopwatch", "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
@pytest.mark.parametrize("name", ["cupti", "events"])
def test_gpu_timers_say_that_there_is_no_gpu(name: str) -> None:
    with pytest.raises(TimerUnavailable, match="needs a GPU"):
        make_timer(name, "cuda")


def test_default_timers() -> None:
    assert default_timer("cuda:1") == "cupti"
    assert default_timer("cpu") == "cpu"


def test_check_note() -> None:
    assert check_note(TimerFacts(name="cupti")) is None
    assert check_note(TimerFacts(name="cupti", check_us=120.0, check_events_us=122.5)) is None
    note = check_note(TimerFacts(name="cupti", check_us=120.0, check_events_us=140.0))
    assert note is not None and "120.00 us by cupti, 140.00 us by events" in note


# --- CUPTI's session, on a stand-in for the cupti module ----------------------------------------------------


class FakeError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


def record_dtype(size: int, **offsets: int) -> np.dtype[np.void]:
    """A record as CUPTI lays it out: kind and stamps in front, the other fields where they are said to be."""
    offsets = {"kind": 0, "start": 16, "end": 24, **offsets}
    formats = {"kind": "<i4", "start": "<u8", "end": "<u8", "name": "<i8"}
    return np.dtype(
        {
            "names": list(offsets),
            "formats": [formats.get(name, "<u4") for name in offsets],
            "offsets": list(offsets.values()),
            "itemsize": size,
        }
    )


class FakeCupti:
    """cupti-python and the library in one. Keeps records until a flush; ``held`` ones need a forced flush."""

    cuptiError = FakeError
    ActivityKind = SimpleNamespace(CONCURRENT_KERNEL=10, KERNEL=3, MEMCPY=1, MEMSET=2)
    Result = SimpleNamespace(
        ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED=39,
        ERROR_INSUFFICIENT_PRIVILEGES=35,
        ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED=40,
        ERROR_MIG_DEVICE_NOT_SUPPORTED=48,
        ERROR_HARDWARE_BUSY=26,
    )
    SUBSCRIBER_PARAMS_SIZE = 32
    activity_kernel9_dtype = np.dtype([("kind", "<i4")])  # an older one, which must not be taken
    activity_kernel10_dtype = record_dtype(216, correlation_id=92, graph_id=156, name=104)
    activity_memcpy6_dtype = record_dtype(96, correlation_id=44, graph_id=72)
    activity_memset4_dtype = record_dtype(88, correlation_id=44, graph_id=72)

    def __init__(self, subscribe_error: int = 0, enable_error: int = 0) -> None:
        self.subscribe_error, self.enable_error = subscribe_error, enable_error
        self.register_status = self.record_status = 0
        self.calls: list[str] = []
        self.pending: list[SimpleNamespace] = []
        self.held: list[SimpleNamespace] = []
        self.names: list[object] = []
        self.drop = 0

    def SubscriberParams(self) -> SimpleNamespace:
        return SimpleNamespace(ptr=1, old_subscriber_name="nsys")

    def subscribe_v2(self, callback: object, userdata: object, params: int) -> int:
        if self.subscribe_error:
            raise FakeError(self.subscribe_error)
        return 7

    # What the library itself exports:

    def cuptiActivityRegisterCallbacks(self, requested: object, completed: object) -> int:
        self.calls.append("register")
        self.requested, self.completed = requested, completed
        return self.register_status

    def cuptiActivityGetNextRecord(self, buffer: object, valid: object, record: object) -> int:
        size = 256
        pointer, end = record._obj, buffer.value + valid.value  # type: ignore[attr-defined]
        following = buffer.value if pointer.value is None else pointer.value + size  # type: ignore[attr-defined]
        if following >= end:
            return MAX_LIMIT_REACHED
        pointer.value = following
        return self.record_status

    def _hand_over(self, records: Sequence[SimpleNamespace]) -> None:
        """One buffer of these records, 256 bytes each, as CUPTI lays them out."""
        address, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
        self.requested(ctypes.pointer(address), ctypes.pointer(size), ctypes.pointer(most))  # type: ignore[operator]
        assert (size.value, most.value) == (8 << 20, 0) and address.value is not None
        assert address.value % 8 == 0
        for i, r in enumerate(records):
            dtype = {1: self.activity_memcpy6_dtype, 2: self.activity_memset4_dtype}.get(
                r.kind, self.activity_kernel10_dtype
            )
            structure = np.zeros((), dtype)
            for field in ("kind", "start", "end", "correlation_id", "graph_id"):
                structure[field] = getattr(r, field)
            if "name" in (dtype.names or ()):
                self.names.append(ctypes.create_string_buffer(r.name.encode()))
                structure["name"] = ctypes.addressof(self.names[-1]) if r.name else 0
            ctypes.memmove(address.value + 256 * i, structure.tobytes(), dtype.itemsize)
        self.completed(0, 0, address.value, size.value, 256 * len(records))  # type: ignore[operator]

    def activity_enable(self, kind: int) -> None:
        if self.enable_error:
            raise FakeError(self.enable_error)
        self.calls.append(f"enable {kind}")

    def activity_disable(self, kind: int) -> None: ...

    def activity_flush_all(self, flag: int) -> None:
        ready, self.pending = self.pending, []
        if flag == 1:
            ready, self.held = ready + self.held, []
        self._hand_over(ready)

    def activity_get_num_dropped_records(self, context: int, stream: int, address: int) -> None:
        ctypes.c_size_t.from_address(address).value = self.drop


@pytest.fixture
def no_atexit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupti_module.atexit, "register", lambda f: f)


def new_session(fake: FakeCupti) -> cupti_module._Session:
    return cupti_module._Session(fake, lambda: fake)


def kernel(name: str, start: int = 5, end: int = 9, kind: int = 10) -> SimpleNamespace:
    return SimpleNamespace(kind=kind, name=name, start=start, end=end, correlation_id=1, graph_id=0)


@pytest.mark.usefixtures("no_atexit")
def test_session_reads_records_and_counts_dropped_ones() -> None:
    fake = FakeCupti()
    session = new_session(fake)
    assert fake.calls == ["register", "enable 10", "enable 1", "enable 2"]
    fake.pending = [kernel("stale")]
    session.discard()
    fake.pending = [
        kernel("_ZN2at4cuda12_GLOBAL__N_111spin_kernelEl"),
        kernel("", kind=2),
        kernel("", kind=1),
    ]
    fake.held = [kernel("spin_kernel"), kernel("x", kind=99)]
    fake.drop = 4
    names = [a.name for a in session.collect(marks=2)]
    assert names == ["at::cuda::spin_kernel", "memset", "memcpy", "spin_kernel"]
    assert session.dropped == 4


@pytest.mark.usefixtures("no_atexit")
def test_a_failure_in_the_callback_surfaces_at_the_collect() -> None:
    fake = FakeCupti()
    session = new_session(fake)
    fake.pending, fake.record_status = [kernel("x")], 5
    with pytest.raises(RuntimeError, match=r"reading CUPTI's records failed: .*Record returned status 5"):
        session.collect(marks=0)
    fake.pending, fake.record_status = [kernel("spin_kernel")], 0
    assert [a.name for a in session.collect(marks=1)] == ["spin_kernel"]


@pytest.mark.usefixtures("no_atexit")
def test_records_are_read_field_by_field_and_buffers_used_again() -> None:
    fake = FakeCupti()
    session = new_session(fake)
    for _ in range(3):
        fake.pending = [
            kernel("spin_kernel", start=2**63 + 7, end=2**63 + 9),
            SimpleNamespace(kind=2, start=3, end=4, correlation_id=2**32 - 1, graph_id=8),
            SimpleNamespace(kind=3, name="", start=5, end=6, correlation_id=11, graph_id=0),
        ]
        assert session.collect(marks=1) == [
            Activity("spin_kernel", 2**63 + 7, 2**63 + 9, 1, 0),
            Activity("memset", 3, 4, 2**32 - 1, 8),
            Activity("", 5, 6, 11, 0),
        ]
    assert len(session._buffers._free) == 1


def test_a_cupti_that_takes_no_buffers_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCupti()
    fake.register_status = 24
    with pytest.raises(RuntimeError, match="cuptiActivityRegisterCallbacks returned status 24"):
        new_session(fake)
    with pytest.raises(RuntimeError, match=r"has no activity_kernel<version>_dtype"):
        layouts(SimpleNamespace(ActivityKind=FakeCupti.ActivityKind))
    monkeypatch.setattr(cupti_module, "only_mapped", lambda fragment: "")
    with pytest.raises(RuntimeError, match=r"no libcupti.so is mapped"):
        cupti_module._library()


def test_another_profiler_is_named() -> None:
    with pytest.raises(TimerUnavailable, match=r"another profiler is attached to CUPTI \(nsys\)"):
        new_session(FakeCupti(subscribe_error=39))


def test_cupti_errors_say_what_to_do() -> None:
    with pytest.raises(TimerUnavailable, match="may not trace the GPU; run as root"):
        new_session(FakeCupti(enable_error=35))


def test_missing_cupti_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupti", None)
    monkeypatch.setattr(cupti_module, "_the_session", None)
    with pytest.raises(TimerUnavailable, match=r"pip install 'cupti-python>=13.0,<13.1'"):
        cupti_module._session()


def test_the_real_module_has_what_is_used() -> None:
    cupti = pytest.importorskip("cupti.cupti")
    for name in (
        "activity_enable",
        "activity_disable",
        "activity_flush_all",
        "activity_get_num_dropped_records",
        "subscribe_v2",
        "SubscriberParams",
        "SUBSCRIBER_PARAMS_SIZE",
        "cuptiError",
    ):
        assert hasattr(cupti, name), name
    kinds = cupti.ActivityKind
    assert set(layouts(cupti)) == {kinds.CONCURRENT_KERNEL, kinds.KERNEL, kinds.MEMCPY, kinds.MEMSET}
    for record in ("kernel", "memcpy", "memset"):
        assert newest_dtype(cupti, record).fields["kind"] == (np.dtype("int32"), 0)
    assert cupti_module._explain(cupti, cupti.cuptiError(int(cupti.Result.ERROR_HARDWARE_BUSY))).startswith(
        "CUPTI cannot"
    )


class FakeGpu:
    """Stands in for torch.cuda: launches become records of the fake CUPTI, on a clock of 32 ns ticks."""

    def __init__(self, cupti: FakeCupti) -> None:
        self.cupti = cupti
        self.recorder = Recorder(start=32 * 10**12)

    def launch(self, name: str, ns: int) -> None:
        r = self.recorder.launch(name, ns // 32 * 32, gap=1_024)
        self.cupti.pending.append(
            SimpleNamespace(
                kind=10, name=name, start=r.start, end=r.end, correlation_id=r.correlation, graph_id=0
            )
        )

    def sleep(self, cycles: int) -> None:
        self.launch("_ZN2at4cuda12_GLOBAL__N_111spin_kernelEl", 640 + cycles // 2)

    def Event(self, enable_timing: bool) -> SimpleNamespace:
        event = SimpleNamespace(at=0)
        event.record = lambda: setattr(event, "at", self.recorder.now)
        event.query = lambda: False
        event.elapsed_time = lambda end: (end.at - event.at) / 1e6
        return event


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, no_atexit: None) -> FakeGpu:
    gpu = FakeGpu(FakeCupti())
    session = new_session(gpu.cupti)
    monkeypatch.setattr(cupti_module, "_session", lambda: session)
    for module in (cupti_module, events_module):
        monkeypatch.setattr(module, "gpu_device", lambda name, device: torch.device("cuda", 0))
    for name, value in {
        "device": lambda device: nullcontext(),
        "synchronize": lambda: None,
        "_sleep": gpu.sleep,
        "Event": gpu.Event,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value, raising=False)
    return gpu


def test_a_whole_visit_by_cupti(gpu: FakeGpu) -> None:
    timer = cupti_module.CuptiTimer("cuda")
    gpu.sleep(100)  # someone else's delay kernel, before the visit

    def cold() -> None:
        gpu.launch("bench_l2_write", 32_000)
        gpu.launch("bench_l2_read", 32_000)

    def op() -> None:
        gpu.launch("gemm", 9_600)
        gpu.launch("reduce", 3_200)

    steps = timer.visit(op, cold=cold, untimed=2, steps=3)
    assert steps == [StepTime((9_600 + 1_024 + 3_200) / 1e3, "", ("gemm", "reduce"))] * 3
    assert timer.facts() == TimerFacts(name="cupti", tick_us=0.032)
    facts = timer.cross_check(lambda: gpu.launch("sweep", 96_000))
    assert (facts.check_us, facts.check_events_us) == (96.0, pytest.approx(97.024))
    assert check_note(facts) is None
    timer.close()


def test_cupti_without_records_is_unavailable(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None, raising=False)
    with pytest.raises(TimerUnavailable, match="CUPTI is on but delivered no kernel times"):
        cupti_module.CuptiTimer("cuda")


def test_a_whole_visit_by_events(gpu: FakeGpu) -> None:
    timer = EventsTimer("cuda")
    steps = timer.visit(lambda: gpu.launch("gemm", 9_600), cold=lambda: None, untimed=1, steps=2)
    assert [s.us for s in steps] == [pytest.approx(10.624)] * 2
    assert steps[0].kernels == ()
    assert timer.facts() == TimerFacts(name="events")


def test_events_lengthen_a_delay_that_ends_before_the_launch_does(gpu: FakeGpu) -> None:
    timer = EventsTimer("cuda")
    timer._begin.query = lambda: timer._delay < 4 * events_module.DELAY_CYCLES
    steps = timer.visit(lambda: gpu.launch("gemm", 9_600), cold=lambda: None, untimed=0, steps=4)
    assert [s.us is None for s in steps] == [True, True, False, False]
    assert steps[0].void == "the delay kernel ended before the launch did"


# --- on a GPU -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpu_cupti() -> cupti_module.CuptiTimer:
    return cupti_module.CuptiTimer("cuda")


def _nothing() -> None: ...


def _mm() -> Callable[[], None]:
    a = torch.randn(1024, 4096, device="cuda")
    b, out = torch.randn(4096, 256, device="cuda"), torch.empty(1024, 256, device="cuda")

    def run() -> None:
        torch.mm(a, b, out=out)

    return run


def _median(steps: list[StepTime]) -> float:
    return statistics.median(s.us for s in steps if s.us is not None)


@pytest.mark.gpu
def test_cupti_times_eager_calls(gpu_cupti: cupti_module.CuptiTimer) -> None:
    steps = gpu_cupti.visit(_mm(), cold=_nothing, untimed=2, steps=10)
    assert [s.void for s in steps] == [""] * 10
    assert all(s.us is not None and s.us > 1 for s in steps)
    assert steps[0].kernels and len({s.kernels for s in steps}) == 1


@pytest.mark.gpu
def test_cupti_times_graph_replays_with_the_same_kernels(gpu_cupti: cupti_module.CuptiTimer) -> None:
    mm = _mm()

    def twice() -> None:
        mm()
        mm()

    eager = gpu_cupti.visit(twice, cold=_nothing, untimed=2, steps=5)
    graph = gpu_cupti.visit(capture(twice).replay, cold=_nothing, untimed=2, steps=10)
    assert [s.void for s in graph] == [""] * 10
    assert {s.kernels for s in graph} == {eager[0].kernels}
    assert len(eager[0].kernels) % 2 == 0


@pytest.mark.gpu
def test_cupti_sees_fills_and_copies(gpu_cupti: cupti_module.CuptiTimer) -> None:
    a, b = torch.ones(1 << 20, device="cuda"), torch.empty(1 << 20, device="cuda")

    def copy() -> None:
        b.copy_(a)

    steps = gpu_cupti.visit(copy, cold=_nothing, untimed=1, steps=3)
    assert [s.kernels for s in steps] == [("memcpy",)] * 3


@pytest.mark.gpu
def test_cupti_facts(gpu_cupti: cupti_module.CuptiTimer) -> None:
    facts = gpu_cupti.cross_check()
    assert facts.dropped_records == 0
    assert facts.tick_us is not None and 0 < facts.tick_us < 2
    assert check_note(facts) is None, facts


@pytest.mark.gpu
def test_a_second_timer_shares_the_session(gpu_cupti: cupti_module.CuptiTimer) -> None:
    again = cupti_module.CuptiTimer("cuda")
    again.close()
    assert all(s.us for s in gpu_cupti.visit(_mm(), cold=_nothing, untimed=1, steps=2))


@pytest.mark.gpu
def test_events_time_what_cupti_times(gpu_cupti: cupti_module.CuptiTimer) -> None:
    mm = _mm()
    # A host that stalls makes a step void, which says so: the machine's matter, so there are three visits.
    visits = (EventsTimer("cuda").visit(mm, cold=_nothing, untimed=3, steps=10) for _ in range(3))
    events = next(visit for visit in visits if not any(s.void for s in visit))
    cupti = gpu_cupti.visit(mm, cold=_nothing, untimed=3, steps=10)
    facts = TimerFacts(name="cupti", check_us=_median(cupti), check_events_us=_median(events))
    assert check_note(facts) is None, facts
