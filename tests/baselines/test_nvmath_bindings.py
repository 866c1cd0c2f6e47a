"""What the baselines take for granted of nvmath's bindings, checked against the module itself."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import baselines
from baselines import cublaslt, cuda

nvmath = pytest.importorskip("nvmath")
blas = pytest.importorskip("nvmath.bindings.cublas")
lt = pytest.importorskip("nvmath.bindings.cublasLt")

SIGNATURES = {
    (blas, "sgemm"): "handle transa transb m n k alpha a lda b ldb beta c ldc",
    (blas, "gemm_ex"): "handle transa transb m n k alpha a atype lda b btype ldb beta c ctype ldc "
    "compute_type algo",
    (blas, "gemm_strided_batched_ex"): "handle transa transb m n k alpha a atype lda stride_a b btype ldb "
    "stride_b beta c ctype ldc stride_c batch_count compute_type algo",
    (blas, "set_workspace"): "handle workspace workspace_size_in_bytes",
    (blas, "set_stream"): "handle stream_id",
    (blas, "set_math_mode"): "handle mode",
    (blas, "set_emulation_strategy"): "handle emulation_strategy",
    (lt, "matmul"): "light_handle compute_desc alpha a adesc b bdesc beta c cdesc d ddesc algo workspace "
    "workspace_size_in_bytes stream",
    (lt, "matmul_algo_get_heuristic"): "light_handle operation_desc adesc bdesc cdesc ddesc preference "
    "requested_algo_count heuristic_results_array return_algo_count",
    (lt, "matmul_algo_config_get_attribute"): "algo attr buf size_in_bytes size_written",
    (lt, "matmul_desc_set_attribute"): "matmul_desc attr buf size_in_bytes",
    (lt, "matmul_preference_set_attribute"): "pref attr buf size_in_bytes",
    (lt, "emulation_desc_set_attribute"): "emulation_desc attr buf size_in_bytes",
    (lt, "matrix_layout_create"): "type rows cols ld",
    (lt, "matrix_layout_set_attribute"): "mat_layout attr buf size_in_bytes",
    (lt, "matmul_desc_create"): "compute_type scale_type",
}


@pytest.mark.parametrize("module, name", SIGNATURES)
def test_arguments_come_in_the_order_in_which_they_are_given(module, name: str) -> None:
    line = getattr(module, name).__doc__.splitlines()[0]
    given = line[line.index("(") + 1 : line.index(")")].split(", ")
    assert " ".join(argument.split()[-1] for argument in given) == SIGNATURES[module, name]


def test_numbers_asked_for_are_those_of_the_bindings() -> None:
    assert cublaslt.COMPUTE_32F == blas.ComputeType.COMPUTE_32F
    assert cublaslt.COMPUTE_32F_EMULATED_16BFX9 == blas.ComputeType.COMPUTE_32F_EMULATED_16BFX9
    assert cuda.CUDA_R_32F == nvmath.CudaDataType.CUDA_R_32F
    assert cuda.CUDA_R_16BF == nvmath.CudaDataType.CUDA_R_16BF
    assert cublaslt.EAGER == blas.EmulationStrategy.EAGER


@pytest.mark.parametrize("name, real", [("Cublas", blas), ("CublasLt", lt)])
def test_the_doubles_have_the_numbers_and_names_of_the_bindings(fake, name: str, real) -> None:
    double = getattr(fake, name)
    for each, value in vars(double).items():
        if hasattr(value, "__members__"):
            numbers = {member.name: int(member) for member in value}
            assert numbers == {member: int(getattr(real, each)[member]) for member in numbers}
        elif not each.startswith("_") and each != "CONFIG_TYPES":
            assert hasattr(real, each), each


def test_buffer_types(fake) -> None:
    assert fake.CublasLt.matmul_heuristic_result_dtype == lt.matmul_heuristic_result_dtype
    for attribute in lt.MatmulAlgoConfigAttribute:
        given = lt.get_matmul_algo_config_attribute_dtype(int(attribute))
        assert given == fake.CublasLt.CONFIG_TYPES[attribute]


REAL = """
import numpy as np, torch
from nvmath.bindings import cublasLt as lt
from baselines.cublaslt import _Problem, read_config
from baselines.gemm import Gemm
from baselines.layout import column_major_of

try:
    print(lt.get_property(0))
except RuntimeError as e:
    raise SystemExit(f"skip: {e}")
gemm = Gemm("fwd", torch.empty(4, 8), torch.empty(16, 8).t(), torch.empty(4, 16))
problem = _Problem(lt, column_major_of(gemm), gemm, emulated=True)


def read(getter, object, attribute, dtype):
    value, written = np.zeros(1, dtype), np.zeros(1, np.uint64)
    getter(object, int(attribute), value.ctypes.data, value.nbytes, written.ctypes.data)
    return int(value[0])


at = lt.MatmulDescAttribute
fields = ("COMPUTE_TYPE", "SCALE_TYPE", "POINTER_MODE", "TRANSA", "TRANSB")
facts = {name: read(lt.matmul_desc_get_attribute, problem.desc, at[name], np.int32) for name in fields}
emulation = read(lt.matmul_desc_get_attribute, problem.desc, at.EMULATION_DESCRIPTOR, np.int64)
strategy = lt.EmulationDescAttribute.STRATEGY
facts["STRATEGY"] = read(lt.emulation_desc_get_attribute, emulation, strategy, np.int32)
print({**facts, "mode": problem.mode})
batch = Gemm("fwd", *(torch.empty(3, 4, 4, dtype=torch.bfloat16) for _ in "abo"))
batched = _Problem(lt, column_major_of(batch), batch, emulated=False)
at, kind = lt.MatrixLayoutAttribute, lt.get_matrix_layout_attribute_dtype
fields = ("TYPE", "ROWS", "LD", "BATCH_COUNT", "STRIDED_BATCH_OFFSET")
print([
    {name: read(lt.matrix_layout_get_attribute, each, at[name], kind(int(at[name]))) for name in fields}
    for each in (batched.a, batched.b, batched.c)
])
print(read_config(lt, np.zeros(8, np.uint64)))
try:
    problem.heuristics(0, gemm, 1 << 20)
except lt.cuBLASLtError as e:
    print(e)
"""


def test_the_real_library_takes_the_descriptors(stub_driver: Path) -> None:
    """cuBLASLt's descriptors are host memory, so the real library takes or refuses them without a GPU."""
    root = str(Path(baselines.__file__).parents[1])
    env = os.environ | {"PYTHONPATH": root, "LD_LIBRARY_PATH": str(stub_driver)}
    done = subprocess.run([sys.executable, "-c", REAL], env=env, text=True, capture_output=True)
    if done.stderr.startswith("skip: "):
        pytest.skip(f"no cuBLASLt here: {done.stderr[6:].strip()}")
    assert done.returncode == 0, done.stderr
    major, facts, matrices, config, refusal = done.stdout.splitlines()
    assert int(major) >= 13
    assert ast.literal_eval(facts) == {
        "COMPUTE_TYPE": 78,
        "SCALE_TYPE": 0,
        "POINTER_MODE": 0,
        "TRANSA": 1,
        "TRANSB": 0,
        "STRATEGY": 2,
        "mode": "BF16x9, strategy EAGER",
    }
    matrix = {"TYPE": 14, "ROWS": 4, "LD": 4, "BATCH_COUNT": 3, "STRIDED_BATCH_OFFSET": 16}
    assert ast.literal_eval(matrices) == [matrix] * 3
    assert list(ast.literal_eval(config)) == [attribute.name for attribute in lt.MatmulAlgoConfigAttribute]
    assert (
        "NOT_INITIALIZED" in refusal or "INVALID_VALUE" in refusal
    )  # for want of a handle: that needs a GPU
