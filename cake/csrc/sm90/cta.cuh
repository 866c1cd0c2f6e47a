// What a CTA of the sm90 family's GEMMs has to do: its tiles, its part of K, what comes next.
#pragma once
#ifndef FP16X2
#define FP16X2 0
#endif
#include "common/ampere.cuh"
#include "common/acquire.cuh"
#include "common/planted.cuh"
#include "common/fp16x2.cuh"
#include "common/hopper.cuh"
#include "common/router.cuh"
#include "common/wgmma.cuh"

namespace cake {

constexpr int BK = CHUNK, STEPS = CHUNK / 16;
constexpr int MMA_BARRIER = 1;  // number of the barrier of the MMA warpgroups
static_assert(CHUNK == 64, "a stage is a promotion chunk of 4 steps");

// The parameters of a GEMM, and its operands as the copies' hardware sees them. Mirrored by cake/launch/router.py.
struct MappedParams {
  Params params;
  TensorMap a, b;
};
static_assert(sizeof(Params) == 120 && sizeof(MappedParams) == 384, "");

// A CTA of a GEMM: it walks over tiles `tile`, `tile + walkers`, ..., and has part `part` of their K.
struct Cta {
  int tile, walkers, part, parts;
};

// Its part of K.
struct Span {
  int k_begin, chunks;
};

__device__ __forceinline__ Span span_of(const Params& p, const Cta& cta) {
  const int k_begin = cta.part * p.hold * p.segment, k_end = min(p.k, k_begin + p.hold * p.segment);
  return {k_begin, (k_end - k_begin + CHUNK - 1) / CHUNK};
}

template <int BM, int BN>
__device__ __forceinline__ void origin(const Params& p, int tile, int& m0, int& n0) {
  int tile_m, tile_n;
  locate(p, tile, tile_m, tile_n);
  m0 = tile_m * BM, n0 = tile_n * BN;
}

// The chunk to be let go next, of all chunks of all tiles: of a tile every `every`-th from its `first` on.
template <int BM, int BN>
struct Source {
  int tile, k, m0, n0;
  int k_first, k_end, k_step;

  __device__ __forceinline__ void begin(const Params& p, const Cta& cta, const Span& s, int first, int every) {
    k_step = every * CHUNK;
    k = k_first = s.k_begin + first * CHUNK, k_end = s.k_begin + s.chunks * CHUNK;
    tile = k < k_end ? cta.tile : tiles_of(p);
    origin<BM, BN>(p, tile, m0, n0);
  }
  __device__ __forceinline__ bool left(const Params& p) const { return tile < tiles_of(p); }
  __device__ __forceinline__ void advance(const Params& p, const Cta& cta) {
    if ((k += k_step) < k_end) return;
    k = k_first, tile += cta.walkers;
    origin<BM, BN>(p, tile, m0, n0);
  }
};

}  // namespace cake
