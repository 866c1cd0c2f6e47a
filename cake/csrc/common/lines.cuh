// A tile of an operand in shared memory, copied line by line in pieces of 16 bytes (sm80).
#pragma once
#include "common/ampere.cuh"

namespace cake {

// EXTENT along M or N by DEPTH along K, the unit-stride axis inside; a line takes LD elements.
template <typename T, int EXTENT, int DEPTH, bool UNIT_K, int PAD, int THREADS>
struct Lines {
  static constexpr int OUTER = UNIT_K ? EXTENT : DEPTH, INNER = UNIT_K ? DEPTH : EXTENT;
  static constexpr int LD = INNER + PAD;
  static constexpr int BYTES = OUTER * LD * (int)sizeof(T);
  static constexpr int VEC = 16 / (int)sizeof(T);

  // By all threads; zeros where the tile hangs over `extent` or `k`.
  __device__ __forceinline__ static void load(char* smem, const void* global, long long ld, int e0, int extent, int k0,
                                              int k) {
    const int outer0 = UNIT_K ? e0 : k0, inner0 = UNIT_K ? k0 : e0;
    const int outer_end = UNIT_K ? extent : k, inner_end = UNIT_K ? k : extent;
    const T* base = static_cast<const T*>(global);
#pragma unroll
    for (int i = 0; i < OUTER * INNER / VEC / THREADS; ++i) {
      const int v = i * THREADS + threadIdx.x;
      const int outer = v / (INNER / VEC), inner = v % (INNER / VEC) * VEC;
      const int left = outer0 + outer < outer_end ? inner_end - (inner0 + inner) : 0;
      const int count = left < 0 ? 0 : (left > VEC ? VEC : left);
      const T* from = count ? base + (outer0 + outer) * ld + inner0 + inner : base;
      copy_some(smem + (outer * LD + inner) * sizeof(T), from, count * (int)sizeof(T));
    }
  }
};

}  // namespace cake
