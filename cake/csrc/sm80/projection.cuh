// BF16 projections: out[M,N] = A[M,K] B[K,N], or a batch of them; FP32 sums on tensor cores (mma.sync).
//
// One CTA owns one BM x BN tile of one matrix of the batch and one segment of K, which the tensor cores sum through in steps of 16.
// Operands come by cp.async into a ring of stages, in the layout they have in memory: lines along their unit stride, whose 16-byte
// units trade places so that ldmatrix, plain for lines along K and transposing for lines across it, meets no bank twice. Where
// K is cut, the last CTA of a tile to arrive adds the segments' sums in order. The order of additions, which decides the bits, depends on
// the segments alone.
//
// PLANTED is not for use: it ends with a slowdown of known size, see common/planted.cuh.
// Defines: WARPS_M, WARPS_N, WARP_M, WARP_N (rows and columns of a warp), STAGES, STAGE_K, A_UNIT_K / B_UNIT_K (1: unit stride along K;
// 0: along M or N), OUT_BF16, COUNTERS (words from one tile's counters to the next). The output's unit stride is along N.
#pragma once
#include "common/ampere.cuh"
#include "common/arrival.cuh"
#include "common/pack.cuh"
#include "common/planted.cuh"
#include "common/raster.cuh"

namespace cake {

constexpr int BM = WARPS_M * WARP_M, BN = WARPS_N * WARP_N, THREADS = 32 * WARPS_M * WARPS_N;
constexpr int MT = WARP_M / 16, NT = WARP_N / 8;  // 16 x 8 products of a warp
constexpr int UNIT = 8;                           // elements of 16 bytes
static_assert(STAGE_K == 64 && BM % 64 == 0 && BN % 64 == 0, "lines are whole multiples of 128 bytes, whose units trade places");

// Mirrored by cake/launch/projection.py: same order, same widths.
struct Params {
  const unsigned short* a;
  const unsigned short* b;
  void* out;
  float* partial;     // [batch][tiles][parts][BM x BN] in register order
  unsigned* counter;  // [batch][tiles][COUNTERS], one used
  long long lda, ldb, ldo;                  // elements from one line along the unit stride to the next
  long long a_batch, b_batch, out_batch;    // elements from one matrix to the next
  int m, n, k;
  int tiles_m, tiles_n;  // rows and columns of tiles of one matrix
  int segment;           // K elements a segment, a multiple of STAGE_K
  int raster;
  unsigned band_inverse, raster_inverse, rest_inverse;
  int reduction;  // 0: one segment, 1: more
  int spin;       // clocks, of planted programs
};

// A CTA's share: a tile, counted through the batch, and a segment of K, one of so many parts.
struct Cta { int tile, part, parts; };

// One operand's stage in shared memory: EXTENT along M or N, STAGE_K along K, in lines along the unit stride.
template <int EXTENT, bool UNIT_K>
struct Operand {
  static constexpr int LINES = UNIT_K ? EXTENT : STAGE_K, LENGTH = UNIT_K ? STAGE_K : EXTENT;
  static constexpr int UNITS = LENGTH / UNIT, BYTES = LINES * LENGTH * 2;
  static_assert(LINES * UNITS % THREADS == 0, "all threads copy equally much");

  __device__ __forceinline__ static unsigned at(int line, int unit) { return (line * UNITS + (unit ^ (line & 7))) * 16; }

  // Elements outside the matrix, or of another segment, are zeros.
  __device__ __forceinline__ static void load(char* smem, const unsigned short* global, long long ld, int e0, int extent, int k0,
                                              int k) {
    const int line0 = UNIT_K ? e0 : k0, first0 = UNIT_K ? k0 : e0;
    const int line_end = UNIT_K ? extent : k, end = UNIT_K ? k : extent;
#pragma unroll
    for (int i = 0; i < LINES * UNITS / THREADS; ++i) {
      const int v = i * THREADS + threadIdx.x, line = v / UNITS, unit = v % UNITS;
      const int left = line0 + line < line_end ? end - (first0 + unit * UNIT) : 0;
      const int count = left < 0 ? 0 : (left > UNIT ? UNIT : left);
      const unsigned short* from = count ? global + (line0 + line) * ld + first0 + unit * UNIT : global;
      copy_some(smem + at(line, unit), from, count * 2);
    }
  }
};

using OperandA = Operand<BM, A_UNIT_K>;
using OperandB = Operand<BN, B_UNIT_K>;
constexpr int STAGE_BYTES = OperandA::BYTES + OperandB::BYTES;

using Sums = float[MT][NT][4];

// One stage of a warp: m0 and n0 are its first row and column of the tile.
__device__ __forceinline__ void multiply(unsigned sa, int m0, int n0, Sums& sums) {
  const unsigned sb = sa + OperandA::BYTES;
  const int lane = threadIdx.x % 32;
  // Registers of A: rows 0 and 8 at k 0, then at k 8; of B: k 0 and 8 of columns 0, then of columns 8.
  const int within = lane % 8, second = lane / 8 % 2 * 8, third = lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < STAGE_K; k += 16) {
    unsigned a[MT][4], b[NT][2];
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
      const int m = m0 + mt * 16;
      if constexpr (A_UNIT_K)
        load_matrices<false>(a[mt], sa + OperandA::at(m + within + second, (k + third) / UNIT));
      else
        load_matrices<true>(a[mt], sa + OperandA::at(k + within + third, (m + second) / UNIT));
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt += 2) {
      const int n = n0 + nt * 8;
      unsigned r[4];
      if constexpr (B_UNIT_K)
        load_matrices<false>(r, sb + OperandB::at(n + within + third, (k + second) / UNIT));
      else
        load_matrices<true>(r, sb + OperandB::at(k + within + second, (n + third) / UNIT));
      b[nt][0] = r[0], b[nt][1] = r[1], b[nt + 1][0] = r[2], b[nt + 1][1] = r[3];
    }
#pragma unroll
    for (int mt = 0; mt < MT; ++mt)
#pragma unroll
      for (int nt = 0; nt < NT; ++nt) mma_bf16(sums[mt][nt], a[mt], b[nt]);
  }
}

// Two neighbours in a row of the output, as far as they are inside it.
__device__ __forceinline__ void store_pair(const Params& p, long long matrix, int row, int column, float x, float y) {
  if (row >= p.m || column >= p.n) return;
  const long long at = matrix * p.out_batch + row * p.ldo + column;
  const bool both = column + 1 < p.n;
#if OUT_BF16
  unsigned short* out = static_cast<unsigned short*>(p.out) + at;
  const unsigned pair = pack_bf16(x, y);
  if (both)
    *reinterpret_cast<unsigned*>(out) = pair;
  else
    *out = (unsigned short)pair;
#else
  float* out = static_cast<float*>(p.out) + at;
  if (both)
    *reinterpret_cast<float2*>(out) = make_float2(x, y);
  else
    *out = x;
#endif
}

__device__ __forceinline__ void store_tile(const Params& p, long long matrix, int m0, int n0, const Sums& s) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int mt = 0; mt < MT; ++mt)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int nt = 0; nt < NT; ++nt)
        store_pair(p, matrix, m0 + mt * 16 + h * 8 + lane / 4, n0 + nt * 8 + lane % 4 * 2, s[mt][nt][2 * h], s[mt][nt][2 * h + 1]);
}

// A thread's sums as float4, neighbours in memory held by neighbouring threads.
__device__ __forceinline__ float4* slot(float* part, int i) { return reinterpret_cast<float4*>(part) + i * THREADS + threadIdx.x; }

// Hands a segment's sums in; whether this CTA was the last one of its tile, which then has the sum of all, in order.
__device__ __forceinline__ bool joined(const Params& p, const Cta& cta, Sums& sums) {
  unsigned* counter = p.counter + COUNTERS * (long long)cta.tile;
  float* tile = p.partial + (long long)cta.tile * cta.parts * BM * BN;
#pragma unroll
  for (int i = 0; i < MT * NT; ++i) {
    const float* v = sums[i / NT][i % NT];
    __stcg(slot(tile + (long long)cta.part * BM * BN, i), make_float4(v[0], v[1], v[2], v[3]));
  }
  if (arrive(counter) + 1 != cta.parts) return false;
#pragma unroll
  for (int i = 0; i < MT * NT * 4; ++i) (&sums[0][0][0])[i] = 0.f;
  for (int part = 0; part < cta.parts; ++part)
#pragma unroll
    for (int i = 0; i < MT * NT; ++i) {
      const float4 v = __ldcg(slot(tile + (long long)part * BM * BN, i));
      float* s = sums[i / NT][i % NT];
      s[0] += v.x, s[1] += v.y, s[2] += v.z, s[3] += v.w;
    }
  if (threadIdx.x == 0) *counter = 0;
  return true;
}

__device__ __forceinline__ void projection(const Params& p, const Cta& cta, char* smem) {
  const int tiles = tiles_of(p);
  const long long matrix = cta.tile / tiles;
  int tile_m, tile_n;
  locate(p, cta.tile % tiles, tile_m, tile_n);
  const int m0 = tile_m * BM, n0 = tile_n * BN;
  const int k_begin = cta.part * p.segment, k_end = min(p.k, k_begin + p.segment);
  const int stages = (k_end - k_begin + STAGE_K - 1) / STAGE_K;
  const int warp = threadIdx.x / 32, warp_m = warp % WARPS_M * WARP_M, warp_n = warp / WARPS_M * WARP_N;
  const unsigned short* a = p.a + matrix * p.a_batch;
  const unsigned short* b = p.b + matrix * p.b_batch;

  auto fill = [&](int stage) {
    if (stage < stages) {
      char* to = smem + stage % STAGES * STAGE_BYTES;
      OperandA::load(to, a, p.lda, m0, p.m, k_begin + stage * STAGE_K, k_end);
      OperandB::load(to + OperandA::BYTES, b, p.ldb, n0, p.n, k_begin + stage * STAGE_K, k_end);
    }
    copy_commit();
  };
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) fill(s);

  Sums sums;
#pragma unroll
  for (int i = 0; i < MT * NT * 4; ++i) (&sums[0][0][0])[i] = 0.f;
  for (int s = 0; s < stages; ++s) {
    copy_wait<STAGES - 2>();
    __syncthreads();
    fill(s + STAGES - 1);
    multiply(smem_address(smem) + s % STAGES * STAGE_BYTES, warp_m, warp_n, sums);
  }

  if (p.reduction == 0 || joined(p, cta, sums)) store_tile(p, matrix, m0 + warp_m, n0 + warp_n, sums);
#ifdef PLANTED
  __syncthreads();
  if (threadIdx.x == 0) spin(p.spin);
#endif
}

}  // namespace cake
