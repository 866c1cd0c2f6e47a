// csrc/common/wgmma_shared.cuh, emulated: descriptors are made there, and taken apart here as the tensor cores do. A product is done
// when it is asked for or when it is waited for (common/wgmma.cuh).
#pragma once
#include "emulated.h"
#include "common/wgmma.cuh"

#define wgmma_shared wgmma_shared_on_a_gpu
#include_next "common/wgmma_shared.cuh"
#undef wgmma_shared

namespace cake {

// Element `k` of line `line` of an operand, a line being a row of A or a column of B. Lines of 128 bytes, eight of them an atom:
// with the unit stride along K each is one of the operand's, else it has 64 elements across K.
inline float described(unsigned long long descriptor, int line, int k, bool across) {
  if (descriptor >> 62 != 1 || descriptor >> 46 & 0xffff)
    throw std::runtime_error("a descriptor without the swizzle by 128 bytes, or with an offset");
  const auto bytes = [&](int bit) { return (unsigned)(descriptor >> bit & 0x3fff) << 4; };
  const unsigned start = bytes(0), along = bytes(16), atom = bytes(32);
  unsigned at = start + (across ? line % 64 * 2 + line / 64 * along + k % 8 * 128 + k / 8 * atom
                                : line % 8 * 128 + line / 8 * atom + k * 2);
  at ^= (at >> 7 & 7) << 4;
  emulated::cta->smem.at(at + 1);
  unsigned short half;
  std::memcpy(&half, &emulated::cta->smem.at(at), 2);
  return value(half);
}

template <int N, bool A_ACROSS, bool B_ACROSS>
void multiply_shared_now(float (&d)[N / 2], unsigned long long a, unsigned long long b, bool keep) {
  const int t = threadIdx.x % 128, warp = t / 32, g = t % 32 / 4, c = t % 4;
  auto& o = emulated::cta->groups[threadIdx.x / 128];
  for (int i = t; i < 64 * 16; i += 128) o.rows[i / 16][i % 16] = described(a, i / 16, i % 16, A_ACROSS);
  for (int i = t; i < 16 * N; i += 128) o.b[i / N][i % N] = described(b, i % N, i / N, B_ACROSS);
  emulated::meet(o.barrier, 128);
  for (int h = 0; h < 2; ++h) {  // rows g and g + 8 of the warp's 16
    const float* row = o.rows[warp * 16 + g + 8 * h];
    for (int i = 0; i < N / 4; ++i) {
      float& sum = d[i / 2 * 4 + h * 2 + i % 2];
      float s = keep ? sum : 0.f;
      for (int k = 0; k < 16; ++k) s += row[k] * o.b[k][i / 2 * 8 + c * 2 + i % 2];
      sum = s;
    }
  }
  emulated::meet(o.barrier, 128);
}

template <int N, bool A_ACROSS, bool B_ACROSS>
void wgmma_shared(float (&d)[N / 2], unsigned long long a, unsigned long long b, bool keep) {
  auto multiply = [&d, a, b, keep] { multiply_shared_now<N, A_ACROSS, B_ACROSS>(d, a, b, keep); };
  if (emulated::cta->late_products)
    emulated::cta->current->batch.push_back(multiply);
  else
    multiply();
}

}  // namespace cake
