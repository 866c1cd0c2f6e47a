"""Entries: planned GEMMs of fixed shapes and strides, run on any tensors that have them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import or_
from typing import Any, Generic, NamedTuple, Self, TypeVar

import torch
from torch._C._dynamo.guards import TensorGuards

from .. import cpu, operand
from ..operand import OPERANDS, AnyKind, Kind, Problem
from ..plan import CPU, Plan, plan, router_problem
from ..plan.backward import BackwardPlan, joined
from ..plan.device import EMULATIONS
from ..plan.partition import MAX_SEGMENTS
from . import routes
from .router import Addresses, Bound, BoundBackward, BoundPlan, Workspace, device_spec


def current_stream(device: torch.device) -> int:
    """The raw current stream of a device (0 on a CPU)."""
    # The private call takes 0.16 us, torch.cuda.current_stream() 8.6 us of host time.
    return int(torch._C._cuda_getCurrentRawStream(device.index)) if device.type == "cuda" else 0


def product(kind: AnyKind, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The operands as ``a[..., M, K] @ b[..., K, N]``."""
    if kind == "fwd":
        return first, second.mT
    return (first.mT, second) if kind == "wgrad" else (first, second)


def apart(at1: int, span1: int, at2: int, span2: int) -> bool:
    """Whether two byte ranges, each an address and a length, share nothing."""
    return at1 + span1 <= at2 or at2 + span2 <= at1


def can_be_kept(*at: int) -> bool:
    """Whether what lies at these addresses can be kept: an empty tensor need not be anywhere, and one without
    memory ("meta") has the CPU's number.
    """
    return all(at) and not reduce(or_, at) & (operand.ALIGNMENT - 1)


def addresses(first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> Addresses:
    """Where a call's tensors lie: asked for once a call, 0.1 us each."""
    return first.data_ptr(), second.data_ptr(), out.data_ptr()


class Options(NamedTuple):
    """The keyword options of a call that decide its plan."""

    deterministic: bool
    emulation: str
    splits: int | None
    pdl: bool

    def check(self) -> None:
        """Raise ``ValueError`` naming an option no program has."""
        if self.emulation not in tuple(EMULATIONS):  # a look-up by hash would refuse a list in other words
            raise ValueError(
                f"emulation={self.emulation!r}; this version has {', '.join(map(repr, EMULATIONS))}"
            )
        splits = self.splits
        if splits is not None and (type(splits) is not int or not 1 <= splits <= MAX_SEGMENTS):
            raise ValueError(f"splits={splits!r}; needs None or an integer from 1 to {MAX_SEGMENTS}")


def own_workspace(op: str, device: torch.device, floats: int, counters: int) -> Workspace | None:
    """The workspace of a prepared launch, ready for any stream; none on a CPU. Not under capture."""
    if device.type != "cuda":
        return None
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"{op}: prepare before the capture begins, then capture the call")
    workspace = Workspace(floats, counters, device)
    torch.cuda.current_stream(device).synchronize()  # counters are zero before any stream may launch
    return workspace


#: Times that a launch's check of tensors is made: at most.
MAX_CHECKS = 8


def _never(*tensors: torch.Tensor) -> bool:
    return False


class Repeatable:
    """A launch that is known again. ``kept``: it is in the cache, for the raw ``stream`` and the
    ``generation`` of routes of its key.

    A call's options are four, as they were given: of a router those of :class:`Options`. The third one is
    ``None`` in calls that may repeat.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.kept, self.stream, self.generation = False, 0, 0
        # The raw current stream of its device.
        self._current: Callable[[], int] = (
            partial(torch._C._cuda_getCurrentRawStream, device.index) if device.type == "cuda" else int
        )
        # What it was last found by: options, and a check of the tensors' properties, made so many times.
        self._given: tuple[Any, ...] = (None,) * 4
        self._out_dtype: torch.dtype | None = None
        self._same: Callable[..., bool] = _never
        self._made = 0

    def found(self, given: tuple[Any, ...], out_dtype: torch.dtype | None, *tensors: torch.Tensor) -> None:
        """It was found in the cache, for a call with these options and tensors."""
        self._given, self._out_dtype = given, out_dtype
        if self._made == MAX_CHECKS or self._same(*tensors) or len(set(map(id, tensors))) < len(tensors):
            return  # torch's check takes no tensor twice
        # It asks for more than decides a launch (whether autograd follows a tensor): such calls are looked
        # up as ever, and where they take turns it is not made for ever.
        guards: Any = TensorGuards  # torch's own annotations leave the tensors out
        self._same = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        self._made += 1

    def repeats(
        self, given: tuple[Any, ...], out_dtype: torch.dtype | None, here: bool, *tensors: Any
    ) -> bool:
        """Whether a call has the options (the very ones: an equal one need not be one that is taken) and the
        properties of the one that it was last found for; ``here``: its tensors lie where that one's did.

        Torch compares shapes, strides, types and devices in one step, a fifth of the time that it takes to
        ask for them and look them up. A nested tensor, which has no strides, ends the process there; it
        cannot lie where a tensor lay that had them.
        """
        mine = self._given
        return (
            mine[0] is given[0]
            and mine[1] is given[1]
            and given[2] is None
            and mine[3] is given[3]
            and self._out_dtype is out_dtype
            and (here or not any(t.is_nested for t in tensors))
            and self._same(*tensors)
            and self._current() == self.stream
            and self.generation == routes.generation
        )


P = TypeVar("P")


class Planned(Repeatable, Generic[P]):
    """A planned GEMM of fixed shapes, strides, dtypes and device, to be run on tensors that have them.

    Of a kind of GEMM are its plan, how it is bound, and how a CPU computes it.
    """

    def __init__(
        self,
        kind: AnyKind,
        problem: Problem,
        first: torch.Tensor,
        second: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        super().__init__(first.device)
        self.kind, self.problem = kind, problem
        self.used = False
        #: Where the tensors of its last repeat lay.
        self.at: Addresses | None = None
        self.plan: P | None = None
        self.shape = out.shape
        self.spans = operand.span(first), operand.span(second), operand.span(out)
        self.bound: Bound | None = None
        self.spec = device_spec(first.device.index) if first.is_cuda else CPU

    def _bind(self, plan: P, workspace: Workspace | None) -> Bound:
        raise NotImplementedError

    def _on_cpu(self, plan: P, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> None:
        raise NotImplementedError

    def new_output(self) -> torch.Tensor:
        """An output for it."""
        return operand.new_output(self.shape, operand.TORCH_DTYPES[self.problem.out.dtype], self.device)

    def check_overlap(
        self, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor, at: Addresses
    ) -> None:
        """Raise ``ValueError`` if this call's addresses make the output share memory with an input."""
        at1, at2, at0 = at
        span1, span2, span0 = self.spans
        if (at0 + span0 <= at1 or at1 + span1 <= at0) and (at0 + span0 <= at2 or at2 + span2 <= at0):
            return
        name1, name2, name = OPERANDS[self.kind]
        operand.check_overlap(name, out, {name1: first, name2: second})

    def takes(self, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor, at: Addresses) -> bool:
        """Whether a repeat with tensors elsewhere can use it; ``ValueError`` as :meth:`check_overlap`."""
        if not can_be_kept(*at):
            return False
        self.check_overlap(first, second, out, at)
        self.at = at
        return True

    def bind(self, workspace: Workspace | None = None) -> Self:
        """Compile and load the program (GPU) if that is still to be done, with a workspace of the entry's own
        or the current stream's.
        """
        if self.bound is None and self.plan is not None and self.device.type == "cuda":
            self.bound = self._bind(self.plan, workspace)
        return self

    def run(
        self, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor, at: Addresses, stream: int
    ) -> None:
        """Compute into ``out``; on a GPU, enqueue on the raw current stream of the tensors' device."""
        bound = self.bound
        if bound is None and self.device.type == "cuda":
            bound = self.bind().bound  # it was made for a launch of both gradients
        if bound is not None:
            if torch._C._cuda_getDevice() == bound.index:
                bound.launch(at, stream)
            else:
                with torch.cuda.device(bound.index):
                    bound.launch(at, stream)
        elif self.plan is not None:
            self._on_cpu(self.plan, first, second, out)
        elif out.numel():
            with torch.no_grad():
                out.zero_()


class Entry(Planned[Plan]):
    """A planned router GEMM."""

    def __init__(
        self, kind: Kind, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor, options: Options
    ) -> None:
        name1, name2, name = OPERANDS[kind]
        p = router_problem(
            kind, operand.view(name1, first), operand.view(name2, second), operand.output_view(name, out)
        )
        super().__init__(kind, p, first, second, out)
        self.options = options
        self.both: Both | None = None
        spec = self.spec
        # An unsupported device is an error even where nothing would be launched.
        family = spec.family_of(options.emulation)
        if p.m and p.n and p.k:
            free = not options.deterministic
            self.plan = plan(
                p,
                family,
                sms=spec.sms,
                deterministic=options.deterministic,
                emulation=options.emulation,
                splits=options.splits,
                routes=routes.of(first.device.index if first.is_cuda else -1, spec) if free else None,
            )

    def _bind(self, plan: Plan, workspace: Workspace | None) -> Bound:
        return BoundPlan(plan, self.device, pdl=self.options.pdl, workspace=workspace)

    def _on_cpu(self, plan: Plan, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> None:
        cpu.run(plan, *product(self.kind, first, second), out)


#: A GEMM's operands and its output.
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Both(Repeatable):
    """Entries of both gradients, (G, W) into dX and (G, X) into dW, in one launch where ``plan`` is one."""

    def __init__(self, dgrad: Entry, wgrad: Entry, workspace: Workspace | None = None) -> None:
        super().__init__(dgrad.device)
        self.wgrad = wgrad
        #: Where the tensors lay that were last found apart.
        self.at: tuple[Addresses, Addresses] | None = None
        self.plan: BackwardPlan | None = None
        self._bound: BoundBackward | None = None
        if dgrad.plan is not None and wgrad.plan is not None and self.device.type == "cuda":
            self.plan = joined(dgrad.plan, wgrad.plan, dgrad.spec.sms)
        if self.plan is None:
            for entry in (dgrad, wgrad):
                entry.bind(workspace)
        else:
            self._bound = BoundBackward(self.plan, self.device, pdl=dgrad.options.pdl, workspace=workspace)

    def takes(self, dgrad: Entry, at_dx: Addresses, at_dw: Addresses) -> bool:
        """Whether what neither gradient's own check sees is apart: dX from X and dW, dW from W."""
        (_, at_w, to_dx), (_, at_x, to_dw) = at_dx, at_dw
        (_, span_w, span_dx), (_, span_x, span_dw) = dgrad.spans, self.wgrad.spans
        if not (
            apart(to_dx, span_dx, at_x, span_x)
            and apart(to_dx, span_dx, to_dw, span_dw)
            and apart(to_dw, span_dw, at_w, span_w)
        ):
            return False
        self.at = at_dx, at_dw
        return True

    def run(
        self, dgrad: Entry, dx: Tensors, dw: Tensors, at_dx: Addresses, at_dw: Addresses, stream: int
    ) -> None:
        """Compute both; as :meth:`Entry.run`. ``dgrad`` is the first entry, which keeps this object."""
        if self._bound is None:
            dgrad.run(*dx, at_dx, stream)
            self.wgrad.run(*dw, at_dw, stream)
        elif torch._C._cuda_getDevice() == self._bound.index:
            self._bound.launch((at_dx, at_dw), stream)
        else:
            with torch.cuda.device(self._bound.index):
                self._bound.launch((at_dx, at_dw), stream)
