"""The L2 made cold before every step, and the proof that it is.

Cold means: the op's inputs come from DRAM, and nothing has to be written back first. So a buffer of twice the
L2 is written, which evicts everything, and then read, which leaves clean lines behind.
"""

from __future__ import annotations

import ctypes
import statistics
from pathlib import Path
from typing import Any

import torch

from bench.environment import arch_name
from bench.model import L2Proof
from bench.timers import Timer

#: The flush buffer over the L2's size: one L2 to evict, one more for replacement that is not strictly least
#: recent.
FLUSH_FACTOR = 2
#: The probe's buffer over the L2's size. Where the L2 is two halves that copy each other's lines (Hopper), a
#: quarter still fits into the half that every SM reads from.
PROBE_FACTOR = 0.25
#: How much slower the probe must be cold. By figures of an H200: 15 MB from DRAM at 3.2 to 4.3 TB/s are 3.5
#: to 4.7 us, plus 1.5 to 2.9 us of launch and latency; from L2 at some 6 TB/s 2.5 us plus 1.5. That is 1.5 to
#: 1.9; a flush that does nothing gives 1.0, one that misses half of the lines about 1.2 to 1.3.
EXPECTED_RATIO = 1.3
PROOF_UNTIMED, PROOF_STEPS = 3, 21

_SOURCE = Path(__file__).with_name("l2.cu")
_THREADS, _BLOCKS_PER_SM = 1024, 2


class Sweep(ctypes.Structure):
    """``Sweep`` of l2.cu: same order, same widths."""

    _fields_ = (("data", ctypes.c_void_p), ("count", ctypes.c_ulonglong), ("sink", ctypes.c_void_p))


def judge(cold_us: list[float], warm_us: list[float], expected_ratio: float = EXPECTED_RATIO) -> L2Proof:
    """The proof from the probe's times, cold and warm: medians, and whether cold is slower by the expected
    ratio.

    Without times on both sides nothing is proven, and the missing median is 0.
    """
    cold, warm = (statistics.median(times) if times else 0.0 for times in (cold_us, warm_us))
    return L2Proof(
        cold_us=cold,
        warm_us=warm,
        expected_ratio=expected_ratio,
        proven=bool(cold_us and warm_us) and cold >= expected_ratio * warm,
    )


class L2:
    """The last-level cache of a device. On a CPU nothing is flushed: every row of such a run is ``warm``.

    On a GPU it holds ``FLUSH_FACTOR`` times the L2 in device memory. Raises what compiling and loading
    kernels raise (:class:`cake.program.compiler.CompileError`,
    :class:`cake.launch.driver.DriverUnavailable`).
    """

    def __init__(self, device: torch.device | str) -> None:
        chosen = torch.device(device)
        self.device = torch.device("cuda", chosen.index or 0) if chosen.type == "cuda" else chosen
        self._sweeps: dict[str, Any] = {}
        if self.device.type == "cuda":
            self._load()

    def flush(self) -> None:
        """Enqueue the flush on the current stream of the device, which must be the current one."""
        if not self._sweeps:
            return
        stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        self._sweeps["bench_l2_write"].launch(stream)
        self._sweeps["bench_l2_read"].launch(stream)

    def prove(self, timer: Timer) -> L2Proof | None:
        """Time a memory-bound probe after a flush, and after a sweep of its own buffer. ``None`` on a CPU."""
        if not self._sweeps:
            return None
        with torch.cuda.device(self.device):
            cold, warm = (
                [
                    step.us
                    for step in timer.visit(
                        self._launch("bench_l2_probe"), cold=before, untimed=PROOF_UNTIMED, steps=PROOF_STEPS
                    )
                    if step.us is not None
                ]
                for before in (self.flush, self._launch("bench_l2_warm"))
            )
        return judge(cold, warm)

    def _launch(self, name: str) -> Any:
        sweep = self._sweeps[name]
        return lambda: sweep.launch(torch._C._cuda_getCurrentRawStream(self.device.index))

    def _load(self) -> None:
        from cake.launch.driver import Launcher, load_kernel
        from cake.program.compiler import compile_cubin

        index = self.device.index
        properties = torch.cuda.get_device_properties(index)
        arch = arch_name(properties.major, properties.minor)
        cubin = compile_cubin(_SOURCE.read_text(), arch, name="bench_l2")
        # Zeros: the probe never writes, and its sum must not be negative.
        flushed = torch.zeros(FLUSH_FACTOR * properties.L2_cache_size // 4, device=self.device)
        probed = torch.zeros(int(PROBE_FACTOR * properties.L2_cache_size) // 16 * 4, device=self.device)
        sink = torch.zeros(1, device=self.device)
        self._kept = flushed, probed, sink
        blocks = _BLOCKS_PER_SM * properties.multi_processor_count
        for name, buffer in (
            ("bench_l2_write", flushed),
            ("bench_l2_read", flushed),
            ("bench_l2_warm", probed),
            ("bench_l2_probe", probed),
        ):
            sweep = Sweep(buffer.data_ptr(), buffer.numel() // 4, sink.data_ptr())
            kernel = load_kernel(cubin, name, device=index)
            self._sweeps[name] = Launcher(kernel, index, (blocks, 1, 1), _THREADS, 0, sweep)
