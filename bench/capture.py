"""CUDA graphs of a launch: captured once on a side stream, replayed on the current one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch


def capture(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Capture one call of ``run``; it is called once before, since first calls may compile or allocate."""
    stream = _side_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """One stream a device: torch keeps a cuBLAS workspace for every stream that ever ran a product."""
    return torch.cuda.Stream(device)
