from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import bench.clocks as clocks
from bench.clocks import Clocks, find_handle, full_uuid, hard_slowdown, power_capped, reason_names
from bench.model import ClockReading


def reading(*reasons: str) -> ClockReading:
    return ClockReading(group=0, sm_mhz=1980, mem_mhz=3201, power_w=500.0, temp_c=60, reasons=reasons)


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0, ()),
        (0x1, ("idle",)),
        (0x4, ("sw_power_cap",)),
        (0x4 | 0x20 | 0x8, ("sw_power_cap", "hw_slowdown", "sw_thermal")),
        (0x40 | 0x80 | 0x10, ("sync_boost", "hw_thermal", "hw_power_brake")),
        (0x8000, ("bit_0x8000",)),
    ],
)
def test_reason_names(bits: int, names: tuple[str, ...]) -> None:
    assert reason_names(bits) == names


def test_every_reason_of_nvml_has_a_name() -> None:
    nvml = pytest.importorskip("pynvml")
    known = {
        v
        for n, v in vars(nvml).items()
        if n.startswith(("nvmlClocksEventReason", "nvmlClocksThrottleReason")) and isinstance(v, int)
    }
    assert {bit for bit in known if bit and bit & (bit - 1) == 0} <= clocks.REASONS.keys()


@pytest.mark.parametrize("reason", ["hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"])
def test_hard_slowdowns(reason: str) -> None:
    assert hard_slowdown(reading("idle", reason))
    assert not power_capped(reading(reason))


def test_the_power_cap_is_a_label_and_no_slowdown() -> None:
    assert power_capped(reading("sw_power_cap"))
    assert not hard_slowdown(reading("sw_power_cap", "sync_boost", "idle"))


def test_uuid_as_nvml_writes_it() -> None:
    assert full_uuid("1234-ab") == "GPU-1234-ab"
    assert full_uuid("GPU-1234-ab") == "GPU-1234-ab"


class FakeNvml:
    NVMLError = type("NVMLError", (Exception,), {})
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, uuid: str = "", bus: str = "", fail: bool = False) -> None:
        self.uuid, self.bus, self.fail = uuid, bus, fail

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return self._found("by uuid", uuid == self.uuid)

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> str:
        return self._found("by bus", bus == self.bus)

    def nvmlDeviceGetClockInfo(self, handle: str, domain: int) -> int:
        return int(self._found({1: 1755, 2: 3201}[domain], not self.fail))

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 651_250

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 61

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return 0x4

    def _found(self, value: Any, ok: bool) -> Any:
        if not ok:
            raise self.NVMLError("not found")
        return value


PROPERTIES = SimpleNamespace(uuid="aa-bb", pci_bus_id=0x1B, pci_device_id=0, pci_domain_id=0)


def test_handles_are_found_by_uuid_then_by_bus() -> None:
    assert find_handle(FakeNvml(uuid="GPU-aa-bb"), PROPERTIES) == "by uuid"
    assert find_handle(FakeNvml(bus="00000000:1b:00.0"), PROPERTIES) == "by bus"
    assert find_handle(FakeNvml(), PROPERTIES) is None
    assert find_handle(FakeNvml(uuid="GPU-aa-bb"), SimpleNamespace()) is None


def test_a_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "nvml", FakeNvml)
    monkeypatch.setattr(clocks, "nvml_handle", lambda device: "handle")
    assert Clocks("cuda").read(3) == ClockReading(
        group=3, sm_mhz=1755, mem_mhz=3201, power_w=651.25, temp_c=61, reasons=("sw_power_cap",)
    )


def test_a_failing_reading_leaves_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "nvml", lambda: FakeNvml(fail=True))
    monkeypatch.setattr(clocks, "nvml_handle", lambda device: "handle")
    reader = Clocks("cuda")
    assert reader.read(0) is None
    assert "NVML says not found" in reader.note


def test_without_nvml_there_is_a_note_and_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "nvml", lambda: None)
    reader = Clocks("cuda")
    assert reader.read(0) is None
    assert "install nvidia-ml-py" in reader.note


def test_a_cpu_has_no_clocks_and_needs_no_note() -> None:
    reader = Clocks("cpu")
    assert (reader.read(0), reader.note) == (None, "")


@pytest.mark.gpu
def test_clocks_of_a_gpu() -> None:
    reader = Clocks("cuda")
    found = reader.read(1)
    assert found is not None, reader.note
    assert (
        found.group == 1 and found.sm_mhz > 0 and found.mem_mhz > 0 and found.power_w > 0 and found.temp_c > 0
    )
