// Two 16-bit values in one register, the first in the lower half; rounded to nearest.
#pragma once

namespace cake {

// The instruction exists since sm_80.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  unsigned d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

__device__ __forceinline__ unsigned pack_fp16(float low, float high) {
  unsigned d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
__device__ __forceinline__ void unpack_fp16(unsigned pair, float& low, float& high) {
  asm("{.reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}" : "=f"(low), "=f"(high) : "r"(pair));
}

}  // namespace cake
