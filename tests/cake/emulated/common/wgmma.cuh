// csrc/common/wgmma.cuh, emulated: a product is done when it is asked for or when it is waited for, from what registers and
// shared memory hold then; its additions do not truncate.
#pragma once
#include "emulated.h"
#include "common/pack.cuh"

namespace cake {

inline unsigned long long descriptor(unsigned address, unsigned along_k, unsigned along_n) {
  return address >> 4 | (unsigned long long)(along_k >> 4) << 16 | (unsigned long long)(along_n >> 4) << 32;
}
inline float value(unsigned half) { return FP16X2 ? fp16_as_float(half) : __uint_as_float(half << 16); }

template <int N, bool TRANSPOSED>
void multiply_now(float (&d)[N / 2], const unsigned (&a)[4], unsigned long long b, bool keep) {
  const int t = threadIdx.x % 128, warp = t / 32, g = t % 32 / 4, c = t % 4;
  auto& o = emulated::cta->groups[threadIdx.x / 128];
  for (int r = 0; r < 4; ++r) o.a[t][r] = a[r];
  const unsigned address = (b & 0xffff) << 4, along_k = (b >> 16 & 0xffff) << 4, along_n = (b >> 32 & 0xffff) << 4;
  for (int i = t; i < 16 * N; i += 128) {
    const int k = i / N, n = i % N;
    const unsigned in_core = TRANSPOSED ? k % 8 * 16 + n % 8 * 2 : n % 8 * 16 + k % 8 * 2;
    const unsigned at = address + k / 8 * along_k + n / 8 * along_n + in_core;
    unsigned short half;
    std::memcpy(&half, &emulated::cta->smem.at(at), 2);
    o.b[k][n] = value(half);
  }
  emulated::meet(o.barrier, 128);
  for (int h = 0; h < 2; ++h) {  // rows g and g + 8 of the warp's 16
    float row[16];
    for (int k = 0; k < 16; ++k)
      row[k] = value(o.a[warp * 32 + g * 4 + k % 8 / 2][k / 8 * 2 + h] >> k % 2 * 16 & 0xffff);
    for (int i = 0; i < N / 4; ++i) {
      float& sum = d[i / 2 * 4 + h * 2 + i % 2];
      float s = keep ? sum : 0.f;
      for (int k = 0; k < 16; ++k) s += row[k] * o.b[k][i / 2 * 8 + c * 2 + i % 2];
      sum = s;
    }
  }
  emulated::meet(o.barrier, 128);
}

template <int N, bool TRANSPOSED>
void wgmma(float (&d)[N / 2], const unsigned (&a)[4], unsigned long long b, bool keep) {
  auto multiply = [&d, &a, b, keep] { multiply_now<N, TRANSPOSED>(d, a, b, keep); };
  if (emulated::cta->late_products)
    emulated::cta->current->batch.push_back(multiply);
  else
    multiply();
}
// These converge a warp (.sync.aligned): none of its lanes gets ahead of another over them.
inline void wgmma_fence() { __syncwarp(); }
inline void wgmma_commit() {
  __syncwarp();
  auto& f = *emulated::cta->current;
  f.products.push_back(std::move(f.batch)), f.batch.clear();
}
template <int PENDING>
void wgmma_wait() {
  __syncwarp();
  auto& f = *emulated::cta->current;
  for (; f.products.size() > PENDING; f.products.pop_front())
    for (auto& multiply : f.products.front()) multiply();
}

}  // namespace cake
