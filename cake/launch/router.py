"""Router plans on a GPU: kernels loaded once a device, parameters bound to pointers, workspaces."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol, TypeVar

import torch

from ..plan.backward import BackwardPlan
from ..plan.device import DeviceSpec
from ..plan.planner import Plan
from ..program.compiler import compile_cubin
from ..program.registry import Box, Key, Program, program
from . import driver
from .bounded import Bounded
from .tensormap import ALIGNMENT, Mapped, TensorMap

Block = TypeVar("Block", bound=ctypes.Structure)

REDUCTIONS = {"direct": 0, "ordered": 1, "atomic": 2, "spread": 3}

#: Where a GEMM's two operands and its output lie.
Addresses = tuple[int, int, int]

#: Streams that keep a workspace of their own.
MAX_WORKSPACES = 16


class Params(ctypes.Structure):
    """``cake::Params`` of csrc/common/router.cuh: same order, same widths."""

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("partial", ctypes.c_void_p),
        ("counter", ctypes.c_void_p),
        ("lda", ctypes.c_longlong),
        ("ldb", ctypes.c_longlong),
        ("out_row", ctypes.c_longlong),
        ("out_col", ctypes.c_longlong),
        ("m", ctypes.c_int),
        ("n", ctypes.c_int),
        ("k", ctypes.c_int),
        ("tiles_m", ctypes.c_int),
        ("tiles_n", ctypes.c_int),
        ("segment", ctypes.c_int),
        ("raster", ctypes.c_int),
        ("band_inverse", ctypes.c_uint),
        ("raster_inverse", ctypes.c_uint),
        ("rest_inverse", ctypes.c_uint),
        ("spin", ctypes.c_int),  # read by planted programs only
        ("hold", ctypes.c_ubyte),
        ("reduction", ctypes.c_ubyte),
        ("out_bf16", ctypes.c_ubyte),
    )


class MappedParams(ctypes.Structure):
    """``cake::MappedParams`` of csrc/sm90/gemm.cuh: a GEMM with its operands' maps, which are aligned."""

    _fields_ = (
        ("params", Params),
        ("_", ctypes.c_char * (-ctypes.sizeof(Params) % ALIGNMENT)),
        ("a", TensorMap),
        ("b", TensorMap),
    )


class BackwardParams(ctypes.Structure):
    """``cake::BackwardParams`` of csrc/sm90/backward.cu."""

    _fields_ = (
        ("dgrad", MappedParams),
        ("wgrad", MappedParams),
        ("dgrad_ctas", ctypes.c_int),
        ("_", ctypes.c_char * (ALIGNMENT - 4)),
    )


def aligned(kind: type[Block]) -> Block:
    """A zero parameter block at a multiple of 64 bytes."""
    memory = (ctypes.c_char * (ctypes.sizeof(kind) + ALIGNMENT))()
    return kind.from_buffer(memory, -ctypes.addressof(memory) % ALIGNMENT)


def inverse(divisor: int) -> int:
    """What ``cake::divide`` of csrc/common/raster.cuh divides by a positive ``divisor`` with."""
    return min(2**32 // divisor, 2**32 - 1)


def parameters(plan: Plan) -> Params:
    """The parameters of a plan's GEMM, its pointers still null."""
    p, (rows, columns) = plan.problem, plan.tiles
    raster = min(plan.raster.height, rows)
    lines = (p.out.ld, 1) if p.out.unit == 1 else (1, p.out.ld)
    return Params(
        lda=p.a.ld,
        ldb=p.b.ld,
        out_row=lines[0],
        out_col=lines[1],
        m=p.m,
        n=p.n,
        k=p.k,
        tiles_m=rows,
        tiles_n=columns,
        segment=plan.partition.segment,
        raster=raster,
        band_inverse=inverse(raster * columns),
        raster_inverse=inverse(raster),
        rest_inverse=inverse(rows % raster or raster),
        spin=plan.spin,
        hold=plan.hold,
        reduction=REDUCTIONS[plan.reduction],
        out_bf16=int(p.out.dtype == "bf16"),
    )


@cache
def device_spec(index: int) -> DeviceSpec:
    """A CUDA device as the planner sees it."""
    properties = torch.cuda.get_device_properties(index)
    number = properties.major * 10 + properties.minor
    return DeviceSpec(f"sm_{number}{'a' if number >= 90 else ''}", properties.multi_processor_count)


@cache
def _kernel(key: Key, index: int) -> tuple[Program, Any]:
    """A program compiled for a device and loaded on it."""
    p = program(key)
    cubin = compile_cubin(p.source, device_spec(index).arch, name=p.name, defines=p.defines)
    return p, driver.load_kernel(cubin, p.kernel, device=index, smem_bytes=p.smem_bytes)


def forget_kernels() -> None:
    """Load programs anew at the next need, to another place; those loaded stay for who holds them."""
    _kernel.cache_clear()


class Workspace:
    """Partial sums and counters on one device. Counters are zero between launches: the kernels put them
    back.
    """

    def __init__(self, floats: int, counters: int, device: torch.device) -> None:
        self.floats, self.counters = floats, counters
        self._partial = torch.empty(floats, dtype=torch.float32, device=device)
        self._counter = torch.zeros(counters, dtype=torch.int32, device=device)
        self.pointers = (self._partial.data_ptr(), self._counter.data_ptr())
        self.used = False
        self._streams: set[int] = set()

    def used_on(self, stream: int) -> None:
        """Tell the allocator of a launch on the current stream, whose raw handle ``stream`` is.

        It knows only the stream that allocated: dropped while another one still works on it, the memory would
        be given away at once.
        """
        if stream not in self._streams:
            current = torch.cuda.current_stream(self._counter.device)
            for memory in (self._partial, self._counter):
                memory.record_stream(current)
            self._streams.add(stream)

    def fits(self, floats: int, counters: int) -> bool:
        """Whether a plan with these needs can use it."""
        return floats <= self.floats and counters <= self.counters


class Workspaces:
    """One workspace a (device, stream): kernels of one stream run one after the other, so they can share it.

    It grows to the largest need and is allocated on its own stream, so torch's allocator reuses dropped ones
    in order.
    """

    def __init__(self) -> None:
        self._kept: Bounded[Workspace] = Bounded(MAX_WORKSPACES)

    def get(self, floats: int, counters: int, device: torch.device, stream: int) -> Workspace:
        """The stream's workspace, large enough for what a plan needs. Not under capture.

        Two threads that find none on one stream make one each; who holds one keeps it alive.
        """
        key = (device.index, stream)
        kept = self._kept.get(key)
        if kept is None or not kept.fits(floats, counters):
            if kept is not None:
                floats, counters = max(floats, kept.floats), max(counters, kept.counters)
            kept = Workspace(floats, counters, device)
            self._kept.put(key, kept)
        return kept

    def clear(self) -> None:
        """Drop all workspaces; work in flight keeps its memory until it is done."""
        self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)


WORKSPACES = Workspaces()


class Gemm:
    """A GEMM's parameters and maps in a parameter block."""

    def __init__(self, plan: Plan, block: MappedParams, boxes: tuple[Box, ...]) -> None:
        self._params = block.params
        operands = ((block.a, plan.problem.a), (block.b, plan.problem.b))
        # None where the program does not copy by boxes.
        self._maps = [
            Mapped(ctypes.addressof(at), view, box) for (at, view), box in zip(operands, boxes, strict=False)
        ]

    def point(self, at: Addresses) -> None:
        """Let A, B and the output be at these addresses."""
        self._params.a, self._params.b, self._params.out = at
        for mapped, address in zip(self._maps, at[:2], strict=False):
            mapped.bind(address)


class Pointed(Protocol):
    """A GEMM of a parameter block."""

    def point(self, at: Addresses) -> None: ...  # noqa: D102


class ParameterBlock:
    """A parameter block with its launcher, for one thread at a time. ``sums`` are the parameters that get the
    workspace: its ``partial`` and ``counter``.
    """

    def __init__(self, gemms: tuple[Pointed, ...], sums: Any, launcher: driver.Launcher) -> None:
        self.launcher = launcher
        #: Where the tensors are now, and the workspace.
        self.at: Addresses | tuple[Addresses, Addresses] | None = None
        self.pointers: tuple[int, int] | None = None
        self._gemms, self._sums = gemms, sums

    def point(self, at: Any, device: int) -> None:
        """Let the tensors be at these addresses of a device."""
        self.at = None
        driver.bind_thread(device)  # a map takes no address in a thread without a context
        for gemm, its in zip(self._gemms, (at,) if len(self._gemms) == 1 else at, strict=True):
            gemm.point(its)
        self.at = at

    def work_in(self, pointers: tuple[int, int]) -> None:
        """Let partial sums and counters be there."""
        self._sums.partial, self._sums.counter = self.pointers = pointers


class Bound:
    """A program on one device, to be launched for any addresses.

    ``workspace`` is the launch's own; None: that of the stream it is launched on, always the same one.
    """

    def __init__(
        self,
        key: Key,
        device: torch.device,
        *,
        pdl: bool,
        cooperative: bool = False,
        floats: int = 0,
        counters: int = 0,
        workspace: Workspace | None = None,
    ) -> None:
        self.program, self._kernel = _kernel(key, device.index)
        self.device, self.index, self.workspace = device, device.index, workspace
        # The driver grants no PDL to a cooperative launch.
        pdl = pdl and not cooperative and torch.cuda.get_device_capability(device) >= (9, 0)
        self._pdl, self._cooperative = pdl, cooperative
        self._floats, self._counters = floats, counters
        self._works = counters > 0 or floats > 0
        self._shared: Callable[[], Workspace | None] = _none
        #: Blocks that no thread has: one, unless threads met. To take and put one needs no lock.
        self._idle = [self._block()]

    def _block(self) -> ParameterBlock:
        raise NotImplementedError

    def launcher(self, grid: tuple[int, int, int], params: ctypes.Structure) -> driver.Launcher:
        """What launches the program with a parameter block."""
        return driver.Launcher(
            self._kernel,
            self.index,
            grid,
            self.program.threads,
            self.program.smem_bytes,
            params,
            pdl=self._pdl,
            cooperative=self._cooperative,
        )

    def launch(self, at: Any, stream: int) -> None:
        """Enqueue, for the addresses of A, B and the output (of both gradients: of G, W and dX, and of G, X
        and dW), on a raw stream of the device, which must be the current one.
        """
        # A repeat pays for all of this; a Python call is 0.15 us of it, so there are few.
        try:
            block = self._idle.pop()
        except IndexError:
            block = self._block()
        try:
            if at != block.at:
                block.point(at, self.index)
            if self._works:
                space = self.workspace or (not stream and self._shared()) or self._stream_space(stream)
                if space.pointers is not block.pointers:
                    block.work_in(space.pointers)
                if space is self.workspace:
                    space.used_on(stream)
            launcher = block.launcher
            if stream != launcher.stream:
                launcher.move(stream)
            (status,) = launcher.enqueue()
            if status:
                launcher.retry(status)
        finally:
            self._idle.append(block)

    def _stream_space(self, stream: int) -> Workspace:
        """The stream's workspace, to be held until the launch is enqueued. It is looked up again only when it
        is gone (0.5 us; a weak reference, so that one outgrown is not kept); under capture a new one from the
        capture's pool: the graph owns its memory, and zeroes the counters. The default stream, 0, is never
        captured: to ask takes 0.4 us.
        """
        if stream and torch._C._cuda_isCurrentStreamCapturing():
            return Workspace(self._floats, self._counters, self.device)
        space = self._shared()
        if space is None:
            space = WORKSPACES.get(self._floats, self._counters, self.device, stream)
            self._shared = weakref.ref(space)
        return space


class BoundPlan(Bound):
    """A plan's GEMM, bound."""

    def __init__(
        self, plan: Plan, device: torch.device, *, pdl: bool, workspace: Workspace | None = None
    ) -> None:
        self.plan = plan
        super().__init__(
            plan.program,
            device,
            pdl=pdl,
            cooperative=plan.reduction == "spread",  # its CTAs wait for each other
            floats=plan.partial_floats,
            counters=plan.counters,
            workspace=workspace,
        )

    def _block(self) -> ParameterBlock:
        boxes = self.program.boxes
        mapped = aligned(MappedParams)
        mapped.params = parameters(self.plan)
        params = mapped.params
        launcher = self.launcher(self.plan.grid, mapped if boxes else params)
        return ParameterBlock((Gemm(self.plan, mapped, boxes),), params, launcher)


class BoundBackward(Bound):
    """Both gradients in one launch, bound."""

    def __init__(
        self, plan: BackwardPlan, device: torch.device, *, pdl: bool, workspace: Workspace | None = None
    ) -> None:
        self.plan = plan
        super().__init__(
            plan.program,
            device,
            pdl=pdl,
            floats=plan.wgrad.partial_floats,
            counters=plan.wgrad.counters,
            workspace=workspace,
        )

    def _block(self) -> ParameterBlock:
        plan, boxes = self.plan, self.program.boxes
        block = aligned(BackwardParams)
        block.dgrad.params, block.wgrad.params = parameters(plan.dgrad), parameters(plan.wgrad)
        block.dgrad_ctas = plan.ctas[0]
        # All CTAs of a planted program spin.
        block.dgrad.params.spin = block.wgrad.params.spin
        gemms = Gemm(plan.dgrad, block.dgrad, boxes[:2]), Gemm(plan.wgrad, block.wgrad, boxes[2:])
        return ParameterBlock(gemms, block.wgrad.params, self.launcher((sum(plan.ctas), 1, 1), block))


def _none() -> None:
    return None
