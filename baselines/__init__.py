"""Baselines: library calls that do the same product as cake, each with its provenance. One file per library.

Importing this package imports neither torch nor CUDA, so that :func:`baselines.provenance.preload` can run
first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from baselines.gemm import Library

__all__ = ["libraries"]


#: The suites that have libraries: FP32 products of a router, BF16 products of dense projections.
SUITES = ("router", "dense")


def libraries(device: str, workspace_bytes: int, suite: str = "router") -> list[Library]:
    """The libraries of ``device`` (``cuda`` or ``cpu``) for the products of ``suite`` (``router``: FP32,
    ``dense``: BF16 and batches) in print order, each given ``workspace_bytes``.

    Build them before the process's first ``torch.mm`` on a GPU: torch reads its workspace size once. Shared
    libraries are loaded at the first ``candidates(gemm)``, which raises ``Unsupported`` where one is missing.
    Raises ``ValueError`` for another device or suite, or a workspace that is no positive multiple of 1024
    bytes (torch takes KiB).
    """
    from baselines.cublas import cublas, cublas_bf16
    from baselines.cublaslt import cublaslt, cublaslt_bf16
    from baselines.cuda import Cuda
    from baselines.numpy_blas import numpy_fp32
    from baselines.torch_blas import torch_bf16, torch_fp32

    if workspace_bytes <= 0 or workspace_bytes % 1024:
        raise ValueError(f"{workspace_bytes=}; needs a positive multiple of 1024, e.g. {32 * 2**20}")
    if suite not in SUITES:
        raise ValueError(f"{suite=}; needs one of {', '.join(map(repr, SUITES))}")
    if device == "cpu":
        if suite == "dense":
            return [torch_bf16("cpu", workspace_bytes)]
        return [torch_fp32("cpu", workspace_bytes), numpy_fp32()]
    if device == "cuda":
        cuda = Cuda()
        if suite == "dense":
            return [
                torch_bf16("cuda", workspace_bytes),
                cublas_bf16(cuda, workspace_bytes),
                cublaslt_bf16(cuda, workspace_bytes),
            ]
        return [
            torch_fp32("cuda", workspace_bytes),
            cublas("cublas_fp32", cuda, workspace_bytes),
            cublaslt("cublaslt_fp32", cuda, workspace_bytes),
            cublas("cublas_bf16x9", cuda, workspace_bytes, native="cublas_fp32"),
            cublaslt("cublaslt_bf16x9", cuda, workspace_bytes, native="cublaslt_fp32"),
        ]
    raise ValueError(f"{device=}; needs 'cuda' or 'cpu'")
