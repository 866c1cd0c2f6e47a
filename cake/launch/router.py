"""Router plans on a GPU: kernels loaded once a device, parameters bound to pointers, workspaces."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch

from ..plan.backward import BackwardKey, BackwardPlan
from ..plan.device import DeviceSpec
from ..plan.planner import Plan, ProgramKey
from ..program.compiler import compile_cubin
from ..program.registry import Box, Program, program
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
    """What ``cake::divide`` of csrc/common/router.cuh divides by a positive ``divisor`` with."""
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
def _kernel(key: ProgramKey | BackwardKey, index: int) -> tuple[Program, Any]:
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


class _Bound:
    """A program with its kernel and parameter block on one device, to be launched for any addresses.

    ``workspace`` is the launch's own; None: that of the stream it is launched on, always the same one. One
    thread at a time sets addresses and launches.
    """

    def __init__(
        self,
        key: ProgramKey | BackwardKey,
        grid: tuple[int, int, int],
        params: ctypes.Structure,
        device: torch.device,
        *,
        pdl: bool,
        cooperative: bool = False,
        floats: int = 0,
        counters: int = 0,
        workspace: Workspace | None = None,
    ) -> None:
        p, kernel = _kernel(key, device.index)
        self.device, self.index, self.workspace = device, device.index, workspace
        # The driver grants no PDL to a cooperative launch.
        pdl = pdl and not cooperative and torch.cuda.get_device_capability(device) >= (9, 0)
        self._launcher = driver.Launcher(
            kernel, device.index, grid, p.threads, p.smem_bytes, params, pdl=pdl, cooperative=cooperative
        )
        self._floats, self._counters = floats, counters
        self._works = counters > 0 or floats > 0
        self._shared: Callable[[], Workspace | None] = _none
        self._pointers: tuple[int, int] | None = None
        lock = threading.Lock()
        # Called as they are they take 0.2 us, by a with statement 0.4.
        self._acquire, self._release = lock.acquire, lock.release

    def _space(self, stream: int) -> Workspace:
        """The workspace of a launch, to be held until that is enqueued: the launch's own, or the stream's,
        looked up again only when it is gone (0.5 us; a weak reference, so that one outgrown is not kept);
        under capture a new one from the capture's pool: the graph owns its memory, and zeroes the counters.
        """
        if self.workspace is not None:
            self.workspace.used_on(stream)
            return self.workspace
        if torch._C._cuda_isCurrentStreamCapturing():
            return Workspace(self._floats, self._counters, self.device)
        space = self._shared()
        if space is None:
            space = WORKSPACES.get(self._floats, self._counters, self.device, stream)
            self._shared = weakref.ref(space)
        return space


class _Gemm:
    """A GEMM's part of a parameter block, and what its pointers are by now."""

    def __init__(self, plan: Plan, block: MappedParams, boxes: tuple[Box, ...]) -> None:
        self._params = block.params
        operands = ((block.a, plan.problem.a), (block.b, plan.problem.b))
        # None where the program does not copy by boxes.
        self._maps = [
            Mapped(ctypes.addressof(at), view, box) for (at, view), box in zip(operands, boxes, strict=False)
        ]
        #: Where A, B and the output are now.
        self.at: tuple[int, ...] = ()

    def point(self, at: Addresses) -> None:
        """Let A, B and the output be at these addresses."""
        self.at = ()
        self._params.a, self._params.b, self._params.out = at
        for mapped, address in zip(self._maps, at[:2], strict=False):
            mapped.bind(address)
        self.at = at


class BoundPlan(_Bound):
    """A plan's GEMM, bound."""

    def __init__(
        self, plan: Plan, device: torch.device, *, pdl: bool, workspace: Workspace | None = None
    ) -> None:
        boxes = program(plan.program).boxes
        mapped = aligned(MappedParams)
        mapped.params = parameters(plan)
        self._params = mapped.params
        self.plan, self._gemm = plan, _Gemm(plan, mapped, boxes)
        super().__init__(
            plan.program,
            plan.grid,
            mapped if boxes else self._params,
            device,
            pdl=pdl,
            cooperative=plan.reduction == "spread",  # its CTAs wait for each other
            floats=plan.partial_floats,
            counters=plan.counters,
            workspace=workspace,
        )

    def launch(self, at: Addresses, stream: int) -> None:
        """Enqueue, for the addresses of A, B and the output, on a raw stream of the device, which must be the
        current one.
        """
        self._acquire()
        try:
            if at != self._gemm.at:
                self._gemm.point(at)
            if self._works:
                space = self._space(stream)
                if space.pointers is not self._pointers:
                    self._params.partial, self._params.counter = self._pointers = space.pointers
            self._launcher.launch(stream)
        finally:
            self._release()


class BoundBackward(_Bound):
    """Both gradients in one launch, bound."""

    def __init__(
        self, plan: BackwardPlan, device: torch.device, *, pdl: bool, workspace: Workspace | None = None
    ) -> None:
        boxes = program(plan.program).boxes
        block = aligned(BackwardParams)
        block.dgrad.params, block.wgrad.params = parameters(plan.dgrad), parameters(plan.wgrad)
        block.dgrad_ctas = plan.ctas[0]
        # All CTAs of a planted program spin.
        block.dgrad.params.spin = block.wgrad.params.spin
        self._wgrad_params = block.wgrad.params
        self._dgrad = _Gemm(plan.dgrad, block.dgrad, boxes[:2])
        self._wgrad = _Gemm(plan.wgrad, block.wgrad, boxes[2:])
        self.plan = plan
        super().__init__(
            plan.program,
            (sum(plan.ctas), 1, 1),
            block,
            device,
            pdl=pdl,
            floats=plan.wgrad.partial_floats,
            counters=plan.wgrad.counters,
            workspace=workspace,
        )

    def launch(self, at_dx: Addresses, at_dw: Addresses, stream: int) -> None:
        """Enqueue, for the addresses of G, W and dX and of G, X and dW; see :meth:`BoundPlan.launch`."""
        self._acquire()
        try:
            for gemm, at in ((self._dgrad, at_dx), (self._wgrad, at_dw)):
                if at != gemm.at:
                    gemm.point(at)
            if self._works:
                space = self._space(stream)
                if space.pointers is not self._pointers:
                    self._wgrad_params.partial, self._wgrad_params.counter = self._pointers = space.pointers
            self._launcher.launch(stream)
        finally:
            self._release()


def _none() -> None:
    return None
