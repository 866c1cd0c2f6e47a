"""Clocks, power, temperature and throttle reasons of a GPU, by NVML, around each group of steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from bench.model import ClockReading

#: NVML's bits of the clock event reasons. Idle and an application's own clock setting are no throttling, but
#: are kept.
REASONS = {
    0x001: "idle",
    0x002: "applications_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
#: Reasons to repeat a group: the chip is too hot, or the hardware takes its clock away. The software power
#: cap is not among them: on an H200 every long GEMM runs under it.
HARD = frozenset({"hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"})


def reason_names(bits: int) -> tuple[str, ...]:
    """The names of NVML's throttle reason bits, lowest first; a bit without a name reads ``bit_<hex>``."""
    set_bits = [1 << i for i in range(bits.bit_length()) if bits >> i & 1]
    return tuple(REASONS.get(bit, f"bit_{bit:#x}") for bit in set_bits)


def hard_slowdown(reading: ClockReading) -> bool:
    """Whether heat or the hardware slowed the GPU down: the group is to be repeated."""
    return not HARD.isdisjoint(reading.reasons)


def power_capped(reading: ClockReading) -> bool:
    """Whether the software power cap held the clock: a label, no fault."""
    return "sw_power_cap" in reading.reasons


@cache
def nvml() -> Any | None:
    """The ``pynvml`` module, initialised, or ``None`` where it or the driver is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # ImportError, or any of NVML's errors: no library, no driver, no permission
        return None
    return pynvml


def nvml_handle(device: torch.device | str) -> Any | None:
    """NVML's handle of a CUDA device, by UUID and else by PCI address: NVML ignores ``CUDA_VISIBLE_DEVICES``.

    ``None`` on a CPU and where NVML does not know the device. Makes no CUDA context.
    """
    chosen, library = torch.device(device), nvml()
    if chosen.type != "cuda" or library is None:
        return None
    properties = torch.cuda.get_device_properties(chosen.index or 0)
    return find_handle(library, properties)


def find_handle(library: Any, properties: Any) -> Any | None:
    """NVML's handle for torch's device properties; ``None`` where neither UUID nor PCI address is known to
    it.
    """
    attempts: list[tuple[Callable[[str], Any], str]] = []
    if (uuid := getattr(properties, "uuid", None)) is not None:
        attempts.append((library.nvmlDeviceGetHandleByUUID, full_uuid(str(uuid))))
    if (bus := getattr(properties, "pci_bus_id", None)) is not None:
        domain, slot = getattr(properties, "pci_domain_id", 0), getattr(properties, "pci_device_id", 0)
        attempts.append((library.nvmlDeviceGetHandleByPciBusId, f"{domain:08x}:{bus:02x}:{slot:02x}.0"))
    for find, key in attempts:
        try:
            return find(key)
        except library.NVMLError:
            continue
    return None


def full_uuid(uuid: str) -> str:
    """A UUID as NVML writes it: torch leaves out the ``GPU-`` in front."""
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


class Clocks:
    """Readings of one device. ``note`` says why there are none, where there are none; else it is empty."""

    def __init__(self, device: torch.device | str) -> None:
        self._library: Any = nvml()
        self._handle = nvml_handle(device)
        self.note = ""
        if torch.device(device).type == "cuda" and self._handle is None:
            why = "NVML does not know the device" if self._library else "NVML is not to be had"
            self.note = f"no clocks or throttle reasons: {why}; install nvidia-ml-py and check nvidia-smi"

    def read(self, group: int) -> ClockReading | None:
        """The state right now; ``None`` where NVML cannot say. A GPU reads as it was for up to a second after
        its work.
        """
        n, h = self._library, self._handle
        if h is None:
            return None
        try:
            return ClockReading(
                group=group,
                sm_mhz=n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM),
                mem_mhz=n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM),
                power_w=n.nvmlDeviceGetPowerUsage(h) / 1e3,
                temp_c=n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU),
                reasons=reason_names(n.nvmlDeviceGetCurrentClocksEventReasons(h)),
            )
        except n.NVMLError as e:
            self.note = f"no clocks or throttle reasons: NVML says {e}"
            return None
