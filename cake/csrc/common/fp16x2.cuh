// FP32 values as two FP16 parts with a scale for each row and K chunk: x = 2^e (h + 2^-11 l), two neighbours along K packed
// in one register (lower half = lower k).
#pragma once
#include "common/pack.cuh"

namespace cake {

constexpr float LOW_SCALE = 2048.f;

// 2^e, for -126 <= e <= 127.
__device__ __forceinline__ float power_of_two(int e) { return __int_as_float((e + 127) << 23); }

// e of a row's chunk whose largest magnitude has these bits: scaled by 2^-e it is below 2^15, so that sums of 64 products
// are far from overflow and what is 2^-28 of it keeps 22 bits. Infinities and NaNs have one too, and stay what they are.
__device__ __forceinline__ int scale_exponent(unsigned largest) {
  const int e = (int)(largest >> 23) - 127 - 14;
  return e < -126 ? -126 : e;
}

// The parts of two values whose rows' chunks are scaled by s0 and s1. Both differences are exact.
__device__ __forceinline__ void split_fp16x2(float x0, float x1, float s0, float s1, unsigned (&part)[2]) {
  x0 *= s0, x1 *= s1;
  float h0, h1;
  part[0] = pack_fp16(x0, x1);
  unpack_fp16(part[0], h0, h1);
  part[1] = pack_fp16((x0 - h0) * LOW_SCALE, (x1 - h1) * LOW_SCALE);
}

}  // namespace cake
