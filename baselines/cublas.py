"""cuBLAS through nvmath's bindings: ``cublasSgemm`` (FP32, native or BF16x9) and ``cublasGemmEx`` (BF16)."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from baselines import provenance
from baselines.cuda import CUDA_TYPES, Runtime, load_bindings
from baselines.gemm import BF16, FP32, Accepted, Call, Gemm, Launch, Library, Unsupported, check
from baselines.layout import ColumnMajor, column_major_of

#: Sizes and leading dimensions are C ints (strides between matrices are not).
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
    calls = _Cublas(name, runtime, workspace_bytes, FP32, native is not None, bindings)
    return Library(name, runtime.device, calls.candidates, native)


def cublas_bf16(runtime: Runtime, workspace_bytes: int, *, bindings: Any = None) -> Library:
    """The library ``cublas_bf16``: a ``cublasGemmEx`` call per product, ``cublasGemmStridedBatchedEx`` per
    batch of them.

    BF16 inputs, BF16 or FP32 output, computed in FP32; where cuBLAS splits K it may add the parts in the
    output's dtype, as it does for any user. The rest as for :func:`cublas`.
    """
    calls = _Cublas("cublas_bf16", runtime, workspace_bytes, BF16, False, bindings)
    return Library(calls.name, runtime.device, calls.candidates)


class _Cublas:
    """Handles by (thread, device), and launches bound to them."""

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        workspace_bytes: int,
        accepted: Accepted,
        emulated: bool,
        bindings: Any,
    ) -> None:
        self.name = name
        self.runtime = runtime
        self.workspace_bytes = workspace_bytes
        self.accepted = accepted
        self.emulated = emulated
        self.bindings = bindings
        self.handles: dict[tuple[int, int], _Handle] = {}

    def candidates(self, gemm: Gemm) -> list[Launch]:
        check(gemm, self.runtime.device, self.accepted)
        layout = column_major_of(gemm)
        if self.accepted is FP32:
            function, binding = "cublasSgemm", "sgemm"
        elif layout.batch == 1:
            function, binding = "cublasGemmEx", "gemm_ex"
        else:
            function, binding = "cublasGemmStridedBatchedEx", "gemm_strided_batched_ex"
        for what in ("m", "n", "k", "lda", "ldb", "ldc", "batch"):
            value = getattr(layout, what)
            if value > INT_MAX:
                raise Unsupported(f"{what}={value} of {function}; needs at most {INT_MAX}")
        if self.runtime.capturing():
            # A new handle allocates, and its workspace would lie in the graph's memory.
            raise RuntimeError(
                f"{self.name}: ask for candidates before the capture begins, then capture run()"
            )
        handle = self._handle(gemm.out.device.index or 0)
        arguments = _arguments(handle, layout, gemm, typed=self.accepted is not FP32)
        version = "cuBLAS " + provenance.dotted(handle.bindings.get_property)
        path = provenance.only_mapped("libcublas.so")
        algorithm = "FP32_EMULATED_BF16X9_MATH, strategy EAGER" if self.emulated else ""
        call = Call(self.name, function, version, path, algorithm)
        function_of = getattr(handle.bindings, binding)
        return [Launch(call, _bound(handle, function_of, arguments, self.runtime.stream(), gemm))]

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


def _arguments(handle: _Handle, layout: ColumnMajor, gemm: Gemm, typed: bool) -> tuple[int, ...]:
    """What the function takes: a ``typed`` one is told dtypes, how to compute, and of a batch its strides."""
    blas = handle.bindings
    first, second = (gemm.b, gemm.a) if layout.swapped else (gemm.a, gemm.b)

    def matrix(tensor: torch.Tensor, ld: int, stride: int) -> tuple[int, ...]:
        if not typed:
            return (tensor.data_ptr(), ld)
        plain = (tensor.data_ptr(), CUDA_TYPES[tensor.dtype], ld)
        return (*plain, stride) if layout.batch > 1 else plain

    head = (
        handle.address,
        int(blas.Operation.T if layout.transa else blas.Operation.N),
        int(blas.Operation.T if layout.transb else blas.Operation.N),
        layout.m,
        layout.n,
        layout.k,
        handle.alpha,
        *matrix(first, layout.lda, layout.stride_a),
        *matrix(second, layout.ldb, layout.stride_b),
        handle.beta,
        *matrix(gemm.out, layout.ldc, layout.stride_c),
    )
    if not typed:
        return head
    count = (layout.batch,) if layout.batch > 1 else ()
    return (*head, *count, int(blas.ComputeType.COMPUTE_32F), int(blas.GemmAlgo.DFALT))


def _bound(
    handle: _Handle,
    function: Callable[..., Any],
    arguments: tuple[int, ...],
    current: Callable[[int], int],
    gemm: Gemm,
) -> Callable[[], None]:
    index = handle.index

    def run(_alive: Gemm = gemm) -> None:
        stream = current(index)
        if stream != handle.stream:
            handle.use(stream)
        function(*arguments)

    return run
