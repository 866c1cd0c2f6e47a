// FP32 values as sums of BF16 parts, two neighbours along K packed in one register (lower half = lower k).
#pragma once
#include "common/pack.cuh"

namespace cake {

__device__ __forceinline__ float low_as_float(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_as_float(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

// x = part[0] + part[1] + part[2] exactly for |x| >= 2^-100. The leading part is truncated, so that it cannot overflow
// near FLT_MAX; the second is rounded, which gives the third, hence the dropped products, a random sign.
// Infinities and NaNs leave a NaN in part[1]: they never turn into finite numbers.
__device__ __forceinline__ void split_bf16x3(float x0, float x1, unsigned (&part)[3]) {
  part[0] = __byte_perm(__float_as_uint(x0), __float_as_uint(x1), 0x7632);
  float r0 = x0 - low_as_float(part[0]), r1 = x1 - high_as_float(part[0]);
  part[1] = pack_bf16(r0, r1);
  part[2] = pack_bf16(r0 - low_as_float(part[1]), r1 - high_as_float(part[1]));
}

}  // namespace cake
