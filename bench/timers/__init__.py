"""Timers: what a timed step is, and which clock reads it.

A *visit* runs one arm a few times in a row. Each step is: make the L2 cold, wait until the device is idle,
launch the op, wait until it is done. Which clock reads the interval is the user's choice and never changes in
silence: a timer that cannot work raises :class:`TimerUnavailable`, which says what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from bench.model import TimerFacts

if TYPE_CHECKING:
    import torch

TIMERS = ("cupti", "events", "cpu")

#: Events around a kernel see the launch of the events themselves: 1 to 3 us on top of the kernel. So on the
#: 100 us kernel of the cross-check the two clocks may differ by this share plus this offset; more means that
#: one of them is wrong.
CHECK_SHARE = 0.03
CHECK_OFFSET_US = 4.0


class TimerUnavailable(Exception):
    """The timer asked for cannot work here; the message says why and what to do."""


@dataclass(frozen=True)
class StepTime:
    """One timed step. ``us`` is the op's interval, ``None`` where ``void`` says why the step has none.

    ``kernels`` names the op's kernels, copies and fills in order; it is empty where the timer does not see
    them. ``host_us`` is how long the call took on the host, ``pace_us`` how long the mark and the flush
    before it did, which are the same work for every arm; both where the timer knows.
    """

    us: float | None
    void: str = ""
    kernels: tuple[str, ...] = ()
    host_us: float | None = field(default=None, compare=False)
    pace_us: float | None = field(default=None, compare=False)


class Timer(Protocol):
    """A clock for the steps of a visit."""

    name: str

    def facts(self) -> TimerFacts:
        """The timer's tick, dropped records and cross-check, as far as known by now."""
        ...

    def visit(
        self,
        launch: Callable[[], None],
        *,
        cold: Callable[[], None],
        untimed: int,
        steps: int,
        expected: tuple[str, ...] | None = None,
    ) -> list[StepTime]:
        """Run ``untimed + steps`` steps, each: ``cold()``, device idle, ``launch()``, device idle.

        Returns the last ``steps`` of them. ``expected`` are the kernel names of one op where they are known:
        a step with other kernels is void. Where they are not, the usual sequence of the visit takes their
        place.
        """
        ...

    def close(self) -> None:
        """Let go of what the timer holds. The timer is not used afterwards."""
        ...


def make_timer(name: str, device: torch.device | str) -> Timer:
    """The timer of that name (``cupti``, ``events`` or ``cpu``) for a device.

    Call it before anything is loaded onto the GPU: CUPTI misses modules that were there before it. Raises
    :class:`TimerUnavailable` where it cannot work, ``ValueError`` for a name that is none.
    """
    if name == "cupti":
        from bench.timers.cupti import CuptiTimer

        return CuptiTimer(device)
    if name == "events":
        from bench.timers.events import EventsTimer

        return EventsTimer(device)
    if name == "cpu":
        from bench.timers.cpu import CpuTimer

        return CpuTimer(device)
    raise ValueError(f"timer is {name!r}; needs one of {', '.join(TIMERS)}")


def default_timer(device: torch.device | str) -> str:
    """The name of the timer used on a device where none was asked for."""
    return "cupti" if str(device).startswith("cuda") else "cpu"


def check_note(facts: TimerFacts) -> str | None:
    """What to warn of in a timer's cross-check, or ``None`` where the two clocks agree or none was made."""
    if facts.check_us is None or facts.check_events_us is None:
        return None
    limit = CHECK_SHARE * facts.check_us + CHECK_OFFSET_US
    if abs(facts.check_events_us - facts.check_us) <= limit:
        return None
    return (
        f"{facts.name} and events disagree on the cross-check kernel: "
        f"{facts.check_us:.2f} us by {facts.name}, "
        f"{facts.check_events_us:.2f} us by events (allowed: {limit:.2f} us apart); "
        "treat absolute times with care"
    )


def gpu_device(name: str, device: torch.device | str) -> torch.device:
    """The CUDA device, with its index, that a GPU timer is to use; raises :class:`TimerUnavailable` where
    there is none.
    """
    import torch

    chosen = torch.device(device)
    if chosen.type != "cuda":
        raise TimerUnavailable(f"timer {name} needs a CUDA device, got {chosen}; use --timer cpu there")
    if not torch.cuda.is_available():
        build = "this torch is a CPU build" if torch.version.cuda is None else "torch finds no usable GPU"
        raise TimerUnavailable(
            f"timer {name} needs a GPU: {build}; check nvidia-smi, or run with --device cpu"
        )
    return torch.device("cuda", 0 if chosen.index is None else chosen.index)
