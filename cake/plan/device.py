"""What a planner needs to know of a device, and which program family serves it. No CUDA here."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: family -> lowest compute capability (times ten) it runs on, best first.
FAMILIES = {"sm80": 80}


class UnsupportedDevice(ValueError):
    """No program family runs on the device; the message says which do."""


@dataclass(frozen=True)
class DeviceSpec:
    """A device as data: ``arch`` (``sm_90a``, or ``cpu``) and its number of SMs."""

    arch: str
    sms: int

    @property
    def family(self) -> str:
        """The program family that serves the device; a CPU repeats the arithmetic of the sm80 family.

        Raises :class:`UnsupportedDevice`.
        """
        if self.arch == "cpu":
            return "sm80"
        match = re.fullmatch(r"sm_(\d+)[af]?", self.arch)
        number = int(match[1]) if match else 0
        for family, lowest in FAMILIES.items():
            if number >= lowest:
                return family
        raise UnsupportedDevice(
            f"{self.arch} has no program: supported are GPUs of compute capability 8.0 (Ampere) and newer, "
            "and the CPU"
        )


#: The CPU plans as if for a data-centre GPU, so that CPU and GPU tests look at the same plans.
CPU = DeviceSpec("cpu", 132)
