"""Host time of a repeat eager call beside a bare kernel launch, in one process, on this machine's GPU:

python -m tests.cake.host_cost

A bare launch is ``cuLaunchKernelEx`` through cuda-python, of an empty kernel, with one configuration and
packed parameters: what Python pays at least. Both in turns, so that a slow host is slow for both.
"""

from __future__ import annotations

import ctypes
import statistics

import torch

import cake
from bench.host import time_calls
from cake.launch.driver import Launcher, load_kernel
from cake.launch.router import device_spec
from cake.program.compiler import compile_cubin

ROUNDS = 15


class Block(ctypes.Structure):
    """A parameter block as large as a GEMM's."""

    _fields_ = (("bytes", ctypes.c_char * 384),)


def main() -> None:
    source = 'struct Block { char bytes[384]; };\nextern "C" __global__ void nothing(const Block) {}\n'
    kernel = load_kernel(compile_cubin(source, device_spec(0).arch, name="nothing"), "nothing", device=0)
    bare = Launcher(kernel, 0, (1, 1, 1), 384, 0, Block())
    together = Launcher(kernel, 0, (1, 1, 1), 384, 0, Block(), cooperative=True)
    stream = torch.cuda.current_stream().cuda_stream
    X, W, G = (torch.randn(*shape, device="cuda") for shape in ((64, 4096), (256, 4096), (64, 256)))
    out, dX, dW = torch.empty_like(G), torch.empty_like(X), torch.empty_like(W)
    x, w, y = X.bfloat16(), W.bfloat16(), G.bfloat16()
    dw = torch.empty_like(w)
    calls = {
        "a bare launch": lambda: bare.launch(stream),
        "a bare cooperative launch": lambda: together.launch(stream),
        "router_forward": lambda: cake.router_forward(X, W, out=out),
        "router_dgrad": lambda: cake.router_dgrad(G, W, out=dX),
        "router_wgrad": lambda: cake.router_wgrad(G, X, out=dW),
        "router_backward": lambda: cake.router_backward(G, X, W, out=(dX, dW)),
        "projection_forward": lambda: cake.projection_forward(x, w, out=y),
        "projection_wgrad": lambda: cake.projection_wgrad(y, x, out=dw),
        "torch.mm": lambda: torch.mm(X, W.t(), out=out),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, run in calls.items():
            times[name].append(time_calls(run, torch.cuda.synchronize))
    base = statistics.median(times["a bare launch"])
    for name, us in times.items():
        median = statistics.median(us)
        print(f"{name}: {median:.1f} us a call, {median / base:.2f} times a bare launch")


if __name__ == "__main__":
    main()
