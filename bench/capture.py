"""CUDA graphs of a launch: captured once on a side stream, replayed on the current one."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache

import torch


def capture(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Capture one call of ``run``; it is called once before, since first calls may compile or allocate.

    The graph keeps ``run``, and so the tensors and workspaces it works on. ``torch.cuda.graph`` would also
    empty torch's cache of device memory, which costs milliseconds a capture: a run makes thousands.
    """
    stream = _side_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    collecting = gc.isenabled()
    gc.disable()  # a collection that frees something of CUDA's would break the capture
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin()
            try:
                run()
            finally:
                graph.capture_end()
    finally:
        if collecting:
            gc.enable()
    graph.works_on = run  # type: ignore[attr-defined]
    return graph


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """One stream a device: torch keeps a cuBLAS workspace for every stream that ever ran a product."""
    return torch.cuda.Stream(device)
