"""cuBLASLt: ``cublasLtMatmul`` through nvmath's bindings, FP32, BF16x9 or BF16, 8 algorithms each."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from baselines import provenance
from baselines.algorithm import describe, suspicion
from baselines.cuda import CUDA_R_32F, CUDA_TYPES, Runtime, load_bindings
from baselines.gemm import BF16, FP32, Accepted, Call, Gemm, Launch, Library, Unsupported, check
from baselines.layout import ColumnMajor, alignment, column_major_of

#: Heuristic choices asked for: searching 8 is worth up to 1.85x over the first one.
CHOICES = 8
# cublasComputeType_t (COMPUTE_32F never takes TF32) and cublasEmulationStrategy_t; nvmath keeps both with
# cublas, not with cublasLt.
COMPUTE_32F = 68
COMPUTE_32F_EMULATED_16BFX9 = 78
EAGER = 2


def cublaslt(
    name: str, runtime: Runtime, workspace_bytes: int, *, native: str | None = None, bindings: Any = None
) -> Library:
    """The library ``name``: the top 8 heuristic algorithms within ``workspace_bytes``, first choice first.

    ``native`` names the library it must differ from and thereby asks for BF16x9. ``bindings`` is
    ``nvmath.bindings.cublasLt`` (imported at the first use if not given). A launch runs with its device
    current; calls of one library are to be ordered by their caller, as they share one workspace a device.
    """
    calls = _CublasLt(name, runtime, workspace_bytes, FP32, native is not None, bindings)
    return Library(name, runtime.device, calls.candidates, native, searched=True)


def cublaslt_bf16(runtime: Runtime, workspace_bytes: int, *, bindings: Any = None) -> Library:
    """The library ``cublaslt_bf16``: BF16 inputs, BF16 or FP32 output, computed in FP32, single or batched.

    An algorithm that splits K may add the parts in the output's dtype. The rest as for :func:`cublaslt`.
    """
    calls = _CublasLt("cublaslt_bf16", runtime, workspace_bytes, BF16, False, bindings)
    return Library(calls.name, runtime.device, calls.candidates, searched=True)


class _CublasLt:
    """One handle and one workspace a device, and launches bound to them."""

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
        self.devices: dict[int, tuple[int, torch.Tensor]] = {}

    def candidates(self, gemm: Gemm) -> list[Launch]:
        check(gemm, self.runtime.device, self.accepted)
        layout = column_major_of(gemm)
        index = gemm.out.device.index or 0
        if self.runtime.capturing():
            # A heuristic query breaks the capture in cuBLAS 13.5.1 to 13.6.0.
            raise RuntimeError(
                f"{self.name}: ask for candidates before the capture begins, then capture run()"
            )
        handle, workspace = self._device(index)
        lt = self.bindings
        version = provenance.dotted(lt.get_property)
        path = provenance.only_mapped("libcublasLt.so")
        try:
            problem = _Problem(lt, layout, gemm, self.emulated)
            results = problem.heuristics(handle, gemm, self.workspace_bytes)
        except lt.cuBLASLtError as e:
            raise Unsupported(f"cuBLASLt {version} has no algorithm for {layout}: {e}") from e
        usable = [
            row for row in results if row["state"] == 0 and row["workspace_size"] <= self.workspace_bytes
        ]
        if not usable:
            raise Unsupported(
                f"cuBLASLt {version} has no algorithm within {self.workspace_bytes} bytes for {layout}"
            )
        launches = []
        for row in usable:
            algo = row["algo"]["data_"].copy()
            config = read_config(lt, algo)
            words = (describe(config, lt), f"workspace {int(row['workspace_size'])}")
            notes = (problem.mode, suspicion(config, version, layout.k))
            algorithm = ", ".join(word for word in (*words, *notes) if word)
            call = Call(self.name, "cublasLtMatmul", "cuBLASLt " + version, path, algorithm)
            arguments = problem.arguments(handle, gemm, algo, workspace)
            # The handle lives as long as this object: launches may outlive the library that made them.
            alive = (self, problem, gemm, algo)
            launches.append(Launch(call, _bound(lt.matmul, arguments, self.runtime.stream(), index, alive)))
        return launches

    def _device(self, index: int) -> tuple[int, torch.Tensor]:
        if index not in self.devices:
            if self.bindings is None:
                self.bindings = load_bindings("cublasLt")
            with self.runtime.on(index):
                workspace = self.runtime.workspace(self.workspace_bytes, index)
                handle = self.bindings.create()
            # Not at exit: by then the CUDA context may be gone.
            weakref.finalize(self, self.bindings.destroy, handle).atexit = False
            self.devices[index] = (handle, workspace)
        return self.devices[index]


class _Problem:
    """The descriptors of one product, and its scalars; freed with the last launch that uses them."""

    def __init__(self, lt: Any, layout: ColumnMajor, gemm: Gemm, emulated: bool) -> None:
        self.lt = lt
        self.layout = layout
        self.mode = ""
        self.scalars = (ctypes.c_float * 2)(1.0, 0.0)
        self.alpha = ctypes.addressof(self.scalars)
        self.beta = self.alpha + ctypes.sizeof(ctypes.c_float)
        compute = COMPUTE_32F_EMULATED_16BFX9 if emulated else COMPUTE_32F
        self.desc: int = lt.matmul_desc_create(compute, CUDA_R_32F)
        self._free_at_end(lt.matmul_desc_destroy, self.desc)
        for name, transposed in (("TRANSA", layout.transa), ("TRANSB", layout.transb)):
            self._set_desc(name, np.int32(transposed))  # CUBLAS_OP_N is 0, CUBLAS_OP_T is 1
        if emulated:
            self._ask_for_emulation()
        # The inputs are of one dtype, so it does not matter which is A.
        self.a = self._matrix(gemm.a.dtype, *layout.stored_a, layout.lda, layout.stride_a)
        self.b = self._matrix(gemm.a.dtype, *layout.stored_b, layout.ldb, layout.stride_b)
        self.c = self._matrix(gemm.out.dtype, layout.m, layout.n, layout.ldc, layout.stride_c)

    def heuristics(self, handle: int, gemm: Gemm, workspace_bytes: int) -> np.ndarray:
        """The library's choices, best first, as an array of ``cublasLtMatmulHeuristicResult_t``."""
        lt = self.lt
        wanted = lt.MatmulPreferenceAttribute
        first, second = self.operands(gemm)
        values = {
            wanted.MAX_WORKSPACE_BYTES: np.uint64(workspace_bytes),
            wanted.MIN_ALIGNMENT_A_BYTES: np.uint32(alignment(first)),
            wanted.MIN_ALIGNMENT_B_BYTES: np.uint32(alignment(second)),
            wanted.MIN_ALIGNMENT_C_BYTES: np.uint32(alignment(gemm.out.data_ptr())),
            wanted.MIN_ALIGNMENT_D_BYTES: np.uint32(alignment(gemm.out.data_ptr())),
        }
        preference = lt.matmul_preference_create()
        try:
            for attribute, value in values.items():
                buffer = np.array([value])
                lt.matmul_preference_set_attribute(
                    preference, int(attribute), buffer.ctypes.data, buffer.nbytes
                )
            results = np.zeros(CHOICES, dtype=lt.matmul_heuristic_result_dtype)
            count = np.zeros(1, dtype=np.int32)
            lt.matmul_algo_get_heuristic(
                handle,
                self.desc,
                self.a,
                self.b,
                self.c,
                self.c,
                preference,
                CHOICES,
                results.ctypes.data,
                count.ctypes.data,
            )
        finally:
            lt.matmul_preference_destroy(preference)
        return results[: int(count[0])]

    def operands(self, gemm: Gemm) -> tuple[int, int]:
        """The addresses of the call's A and B."""
        a, b = gemm.a.data_ptr(), gemm.b.data_ptr()
        return (b, a) if self.layout.swapped else (a, b)

    def arguments(
        self, handle: int, gemm: Gemm, algo: np.ndarray, workspace: torch.Tensor
    ) -> tuple[int, ...]:
        """What ``cublasLtMatmul`` takes, up to the stream. C is D, as beta is 0 and C is never read."""
        first, second = self.operands(gemm)
        out = gemm.out.data_ptr()
        return (
            handle,
            self.desc,
            self.alpha,
            first,
            self.a,
            second,
            self.b,
            self.beta,
            out,
            self.c,
            out,
            self.c,
            algo.ctypes.data,
            workspace.data_ptr(),
            workspace.numel(),
        )

    def _ask_for_emulation(self) -> None:
        """Strategy EAGER: DEFAULT may decline by shape. Older libraries have no such descriptor: noted."""
        lt = self.lt
        strategy = np.array([EAGER], dtype=np.int32)
        try:
            emulation = lt.emulation_desc_create()
            self._free_at_end(lt.emulation_desc_destroy, emulation)
            attribute = int(lt.EmulationDescAttribute.STRATEGY)
            lt.emulation_desc_set_attribute(emulation, attribute, strategy.ctypes.data, strategy.nbytes)
            # The attribute is the descriptor's address: 8 bytes, not the int32 of nvmath 1.0.0's helper.
            self._set_desc("EMULATION_DESCRIPTOR", np.int64(emulation))
            self.mode = "BF16x9, strategy EAGER"
        except (lt.cuBLASLtError, RuntimeError) as e:
            self.mode = f"BF16x9, strategy not settable ({e})"

    def _set_desc(self, name: str, value: np.generic) -> None:
        buffer = np.array([value])
        attribute = int(getattr(self.lt.MatmulDescAttribute, name))
        self.lt.matmul_desc_set_attribute(self.desc, attribute, buffer.ctypes.data, buffer.nbytes)

    def _matrix(self, dtype: torch.dtype, rows: int, cols: int, ld: int, stride: int) -> int:
        lt = self.lt
        address: int = lt.matrix_layout_create(CUDA_TYPES[dtype], rows, cols, ld)
        self._free_at_end(lt.matrix_layout_destroy, address)
        if self.layout.batch > 1:
            wanted = lt.MatrixLayoutAttribute
            values = {
                wanted.BATCH_COUNT: np.int32(self.layout.batch),
                wanted.STRIDED_BATCH_OFFSET: np.int64(stride),
            }
            for attribute, value in values.items():
                buffer = np.array([value])
                lt.matrix_layout_set_attribute(address, int(attribute), buffer.ctypes.data, buffer.nbytes)
        return address

    def _free_at_end(self, destroy: Callable[[int], Any], address: int) -> None:
        weakref.finalize(self, destroy, address).atexit = False


def read_config(lt: Any, algo: np.ndarray) -> dict[str, int]:
    """The settings of a ``cublasLtMatmulAlgo_t`` by name, as far as this library version knows them."""
    config = {}
    written = np.zeros(1, dtype=np.uint64)
    for attribute in lt.MatmulAlgoConfigAttribute:
        value = np.zeros(1, dtype=lt.get_matmul_algo_config_attribute_dtype(int(attribute)))
        try:
            lt.matmul_algo_config_get_attribute(
                algo.ctypes.data, int(attribute), value.ctypes.data, value.nbytes, written.ctypes.data
            )
        except lt.cuBLASLtError:
            continue
        config[attribute.name] = int(value[0])
    return config


def _bound(
    matmul: Callable[..., Any],
    arguments: tuple[int, ...],
    current: Callable[[int], int],
    index: int,
    alive: tuple[object, ...],
) -> Callable[[], None]:
    def run(_alive: tuple[object, ...] = alive) -> None:
        matmul(*arguments, current(index))

    return run
