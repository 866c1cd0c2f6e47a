from __future__ import annotations

import pytest

from baselines.emulation import judge

# As cuBLAS names them: native FP32 on Hopper and on Blackwell, and an emulated product with its helper.
HOPPER = ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4",)
BLACKWELL = ("cutlass_80_simt_sgemm_128x128_8x4_tn_align1", "splitKreduce_kernel<32, 16, int, float>")
EMULATED = (
    "nvjet_sm100_sss_emulated_bf16x9_128x128_64x4_2cta_TNN",
    "splitKreduce_kernel<32, 16, int, float>",
)
NO_DEVICE = "does not emulate BF16x9 (only 10.0 and 10.3 do)"
UNSEEN = "kernel names were not seen, so emulation is not proven"


@pytest.mark.parametrize("capability", [(10, 0), (10, 3)])
def test_ok_where_device_kernels_and_bits_say_so(capability: tuple[int, int]) -> None:
    assert judge(capability, EMULATED, BLACKWELL, bits_equal=False) == ("ok", f"emulated by {EMULATED[0]}")


@pytest.mark.parametrize(
    "capability, emulated, native, bits_equal, reason",
    [
        ((9, 0), HOPPER, HOPPER, True, f"compute capability 9.0 {NO_DEVICE}"),
        ((9, 0), EMULATED, HOPPER, False, f"compute capability 9.0 {NO_DEVICE}"),
        ((10, 7), EMULATED, BLACKWELL, False, f"compute capability 10.7 {NO_DEVICE}"),
        ((10, 0), BLACKWELL, BLACKWELL, True, f"same kernels as the native call: {', '.join(BLACKWELL)}"),
        ((10, 0), BLACKWELL[:1], BLACKWELL, False, f"same kernels as the native call: {BLACKWELL[0]}"),
        ((10, 0), EMULATED, BLACKWELL, True, "same bits as the native call"),
        ((10, 0), (), BLACKWELL, False, UNSEEN),
        ((10, 0), EMULATED, (), False, UNSEEN),
    ],
)
def test_fell_back_with_its_reason(capability, emulated, native, bits_equal: bool, reason: str) -> None:
    assert judge(capability, emulated, native, bits_equal) == ("fell-back", reason)
