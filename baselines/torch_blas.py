"""``torch.mm`` and ``torch.bmm``, FP32 or BF16: what a user gets who does nothing special.

On a GPU cuBLAS chooses, on a CPU MKL or oneDNN.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from typing import cast

import torch

from baselines import provenance
from baselines.gemm import BF16, Call, Gemm, Launch, Library, Unsupported, check
from baselines.layout import column_major_of

WORKSPACE_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"


def torch_fp32(device: str, workspace_bytes: int) -> Library:
    """The library ``torch_fp32``: ``torch.mm(a, b, out=out)``, TF32 off, with the others' workspace size.

    On a GPU torch takes that size from ``CUBLAS_WORKSPACE_CONFIG``. The variable is set here only where
    torch's default is another size: with it torch parses its text at every product, 50 us of host time that
    no user pays. Raises ``ValueError`` where it already says another size.
    """
    _take_workspace(device, workspace_bytes)
    return Library("torch_fp32", device, partial(_fp32, device))


def torch_bf16(device: str, workspace_bytes: int) -> Library:
    """The library ``torch_bf16``: ``torch.mm`` of BF16 matrices, ``torch.bmm`` of batches, to BF16 or FP32.

    Workspace and ``ValueError`` as for :func:`torch_fp32`.
    A view that BLAS does not take, torch copies on every call: inside the call's time, and the call says so.
    On a CPU torch has no FP32 output of BF16 inputs, so they are converted first, in the call's time, too.
    """
    _take_workspace(device, workspace_bytes)
    return Library("torch_bf16", device, partial(_bf16, device))


def _fp32(device: str, gemm: Gemm) -> list[Launch]:
    check(gemm, device)
    require_ieee()
    return [_launch("torch_fp32", device, "torch.mm", partial(torch.mm, gemm.a, gemm.b, out=gemm.out))]


def _bf16(device: str, gemm: Gemm) -> list[Launch]:
    check(gemm, device, BF16)
    require_ieee()
    name, multiply = ("torch.mm", torch.mm) if gemm.out.dim() == 2 else ("torch.bmm", torch.bmm)
    try:
        column_major_of(gemm)
        copies = ""
    except Unsupported as e:
        copies = f"with a copy, as {e}"
    if gemm.out.dtype == torch.bfloat16:
        run = partial(multiply, gemm.a, gemm.b, out=gemm.out)
    elif device == "cuda":
        run = partial(multiply, gemm.a, gemm.b, out_dtype=gemm.out.dtype, out=gemm.out)
    else:
        run, copies = partial(_widened, multiply, gemm), "inputs converted to FP32"
    return [_launch("torch_bf16", device, name, run, copies)]


def _widened(multiply: Callable[..., torch.Tensor], gemm: Gemm) -> torch.Tensor:
    return multiply(gemm.a.float(), gemm.b.float(), out=gemm.out)


def _launch(
    library: str, device: str, function: str, run: partial[torch.Tensor], algorithm: str = ""
) -> Launch:
    """The launch of a bare partial: a Python function around it would add 0.1 us to the host time."""
    version, path = cublas_provenance() if device == "cuda" else cpu_provenance()
    return Launch(Call(library, function, version, path, algorithm), cast(Callable[[], None], run))


def _take_workspace(device: str, workspace_bytes: int) -> None:
    """See :func:`torch_fp32`."""
    if device == "cuda":
        # Without a GPU nothing runs, whatever the size: libraries can be listed all the same.
        major = torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else 0
        if WORKSPACE_VARIABLE in os.environ or workspace_bytes != default_workspace(major):
            set_workspace(workspace_bytes)


def require_ieee() -> None:
    """Turn TF32 (and BF16 on CPUs) off for FP32 matrix products, whichever API had set it before.

    Both are called because torch refuses a product when the old and the new setting disagree.
    """
    torch.set_float32_matmul_precision("highest")
    backends = {"torch.backends.cuda": torch.backends.cuda, "torch.backends.mkldnn": torch.backends.mkldnn}
    for name, backend in backends.items():
        backend.matmul.fp32_precision = "ieee"
        found = backend.matmul.fp32_precision
        if found != "ieee":
            raise RuntimeError(f"{name}.matmul.fp32_precision is {found!r} after setting it; needs 'ieee'")


def default_workspace(major: int) -> int:
    """Bytes that torch takes by itself on a GPU of this compute capability: Hopper and newer 32 MiB."""
    return 32 << 20 if major >= 9 else configured_workspace(":4096:2:16:8")


def configured_workspace(text: str) -> int:
    """Bytes that torch makes of a ``CUBLAS_WORKSPACE_CONFIG`` like ``:4096:2:16:8`` (KiB and count)."""
    return 1024 * sum(int(size) * int(count) for size, count in re.findall(r":(\d+):(\d+)", text))


def set_workspace(nbytes: int) -> None:
    """Have torch take ``nbytes`` (a multiple of 1024) as workspace; ``ValueError`` if told otherwise."""
    given = os.environ.setdefault(WORKSPACE_VARIABLE, f":{nbytes // 1024}:1")
    if configured_workspace(given) != nbytes:
        raise ValueError(
            f"{WORKSPACE_VARIABLE}={given} gives torch {configured_workspace(given)} bytes of workspace; "
            f"needs {nbytes}, as every library of the run has; unset it"
        )


def cublas_provenance() -> tuple[str, str]:
    """Version words of torch and the cuBLAS mapped beside it, and that library's path."""
    path = provenance.only_mapped("libcublas.so")
    version = provenance.library_version(path, "cublasGetProperty") if path else "not mapped"
    return f"torch {torch.__version__}, cuBLAS {version}", path


def cpu_provenance() -> tuple[str, str]:
    """Version words of torch and the BLAS it was built with, and the library that holds it."""
    paths = provenance.mapped("libtorch_cpu")
    return f"torch {torch.__version__}, {blas_words(torch.__config__.show())}", paths[0] if paths else ""


def blas_words(config: str) -> str:
    """The BLAS named in ``torch.__config__.show()``, e.g. ``mkl 2024.2``."""
    name = re.search(r"BLAS_INFO=(\w+)", config)
    mkl = re.search(r"Math Kernel Library Version (\S+?)(?:-Product)?\s", config)
    words = name.group(1) if name else "unknown BLAS"
    return f"{words} {mkl.group(1)}" if mkl and "mkl" in words else words
