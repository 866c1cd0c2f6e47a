"""What a row is measured with: the bench that all rows of a run share, and an arm while it is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from baselines.gemm import Unsupported
from bench import accuracy
from bench.arms import Arm, Prepared
from bench.model import Accuracy, ClockReading, Flag, Sample, Status
from bench.presets import Preset
from bench.suites import Row
from bench.timers import Timer


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

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@dataclass
class Work:
    """An arm while its row is measured."""

    arm: Arm
    status: Status = "ok"
    reason: str = ""
    prepared: Prepared | None = None
    #: Its instances, each of which does the op, and how another one is made (in graph mode).
    launches: list[Callable[[], None]] = field(default_factory=list)
    another: Callable[[], Callable[[], None]] | None = None
    #: How many instances take turns; ``None``: every group has one of its own.
    instances: int | None = None
    #: About what the op takes, where the timer said so before the groups.
    us: float | None = None
    kernels: tuple[str, ...] = ()
    before: Accuracy | None = None
    after: Accuracy | None = None
    bits: str | None = None
    bits_after: str | None = None
    det_bits: str | None = None
    #: The deterministic call that gave them.
    det: Prepared | None = None
    #: Whether the bits of its outputs are wanted: those of cake's arms, of emulated ones and their native
    #: calls.
    hashed: bool = False
    flags: list[Flag] = field(default_factory=list)
    #: Visits given up because the host was slow.
    slow_visits: int = 0
    samples: list[Sample] = field(default_factory=list)

    def fail(self, status: Status, reason: str) -> None:
        """Give up on the arm: it keeps its reason, and nothing more is run of it."""
        self.status, self.reason, self.launches = status, reason, []

    def launch(self, group: int) -> Callable[[], None]:
        """The instance of a group, made when it is first asked for: in graph mode one of its own, or the one
        whose turn it is.
        """
        if self.another is None:
            return self.launches[0]
        turn = group if self.instances is None else group % self.instances
        while len(self.launches) <= turn:
            self.launches.append(self.another())
        return self.launches[turn]

    def flag(self, flag: Flag) -> None:
        """Put a flag beside the arm's times."""
        if flag not in self.flags:
            self.flags.append(flag)

    @property
    def alive(self) -> bool:
        """Whether the arm is still measured."""
        return self.status == "ok"


def guard(bench: Bench, row: Row, work: Work, step: Callable[[], object]) -> None:
    """Run a step of an arm; whatever an arm raises is the arm's failure, unless the context went with it."""
    try:
        step()
    except Unsupported as e:
        work.fail("unsupported", str(e))
    except Exception as e:
        work.fail("error", f"{type(e).__name__}: {e}")
        try:
            bench.synchronize()
        except Exception as gone:
            raise ContextLost(
                f"arm {work.arm.name} on {row.key} broke the CUDA context ({type(e).__name__}: {e}); "
                "finished rows are kept; if it does so again, start a new run without the arm"
            ) from gone
