// csrc/common/pack.cuh, emulated.
#pragma once
#include "emulated.h"

namespace cake {

inline unsigned bf16_of(float x) {
  const unsigned u = __float_as_uint(x);
  if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
inline unsigned fp16_of(float x) {
  const _Float16 h = (_Float16)x;
  unsigned short u;
  std::memcpy(&u, &h, 2);
  return u;
}
inline float fp16_as_float(unsigned u) {
  const unsigned short s = (unsigned short)u;
  _Float16 h;
  std::memcpy(&h, &s, 2);
  return (float)h;
}
inline unsigned pack_bf16(float low, float high) { return bf16_of(low) | bf16_of(high) << 16; }
inline unsigned pack_fp16(float low, float high) { return fp16_of(low) | fp16_of(high) << 16; }
inline void unpack_fp16(unsigned pair, float& low, float& high) {
  low = fp16_as_float(pair & 0xffff), high = fp16_as_float(pair >> 16);
}

}  // namespace cake
