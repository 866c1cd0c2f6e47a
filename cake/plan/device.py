"""What a planner needs to know of a device, and which program family serves it. No CUDA here."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: family -> the architectures it is compiled for, best first: one exactly, or all from a compute capability
#: on (times ten).
FAMILIES: dict[str, str | int] = {"sm90": "sm_90a", "sm80": 80}
#: The emulations of FP32 by 16-bit products -> the families that have programs for them.
EMULATIONS: dict[str, tuple[str, ...]] = {"bf16x3": ("sm90", "sm80"), "fp16x2": ("sm90",)}
#: The families that have programs for BF16 projections.
PROJECTIONS = ("sm90", "sm80")


def families(arch: str) -> tuple[str, ...]:
    """The program families that an architecture runs, best first; a CPU repeats the arithmetic of any of
    them, the sm80 family's where that has the emulation.
    """
    if arch == "cpu":
        return ("sm80", "sm90")
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    number = int(match[1]) if match else 0
    return tuple(f for f, need in FAMILIES.items() if arch == need or (type(need) is int and number >= need))


def emulations(family: str) -> tuple[str, ...]:
    """The emulations that a program family has."""
    return tuple(name for name, having in EMULATIONS.items() if family in having)


def _needed(family: str) -> str:
    """What a family runs on, in words."""
    need = FAMILIES[family]
    return need if isinstance(need, str) else f"compute capability {need // 10}.{need % 10} and newer"


class UnsupportedDevice(ValueError):
    """No program family runs on the device, or none that has the emulation; the message says which do."""


@dataclass(frozen=True)
class DeviceSpec:
    """A device as data: ``arch`` (``sm_90a``, or ``cpu``) and its number of SMs."""

    arch: str
    sms: int

    @property
    def family(self) -> str:
        """The program family that serves the device. Raises :class:`UnsupportedDevice`."""
        return self.family_of("bf16x3")

    def family_of(self, emulation: str) -> str:
        """The program family that serves the device with an emulation. Raises :class:`UnsupportedDevice`."""
        runs, have = families(self.arch), EMULATIONS[emulation]
        family = self._first(have)
        if family:
            return family
        if runs:
            where = ", ".join(f"{family} ({_needed(family)})" for family in have)
            raise UnsupportedDevice(
                f"{self.arch} has no {emulation} programs: of the program families {where} has them; "
                "use emulation='bf16x3'"
            )
        raise UnsupportedDevice(self._no_program())

    @property
    def projection_family(self) -> str:
        """The program family that serves the device with projections. Raises :class:`UnsupportedDevice`."""
        family = self._first(PROJECTIONS)
        if family is None:
            raise UnsupportedDevice(self._no_program())
        return family

    def _first(self, having: tuple[str, ...]) -> str | None:
        return next((family for family in families(self.arch) if family in having), None)

    def _no_program(self) -> str:
        return (
            f"{self.arch} has no program: supported are GPUs of compute capability 8.0 (Ampere) and newer, "
            "and the CPU"
        )


#: The CPU plans as if for a data-centre GPU, so that CPU and GPU tests look at the same plans.
CPU = DeviceSpec("cpu", 132)
