"""cuBLAS: ``cublasSgemm`` through nvmath's bindings, native FP32 or BF16x9-emulated."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import Any

from baselines import provenance
from baselines.cuda import Runtime, load_bindings
from baselines.gemm import Call, Gemm, Launch, Library, Unsupported, check
from baselines.layout import column_major_of

#: ``cublasSgemm`` takes C ints.
INT_MAX = 2**31 - 1


def cublas(
    name: str, runtime: Runtime, workspace_bytes: int, *, native: str | None = None, bindings: Any = None
) -> Library:
    """The library ``name``: one ``cublasSgemm`` call per product, with ``workspace_bytes`` of user workspace.

    ``native`` names the library it must differ from and thereby asks for BF16x9. ``bindings`` is
    ``nvmath.bindings.cublas`` (imported at the first use if not given). A launch belongs to the thread that
    asked for it, and runs with its device current; calls of one library are to be ordered by their caller, as
    they share one workspace a thread and device.
    """
    calls = _Cublas(name, runtime, workspace_bytes, native is not None, bindings)
    return Library(name, runtime.device, calls.candidates, native)


class _Cublas:
    """Handles by (thread, device), and launches bound to them."""

    def __init__(
        self, name: str, runtime: Runtime, workspace_bytes: int, emulated: bool, bindings: Any
    ) -> None:
        self.name = name
        self.runtime = runtime
        self.workspace_bytes = workspace_bytes
        self.emulated = emulated
        self.bindings = bindings
        self.handles: dict[tuple[int, int], _Handle] = {}

    def candidates(self, gemm: Gemm) -> list[Launch]:
        check(gemm, self.runtime.device)
        layout = column_major_of(gemm)
        for what in ("m", "n", "k", "lda", "ldb", "ldc"):
            value = getattr(layout, what)
            if value > INT_MAX:
                raise Unsupported(f"{what}={value} of cublasSgemm; needs at most {INT_MAX}")
        if self.runtime.capturing():
            # A new handle allocates, and its workspace would lie in the graph's memory.
            raise RuntimeError(
                f"{self.name}: ask for candidates before the capture begins, then capture run()"
            )
        handle = self._handle(gemm.out.device.index or 0)
        op = handle.bindings.Operation
        first, second = (gemm.b, gemm.a) if layout.swapped else (gemm.a, gemm.b)
        arguments = (
            handle.address,
            int(op.T if layout.transa else op.N),
            int(op.T if layout.transb else op.N),
            layout.m,
            layout.n,
            layout.k,
            handle.alpha,
            first.data_ptr(),
            layout.lda,
            second.data_ptr(),
            layout.ldb,
            handle.beta,
            gemm.out.data_ptr(),
            layout.ldc,
        )
        version = "cuBLAS " + provenance.dotted(handle.bindings.get_property)
        path = provenance.only_mapped("libcublas.so")
        algorithm = "FP32_EMULATED_BF16X9_MATH, strategy EAGER" if self.emulated else ""
        call = Call(self.name, "cublasSgemm", version, path, algorithm)
        return [Launch(call, _bound(handle, arguments, self.runtime.stream(), gemm))]

    def _handle(self, index: int) -> _Handle:
        key = (threading.get_ident(), index)
        if key not in self.handles:
            if self.bindings is None:
                self.bindings = load_bindings("cublas")
            self.handles[key] = _Handle(
                self.bindings, self.runtime, index, self.workspace_bytes, self.emulated
            )
        return self.handles[key]


class _Handle:
    """A cuBLAS handle, its workspace, its scalars, and the stream that it was last given."""

    def __init__(
        self, bindings: Any, runtime: Runtime, index: int, workspace_bytes: int, emulated: bool
    ) -> None:
        self.bindings = bindings
        self.index = index
        self.stream: int | None = None
        self.scalars = (ctypes.c_float * 2)(1.0, 0.0)
        self.alpha = ctypes.addressof(self.scalars)
        self.beta = self.alpha + ctypes.sizeof(ctypes.c_float)
        with runtime.on(index):
            self.workspace = runtime.workspace(workspace_bytes, index)
            self.address: int = bindings.create()
        # Not at exit: by then the CUDA context may be gone.
        weakref.finalize(self, bindings.destroy, self.address).atexit = False
        bindings.set_pointer_mode(self.address, int(bindings.PointerMode.HOST))
        math = bindings.Math.FP32_EMULATED_BF16X9_MATH if emulated else bindings.Math.DEFAULT_MATH
        # DEFAULT_MATH never takes TF32 for FP32 data; PEDANTIC_MATH forbids kernels that are as accurate.
        try:
            bindings.set_math_mode(self.address, int(math))
            if emulated:
                # DEFAULT may decline by shape; EAGER emulates wherever it can.
                bindings.set_emulation_strategy(self.address, int(bindings.EmulationStrategy.EAGER))
        except (bindings.cuBLASError, RuntimeError) as e:
            version = provenance.dotted(bindings.get_property)
            raise Unsupported(f"cuBLAS {version} refuses math mode {math.name}: {e}") from e

    def use(self, stream: int) -> None:
        """Send the next calls to ``stream``. cublasSetStream resets the workspace, so it is set again."""
        self.bindings.set_stream(self.address, stream)
        self.bindings.set_workspace(self.address, self.workspace.data_ptr(), self.workspace.numel())
        self.stream = stream


def _bound(
    handle: _Handle, arguments: tuple[int, ...], current: Callable[[int], int], gemm: Gemm
) -> Callable[[], None]:
    sgemm, index = handle.bindings.sgemm, handle.index

    def run(_alive: Gemm = gemm) -> None:
        stream = current(index)
        if stream != handle.stream:
            handle.use(stream)
        sgemm(*arguments)

    return run
