from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import baselines
from baselines.torch_blas import WORKSPACE_VARIABLE

NAMES = {
    "cuda": ["torch_fp32", "cublas_fp32", "cublaslt_fp32", "cublas_bf16x9", "cublaslt_bf16x9"],
    "cpu": ["torch_fp32", "numpy_fp32"],
}
NATIVE = {"cublas_bf16x9": "cublas_fp32", "cublaslt_bf16x9": "cublaslt_fp32"}


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_libraries_in_print_order(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKSPACE_VARIABLE, ":4096:8")
    libraries = baselines.libraries(device, 32 * 2**20)
    assert [library.name for library in libraries] == NAMES[device]
    assert {library.device for library in libraries} == {device}
    assert [library.native for library in libraries] == [NATIVE.get(name) for name in NAMES[device]]
    assert [x.name for x in libraries if x.searched] == [n for n in NAMES[device] if "lt_" in n]


@pytest.mark.parametrize(
    "device, names", [("cuda", ["torch_bf16", "cublas_bf16", "cublaslt_bf16"]), ("cpu", ["torch_bf16"])]
)
def test_libraries_of_the_dense_suite(device: str, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKSPACE_VARIABLE, ":4096:8")
    libraries = baselines.libraries(device, 32 * 2**20, "dense")
    assert [library.name for library in libraries] == names
    assert {library.device for library in libraries} == {device}
    assert [library.native for library in libraries] == [None] * len(names)
    assert [x.name for x in libraries if x.searched] == [n for n in names if "lt_" in n]


def test_a_suite_without_libraries() -> None:
    with pytest.raises(ValueError, match="suite='sparse'; needs one of 'router', 'dense'"):
        baselines.libraries("cpu", 1024, "sparse")


@pytest.mark.parametrize(
    "device, nbytes, message", [("tpu", 1024, "device='tpu'"), ("cpu", 1000, "workspace_bytes=1000")]
)
def test_bad_arguments(device: str, nbytes: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        baselines.libraries(device, nbytes)


def test_the_package_imports_no_torch_and_its_libraries_no_nvmath() -> None:
    code = """
import sys
import baselines, baselines.provenance
assert "torch" not in sys.modules
baselines.libraries("cuda", 32 * 2**20)
assert not [name for name in sys.modules if name.startswith(("nvmath", "cupti"))]
"""
    root = Path(baselines.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
