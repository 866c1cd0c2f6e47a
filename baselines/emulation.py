"""Whether a BF16x9 call really emulated. Where cuBLAS cannot, it silently runs native FP32."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

#: Compute capabilities on which cuBLAS emulates FP32 by BF16x9. On 9.0 the native kernels ran.
EMULATING = frozenset({(10, 0), (10, 3)})


def judge(
    compute_capability: tuple[int, int],
    emulated_kernels: Iterable[str],
    native_kernels: Iterable[str],
    bits_equal: bool,
) -> tuple[Literal["ok", "fell-back"], str]:
    """The status of a BF16x9 cell and its reason.

    ``emulated_kernels`` and ``native_kernels`` are the kernel names seen for the BF16x9 call and for the
    native FP32 call of the same library on the same row, ``bits_equal`` whether their outputs agree in every
    bit. ``ok`` needs a device that emulates, a kernel that the native call does not run, and other bits; what
    was not seen is not proven.
    """
    emulated, native = set(emulated_kernels), set(native_kernels)
    major, minor = compute_capability
    if (major, minor) not in EMULATING:
        supported = " and ".join(f"{a}.{b}" for a, b in sorted(EMULATING))
        return (
            "fell-back",
            f"compute capability {major}.{minor} does not emulate BF16x9 (only {supported} do)",
        )
    if not emulated or not native:
        return "fell-back", "kernel names were not seen, so emulation is not proven"
    if not emulated - native:
        return "fell-back", f"same kernels as the native call: {', '.join(sorted(emulated))}"
    if bits_equal:
        return "fell-back", "same bits as the native call"
    return "ok", f"emulated by {', '.join(sorted(emulated - native))}"
