"""``numpy.matmul`` on the CPU: the BLAS that numpy ships, usually OpenBLAS."""

from __future__ import annotations

from functools import partial

import numpy as np

from baselines import provenance
from baselines.gemm import Call, Gemm, Launch, Library, check


def numpy_fp32() -> Library:
    """The library ``numpy_fp32``: ``np.matmul(a, b, out=out)`` on the tensors' own memory."""
    return Library("numpy_fp32", "cpu", _candidates)


def _candidates(gemm: Gemm) -> list[Launch]:
    check(gemm, "cpu")
    # Arrays share the tensors' memory and keep it alive.
    a, b, out = (t.detach().numpy() for t in (gemm.a, gemm.b, gemm.out))
    blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    version = f"numpy {np.__version__}, {blas.get('name', 'unknown BLAS')} {blas.get('version', '')}".rstrip()
    # scipy maps an OpenBLAS of its own: numpy's lies in numpy.libs.
    paths = sorted(provenance.mapped("openblas"), key=lambda path: "numpy" not in path)
    call = Call("numpy_fp32", "numpy.matmul", version, paths[0] if paths else "")
    return [Launch(call, partial(np.matmul, a, b, out=out))]
