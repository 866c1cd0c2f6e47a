"""Recording doubles of nvmath's bindings. They compute on CPU memory: wrong arguments give wrong results."""

from __future__ import annotations

import ctypes
import enum
import itertools
import shutil
import subprocess
import types
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from baselines.gemm import Gemm

#: cudaDataType
TYPES = {0: torch.float32, 14: torch.bfloat16}


def stored(address: int, rows: int, cols: int, ld: int, kind: int = 0) -> torch.Tensor:
    """The column-major matrix at an address, of a cudaDataType, as a view."""
    assert ld >= max(1, rows)
    dtype = TYPES[kind]
    length = ld * (cols - 1) + rows
    memory = (ctypes.c_char * (length * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_strided((rows, cols), (1, ld))


def scalar(address: int) -> float:
    return ctypes.c_float.from_address(address).value


def number(address: int, size: int) -> int:
    return int.from_bytes(ctypes.string_at(address, size), "little")


def gemm_into(c: torch.Tensor, alpha: float, a: torch.Tensor, b: torch.Tensor, beta: float) -> None:
    """What BLAS does; with beta 0, C is not read, so NaN in it does not matter."""
    product = alpha * (a.double() @ b.double())
    c.copy_(product if beta == 0 else product + beta * c)


class Recorder:
    """Calls as (name, arguments), in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[object, ...]]] = []
        self.addresses = itertools.count(0x1000)

    def named(self, *names: str) -> list[tuple[str, tuple[object, ...]]]:
        return [call for call in self.calls if call[0] in names]

    def record(self, name: str, *arguments: object) -> None:
        self.calls.append((name, arguments))


class FakeCublas(Recorder):
    """``nvmath.bindings.cublas`` as far as the baseline uses it."""

    class cuBLASError(Exception):
        pass

    class Operation(enum.IntEnum):
        N = 0
        T = 1

    class PointerMode(enum.IntEnum):
        HOST = 0

    class Math(enum.IntEnum):
        DEFAULT_MATH = 0
        FP32_EMULATED_BF16X9_MATH = 4

    class EmulationStrategy(enum.IntEnum):
        EAGER = 2

    class ComputeType(enum.IntEnum):
        COMPUTE_32F = 68

    class GemmAlgo(enum.IntEnum):
        DFALT = -1

    def __init__(self, emulates: bool = True) -> None:
        super().__init__()
        self.emulates = emulates

    def create(self) -> int:
        self.record("create")
        return next(self.addresses)

    def destroy(self, handle: int) -> None:
        self.record("destroy", handle)

    def get_property(self, which: int) -> int:
        return (13, 1, 0)[which]

    def set_pointer_mode(self, handle: int, mode: int) -> None:
        self.record("set_pointer_mode", handle, mode)

    def set_math_mode(self, handle: int, mode: int) -> None:
        self.record("set_math_mode", handle, mode)

    def set_emulation_strategy(self, handle: int, strategy: int) -> None:
        if not self.emulates:
            raise RuntimeError("function cublasSetEmulationStrategy is not found")
        self.record("set_emulation_strategy", handle, strategy)

    def set_stream(self, handle: int, stream: int) -> None:
        self.record("set_stream", handle, stream)

    def set_workspace(self, handle: int, workspace: int, size: int) -> None:
        self.record("set_workspace", handle, workspace, size)

    def sgemm(self, handle, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc) -> None:
        self.record("sgemm", handle, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
        self._product(transa, transb, m, n, k, alpha, (a, lda, 0), (b, ldb, 0), beta, (c, ldc, 0))

    def gemm_ex(
        self, handle, transa, transb, m, n, k, alpha, a, atype, lda, b, btype, ldb, beta, c, ctype, ldc, *how
    ) -> None:
        self.record(
            "gemm_ex", handle, transa, transb, m, n, k, alpha, a, atype, lda, b, btype, ldb, beta, c, ctype,
            ldc, *how,
        )  # fmt: skip
        assert how == (self.ComputeType.COMPUTE_32F, self.GemmAlgo.DFALT)
        first, second, result = (a, lda, atype), (b, ldb, btype), (c, ldc, ctype)
        self._product(transa, transb, m, n, k, alpha, first, second, beta, result)

    def gemm_strided_batched_ex(
        self, handle, transa, transb, m, n, k, alpha, a, atype, lda, stride_a, b, btype, ldb, stride_b, beta,
        c, ctype, ldc, stride_c, batch_count, *how,
    ) -> None:  # fmt: skip
        self.record(
            "gemm_strided_batched_ex", handle, transa, transb, m, n, k, alpha, a, atype, lda, stride_a, b,
            btype, ldb, stride_b, beta, c, ctype, ldc, stride_c, batch_count, *how,
        )  # fmt: skip
        assert how == (self.ComputeType.COMPUTE_32F, self.GemmAlgo.DFALT)
        matrices = ((a, atype, lda, stride_a), (b, btype, ldb, stride_b), (c, ctype, ldc, stride_c))
        for i in range(batch_count):
            first, second, result = (
                (address + i * stride * TYPES[kind].itemsize, ld, kind)
                for address, kind, ld, stride in matrices
            )
            self._product(transa, transb, m, n, k, alpha, first, second, beta, result)

    @staticmethod
    def _product(transa, transb, m, n, k, alpha, a, b, beta, c) -> None:
        """One product of matrices given as address, leading dimension and cudaDataType."""
        left = stored(a[0], k, m, *a[1:]).T if transa else stored(a[0], m, k, *a[1:])
        right = stored(b[0], n, k, *b[1:]).T if transb else stored(b[0], k, n, *b[1:])
        gemm_into(stored(c[0], m, n, *c[1:]), scalar(alpha), left, right, scalar(beta))


class FakeCublasLt(Recorder):
    """``nvmath.bindings.cublasLt`` as far as the baseline uses it; ``offers`` are the heuristic's answers."""

    class cuBLASLtError(Exception):
        pass

    class MatmulDescAttribute(enum.IntEnum):
        TRANSA = 3
        TRANSB = 4
        EMULATION_DESCRIPTOR = 38

    class EmulationDescAttribute(enum.IntEnum):
        STRATEGY = 0

    class MatmulPreferenceAttribute(enum.IntEnum):
        MAX_WORKSPACE_BYTES = 1
        MIN_ALIGNMENT_A_BYTES = 5
        MIN_ALIGNMENT_B_BYTES = 6
        MIN_ALIGNMENT_C_BYTES = 7
        MIN_ALIGNMENT_D_BYTES = 8

    class MatrixLayoutAttribute(enum.IntEnum):
        BATCH_COUNT = 5
        STRIDED_BATCH_OFFSET = 6

    class MatmulAlgoConfigAttribute(enum.IntEnum):
        ID = 0
        TILE_ID = 1
        SPLITK_NUM = 2
        REDUCTION_SCHEME = 3
        CTA_SWIZZLING = 4
        CUSTOM_OPTION = 5
        STAGES_ID = 6
        INNER_SHAPE_ID = 7
        CLUSTER_SHAPE_ID = 8

    class MatmulTile(enum.IntEnum):
        TILE_UNDEFINED = 0
        TILE_128x64 = 18

    class MatmulStages(enum.IntEnum):
        STAGES_UNDEFINED = 0
        STAGES_32x5 = 11

    class ReductionScheme(enum.IntEnum):
        NONE = 0
        COMPUTE_TYPE = 2

    class MatmulInnerShape(enum.IntEnum):
        UNDEFINED = 0

    class ClusterShape(enum.IntEnum):
        SHAPE_AUTO = 0
        SHAPE_2x1x1 = 3

    matmul_heuristic_result_dtype = np.dtype(
        [
            ("algo", [("data_", "<u8", (8,))]),
            ("workspace_size", "<u8"),
            ("state", "<i4"),
            ("waves_count", "<f4"),
            ("reserved", "<i4", (4,)),
        ]
    )
    #: The dtypes that nvmath gives for the settings, by number.
    CONFIG_TYPES: ClassVar[list[type]] = [
        np.int32,
        np.uint32,
        np.int32,
        *[np.uint32] * 4,
        *[np.uint16] * 2,
    ]

    def __init__(self, offers: list[dict[str, int]] | None = None, descriptor: bool = True) -> None:
        super().__init__()
        self.offers = [{"ID": 66}, {"ID": 7}] if offers is None else offers
        self.descriptor = descriptor
        self.objects: dict[int, dict[str, object]] = {}

    def get_property(self, which: int) -> int:
        return (13, 1, 0)[which]

    def _new(self, **facts: object) -> int:
        address = next(self.addresses)
        self.objects[address] = dict(facts)
        return address

    def _set(
        self, address: int, enumeration: type[enum.IntEnum], attribute: int, buffer: int, size: int
    ) -> None:
        name = enumeration(attribute).name
        wide = {"EMULATION_DESCRIPTOR", "MAX_WORKSPACE_BYTES", "STRIDED_BATCH_OFFSET"}
        assert size == (8 if name in wide else 4)
        self.objects[address][name] = number(buffer, size)

    def create(self) -> int:
        self.record("create")
        return self._new()

    def destroy(self, handle: int) -> None:
        del self.objects[handle]

    def matmul_desc_create(self, compute_type: int, scale_type: int) -> int:
        self.record("matmul_desc_create", compute_type, scale_type)
        return self._new(compute=compute_type)

    def matmul_desc_destroy(self, desc: int) -> None:
        del self.objects[desc]

    def matmul_desc_set_attribute(self, desc: int, attribute: int, buffer: int, size: int) -> None:
        self._set(desc, self.MatmulDescAttribute, attribute, buffer, size)

    def emulation_desc_create(self) -> int:
        if not self.descriptor:
            raise RuntimeError("function cublasLtEmulationDescCreate is not found")
        return self._new()

    def emulation_desc_destroy(self, desc: int) -> None:
        del self.objects[desc]

    def emulation_desc_set_attribute(self, desc: int, attribute: int, buffer: int, size: int) -> None:
        self._set(desc, self.EmulationDescAttribute, attribute, buffer, size)

    def matrix_layout_create(self, kind: int, rows: int, cols: int, ld: int) -> int:
        self.record("matrix_layout_create", kind, rows, cols, ld)
        return self._new(shape=(rows, cols, ld, kind), BATCH_COUNT=1, STRIDED_BATCH_OFFSET=0)

    def matrix_layout_set_attribute(self, layout: int, attribute: int, buffer: int, size: int) -> None:
        self._set(layout, self.MatrixLayoutAttribute, attribute, buffer, size)

    def matrix_layout_destroy(self, layout: int) -> None:
        del self.objects[layout]

    def matmul_preference_create(self) -> int:
        return self._new()

    def matmul_preference_destroy(self, preference: int) -> None:
        del self.objects[preference]

    def matmul_preference_set_attribute(
        self, preference: int, attribute: int, buffer: int, size: int
    ) -> None:
        self._set(preference, self.MatmulPreferenceAttribute, attribute, buffer, size)

    def matmul_algo_get_heuristic(self, handle, desc, a, b, c, d, preference, wanted, results, count) -> None:
        self.record("matmul_algo_get_heuristic", handle, dict(self.objects[preference]), wanted)
        given = self.offers[:wanted]
        kind = self.matmul_heuristic_result_dtype
        rows = np.frombuffer((ctypes.c_char * (kind.itemsize * wanted)).from_address(results), dtype=kind)
        for i, offer in enumerate(given):
            rows["algo"]["data_"][i, 0] = i
            rows["workspace_size"][i] = offer.get("workspace", 0)
            rows["state"][i] = offer.get("state", 0)
        ctypes.c_int.from_address(count).value = len(given)

    def get_matmul_algo_config_attribute_dtype(self, attribute: int) -> type:
        return self.CONFIG_TYPES[attribute]

    def matmul_algo_config_get_attribute(self, algo, attribute, buffer, size, written) -> None:
        kind = np.dtype(self.CONFIG_TYPES[attribute])
        assert size == kind.itemsize
        value = self.offers[number(algo, 8)].get(self.MatmulAlgoConfigAttribute(attribute).name)
        if value is None:
            raise self.cuBLASLtError("CUBLAS_STATUS_INVALID_VALUE")
        ctypes.memmove(buffer, np.array([value], kind).tobytes(), size)
        ctypes.c_uint64.from_address(written).value = size

    def matmul(self, handle, desc, alpha, a, adesc, b, bdesc, beta, c, cdesc, d, ddesc, algo, *rest) -> None:
        facts = self.objects[desc]
        self.record("matmul", handle, dict(facts), number(algo, 8), *rest)
        assert (c, cdesc) == (d, ddesc)
        first, second, result = (self.objects[layout] for layout in (adesc, bdesc, ddesc))
        assert first["BATCH_COUNT"] == second["BATCH_COUNT"] == result["BATCH_COUNT"]
        for i in range(result["BATCH_COUNT"]):
            left, right, into = (
                stored(x + i * y["STRIDED_BATCH_OFFSET"] * TYPES[y["shape"][3]].itemsize, *y["shape"])
                for x, y in ((a, first), (b, second), (d, result))
            )
            left, right = (left.T if facts["TRANSA"] else left), (right.T if facts["TRANSB"] else right)
            gemm_into(into, scalar(alpha), left, right, scalar(beta))


class FakeRuntime:
    """A CPU in the place of a GPU: streams are numbers, memory is memory."""

    device = "cpu"

    def __init__(self) -> None:
        self.current = 7
        self.workspaces: list[torch.Tensor] = []
        self.in_capture = False

    def workspace(self, nbytes: int, index: int) -> torch.Tensor:
        self.workspaces.append(torch.empty(nbytes, dtype=torch.uint8))
        return self.workspaces[-1]

    def on(self, index: int) -> nullcontext[None]:
        return nullcontext()

    def stream(self) -> Callable[[int], int]:
        return lambda index: self.current

    def capturing(self) -> bool:
        return self.in_capture


@pytest.fixture
def fake() -> types.SimpleNamespace:
    """The doubles."""
    return types.SimpleNamespace(Cublas=FakeCublas, CublasLt=FakeCublasLt, Runtime=FakeRuntime)


def make_gemm(kind: str, T: int, H: int, N: int, device: str = "cpu", pad: int = 0) -> Gemm:
    """A router GEMM with seeded inputs, NaN in the output, rows padded by ``pad`` elements."""
    gen = torch.Generator().manual_seed(T * 1_000_003 + H * 1009 + N)

    def padded(rows: int, cols: int) -> torch.Tensor:
        return torch.randn(rows, cols + pad, generator=gen).to(device)[:, :cols]

    X, W, G = padded(T, H), padded(N, H), padded(T, N)
    a, b = {"fwd": (X, W.t()), "dgrad": (G, W), "wgrad": (G.t(), X)}[kind]
    out = torch.full((a.shape[0], b.shape[1] + pad), float("nan"), device=device)[:, : b.shape[1]]
    return Gemm(kind, a, b, out)


def make_projection(
    kind: str, T: int, K: int, N: int, device: str = "cpu", pad: int = 0, heads: int = 0, f32: bool = False
) -> Gemm:
    """A BF16 GEMM of a projection from K to N features, seeded, NaN in the output (FP32 where ``f32``).

    Rows are padded by ``pad`` elements. With ``heads``, X, G and the outputs of ``fwd`` and ``dgrad`` are
    [T, heads, features] permuted to heads-first, slots padded; weights and their gradient are
    [heads, N, K].
    """
    gen = torch.Generator().manual_seed(T * 1_000_003 + K * 1009 + N * 31 + heads)

    def tokens(features: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        drawn = torch.randn(T, max(heads, 1), features + pad, generator=gen).to(device, dtype)
        return drawn[..., :features].transpose(0, 1) if heads else drawn[:, 0, :features]

    def weight(dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        drawn = torch.randn(*([heads] if heads else []), N, K + pad, generator=gen) * K**-0.5
        return drawn.to(device, dtype)[..., :K]

    X, W, G = tokens(K), weight(), tokens(N)
    a, b = {"fwd": (X, W.mT), "dgrad": (G, W), "wgrad": (G.mT, X)}[kind]
    dtype = torch.float32 if f32 else torch.bfloat16
    out = weight(dtype) if kind == "wgrad" else tokens(N if kind == "fwd" else K, dtype)
    return Gemm(kind, a, b, out.fill_(float("nan")))


def error_of(gemm: Gemm) -> float:
    """Relative Frobenius error of ``gemm.out`` against FP64."""
    exact = gemm.a.double() @ gemm.b.double()
    return float((gemm.out.double() - exact).norm() / exact.norm())


@pytest.fixture
def gemm_of() -> Callable[..., Gemm]:
    return make_gemm


@pytest.fixture
def projection_of() -> Callable[..., Gemm]:
    return make_projection


@pytest.fixture
def error() -> Callable[[Gemm], float]:
    return error_of


def compile_library(path: Path, source: str) -> None:
    """A shared library of that SONAME from C source; skips where there is no gcc."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to build a stand-in library with")
    command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", str(path), "-x", "c", "-"]
    subprocess.run(command, input=source, text=True, check=True)


@pytest.fixture(scope="session")
def build_library() -> Callable[[Path, str], None]:
    return compile_library


@pytest.fixture(scope="session")
def stub_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ``libcuda.so.1`` that only knows its version, so that nvmath loads cuBLAS."""
    if torch.cuda.is_available():
        pytest.skip("a real driver is here: the gpu tests use it")
    folder = tmp_path_factory.mktemp("driver")
    compile_library(folder / "libcuda.so.1", "int cuDriverGetVersion(int* v) { *v = 13000; return 0; }")
    return folder
