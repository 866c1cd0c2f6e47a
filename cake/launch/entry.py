"""Entries: planned GEMMs of fixed shapes and strides, run on any tensors that have them; their cache."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import torch

from .. import cpu, operand
from ..operand import OPERANDS, Kind
from ..plan import CPU, Plan, plan, router_problem
from ..plan.partition import MAX_SEGMENTS
from ..plan.planner import planted
from .router import BoundPlan, Workspace, device_spec

EMULATIONS = ("bf16x3",)


def current_stream(device: torch.device) -> int:
    """The raw current stream of a device (0 on a CPU)."""
    # The private call takes 0.16 us, torch.cuda.current_stream() 8.6 us of host time.
    return int(torch._C._cuda_getCurrentRawStream(device.index)) if device.type == "cuda" else 0


def product(kind: Kind, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The operands as ``a[M, K] @ b[K, N]``."""
    if kind == "fwd":
        return first, second.t()
    return (first, second) if kind == "dgrad" else (first.t(), second)


def apart(at1: int, span1: int, at2: int, span2: int) -> bool:
    """Whether two byte ranges, each an address and a length, share nothing."""
    return at1 + span1 <= at2 or at2 + span2 <= at1


class Options(NamedTuple):
    """The keyword options of a call that decide its plan; ``spin`` is a planted slowdown in clocks."""

    deterministic: bool
    emulation: str
    splits: int | None
    pdl: bool
    spin: int | None = None

    def check(self) -> None:
        """Raise ``ValueError`` naming an option no program has."""
        if self.emulation not in EMULATIONS:
            raise ValueError(
                f"emulation={self.emulation!r}; this version has {', '.join(map(repr, EMULATIONS))}"
            )
        splits = self.splits
        if splits is not None and (type(splits) is not int or not 1 <= splits <= MAX_SEGMENTS):
            raise ValueError(f"splits={splits!r}; needs None or an integer from 1 to {MAX_SEGMENTS}")


class Entry:
    """A planned GEMM of fixed shapes, strides, dtypes and device, to be run on tensors that have them."""

    def __init__(
        self, kind: Kind, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor, options: Options
    ) -> None:
        name1, name2, name = OPERANDS[kind]
        self.kind = kind
        self.problem = p = router_problem(
            kind, operand.view(name1, first), operand.view(name2, second), operand.output_view(name, out)
        )
        self.device = first.device
        self.options = options
        self.used = False
        self.plan: Plan | None = None
        self.spans = operand.span(first), operand.span(second), operand.span(out)
        self._bound: BoundPlan | None = None
        spec = device_spec(first.device.index) if first.is_cuda else CPU
        family = spec.family  # an unsupported device is an error even where nothing would be launched
        if p.m and p.n and p.k:
            made = plan(p, family, deterministic=options.deterministic, splits=options.splits)
            self.plan = made if options.spin is None else planted(made, options.spin)

    def check_overlap(self, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> None:
        """Raise ``ValueError`` if this call's pointers make the output share memory with an input."""
        at1, at2, at = first.data_ptr(), second.data_ptr(), out.data_ptr()
        span1, span2, span = self.spans
        if apart(at, span, at1, span1) and apart(at, span, at2, span2):
            return
        name1, name2, name = OPERANDS[self.kind]
        operand.check_overlap(name, out, {name1: first, name2: second})

    def bind(self, workspace: Workspace | None = None) -> Entry:
        """Compile and load the program (GPU), with a workspace of the entry's own or the current stream's."""
        if self.plan is not None and self.device.type == "cuda":
            self._bound = BoundPlan(self.plan, self.device, pdl=self.options.pdl, workspace=workspace)
        return self

    def run(self, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> None:
        """Compute into ``out``; on a GPU, enqueue on the current stream of the tensors' device."""
        if self.plan is None:
            if out.numel():
                with torch.no_grad():
                    out.zero_()
        elif self._bound is not None:
            index = self.device.index
            if torch._C._cuda_getDevice() == index:
                self._launch(first, second, out)
            else:
                with torch.cuda.device(index):
                    self._launch(first, second, out)
        else:
            a, b = product(self.kind, first, second)
            cpu.run(self.plan, a, b, out)

    def _launch(self, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> None:
        assert self._bound is not None
        self._bound.launch(first.data_ptr(), second.data_ptr(), out.data_ptr(), current_stream(self.device))


class Entries:
    """The bounded cache of eager calls. Keys are what decides a launch, never the identity of a Python
    object.

    An entry used since it was last passed over is passed over once more before it goes (second chance): so a
    look-up takes no lock and moves nothing, 0.4 us instead of 1.2.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[tuple[Any, ...], Entry] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[Any, ...]) -> Entry | None:
        """The entry of a key, now used."""
        entry = self._kept.get(key)
        if entry is not None:
            entry.used = True
        return entry

    def put(self, key: tuple[Any, ...], entry: Entry) -> None:
        """Keep an entry; the oldest one not used goes where there are too many."""
        entry.used = True
        with self._lock:
            self._kept[key] = entry
            while len(self._kept) > self._limit:
                old, candidate = self._kept.popitem(last=False)
                if candidate.used:
                    candidate.used = False
                    self._kept[old] = candidate

    def clear(self) -> None:
        """Forget all entries."""
        with self._lock:
            self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)
