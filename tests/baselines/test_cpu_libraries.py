from __future__ import annotations

import numpy as np
import pytest
import torch

import baselines
from baselines import torch_blas
from baselines.gemm import Gemm, Unsupported

WORKSPACE = 1 << 20


@pytest.mark.parametrize("kind", ["fwd", "dgrad", "wgrad"])
@pytest.mark.parametrize("pad", [0, 5])
@pytest.mark.parametrize("index", [0, 1])
def test_the_product_against_fp64(gemm_of, error, kind: str, pad: int, index: int) -> None:
    gemm = gemm_of(kind, 33, 200, 24, pad=pad)
    (launch,) = baselines.libraries("cpu", WORKSPACE)[index].candidates(gemm)
    launch.run()
    assert error(gemm) < 1e-6


@pytest.mark.parametrize("index", [0, 1])
def test_an_output_with_contiguous_columns_inside_a_wider_buffer(error, index: int) -> None:
    torch.manual_seed(1)
    buffer = torch.full((30, 40), float("nan"))
    gemm = Gemm("fwd", torch.randn(16, 50), torch.randn(50, 24), buffer.t()[8:24, 3:27])
    (launch,) = baselines.libraries("cpu", WORKSPACE)[index].candidates(gemm)
    launch.run()
    assert error(gemm) < 1e-6
    assert int(buffer.isnan().sum()) == buffer.numel() - gemm.out.numel()


def test_provenance_names_the_blas() -> None:
    gemm = Gemm("fwd", torch.ones(2, 3), torch.ones(3, 4), torch.empty(2, 4))
    by_torch, by_numpy = (x.candidates(gemm)[0].call for x in baselines.libraries("cpu", WORKSPACE))
    assert by_torch.version.startswith(f"torch {torch.__version__}, ")
    assert by_torch.path.endswith(".so")
    assert by_numpy.version.startswith(f"numpy {np.__version__}, ")
    assert "numpy" in by_numpy.path or by_numpy.path == ""


def test_views_of_another_device_are_unsupported() -> None:
    t = torch.ones(2, 2, device="meta")
    for library in baselines.libraries("cpu", WORKSPACE):
        with pytest.raises(Unsupported, match=r"on meta; needs a 2-D torch.float32 view on cpu"):
            library.candidates(Gemm("fwd", t, t, t))


def test_blas_words() -> None:
    mkl = "  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 1\n  - BLAS_INFO=mkl, X=1"
    assert torch_blas.blas_words(mkl) == "mkl 2024.2"
    assert torch_blas.blas_words("BLAS_INFO=open, X=1") == "open"
    assert torch_blas.blas_words("") == "unknown BLAS"


@pytest.mark.parametrize("legacy", ["highest", "high"])
def test_tf32_is_off_whichever_way_it_was_set(legacy: str) -> None:
    torch.set_float32_matmul_precision(legacy)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch_blas.require_ieee()
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.backends.cuda.matmul.allow_tf32 is False  # raises where old and new settings disagree


def test_torch_gets_the_workspace_of_the_other_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(torch_blas.WORKSPACE_VARIABLE, "")  # so that monkeypatch restores it
    monkeypatch.delenv(torch_blas.WORKSPACE_VARIABLE)
    torch_blas.set_workspace(32 * 2**20)
    torch_blas.set_workspace(32 * 2**20)
    with pytest.raises(ValueError, match=r"CUBLAS_WORKSPACE_CONFIG=:32768:1 gives torch 33554432 .*unset it"):
        torch_blas.set_workspace(2**20)
    assert torch_blas.configured_workspace(":4096:2:16:8") == 2 * 4096 * 1024 + 8 * 16 * 1024
