// BF16 projections since Ampere: out[b][M,N] = A[b][M,K] B[b][K,N] by mma.sync, FP32 sums, BF16 or FP32 out.
//
// A CTA has one BM x BN tile of one matrix and one part of K, a ring of STAGES by cp.async, and warps of 32 x 32. Where K is split,
// parts leave their sums in `partial`, and the last one to arrive adds all of them in order.
//
// Defines: WARPS_M, WARPS_N, STAGES, A_UNIT_K, B_UNIT_K (1: unit stride along K), OUT_BF16, OUT_UNIT_N (1: the output's unit stride is
// along N), COUNTERS, PLANTED (see common/planted.cuh).
#include "common/arrival.cuh"
#include "common/lines.cuh"
#include "common/pack.cuh"
#include "common/planted.cuh"

namespace cake {

constexpr int WARP = 32, BM = WARP * WARPS_M, BN = WARP * WARPS_N, BK = 32, THREADS = 32 * WARPS_M * WARPS_N;
constexpr int MT = WARP / 16, NT = WARP / 8;  // 16 x 8 products of a warp

// Mirrored by cake/launch/sm80_projection.py.
struct ProjectionParams {
  const void* a;
  const void* b;
  void* out;
  float* partial;     // [matrices][tiles][parts][BM x BN in register order]
  unsigned* counter;  // [matrices][tiles][COUNTERS], zero between launches
  long long lda, ldb, ldo, a_apart, b_apart, out_apart;  // elements from line to line, and from matrix to matrix
  int m, n, k, segment;
  int tiles_m, tiles_n, raster;
  int spin;
};

// 8 elements of padding keep the 8 lines of a matrix in different banks.
template <int EXTENT, bool UNIT_K>
using Tile = Lines<unsigned short, EXTENT, BK, UNIT_K, 8, THREADS>;
using TileA = Tile<BM, A_UNIT_K>;
using TileB = Tile<BN, B_UNIT_K>;

using Sums = float[MT][NT][4];

__device__ __forceinline__ void multiply(const char* smem, int m0, int n0, Sums& sum) {
  const int lane = threadIdx.x % 32, line = lane % 8, low = lane / 8 % 2 * 8, high = lane / 16 * 8;
  const unsigned short* a = reinterpret_cast<const unsigned short*>(smem);
  const unsigned short* b = reinterpret_cast<const unsigned short*>(smem + TileA::BYTES);
#pragma unroll
  for (int k = 0; k < BK; k += 16) {
    unsigned va[MT][4], vb[NT / 2][4];
#pragma unroll
    for (int i = 0; i < MT; ++i) {
      const int row = m0 + 16 * i + low, at = k + high;
      load_matrices<!A_UNIT_K>(va[i], A_UNIT_K ? a + (row + line) * TileA::LD + at : a + (at + line) * TileA::LD + row);
    }
#pragma unroll
    for (int j = 0; j < NT / 2; ++j) {
      const int column = n0 + 16 * j + high, at = k + low;
      load_matrices<!B_UNIT_K>(vb[j], B_UNIT_K ? b + (column + line) * TileB::LD + at : b + (at + line) * TileB::LD + column);
    }
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        const unsigned pair[2] = {vb[j / 2][j % 2 * 2], vb[j / 2][j % 2 * 2 + 1]};
        mma_bf16(sum[i][j], va[i], pair);
      }
  }
}

__device__ __forceinline__ void store_one(void* out, long long at, float v) {
  if constexpr (OUT_BF16)
    static_cast<unsigned short*>(out)[at] = (unsigned short)pack_bf16(v, 0.f);
  else
    static_cast<float*>(out)[at] = v;
}

// Two neighbours in a row, as far as they are inside.
__device__ __forceinline__ void store_pair(const ProjectionParams& p, long long matrix, int row, int column, float v0, float v1) {
  if (row >= p.m || column >= p.n) return;
  const bool both = column + 1 < p.n;
  if constexpr (OUT_UNIT_N) {
    const long long at = matrix + row * p.ldo + column;
    if (!both) {
      store_one(p.out, at, v0);
    } else if constexpr (OUT_BF16) {
      *reinterpret_cast<unsigned*>(static_cast<unsigned short*>(p.out) + at) = pack_bf16(v0, v1);
    } else {
      *reinterpret_cast<float2*>(static_cast<float*>(p.out) + at) = make_float2(v0, v1);
    }
  } else {
    store_one(p.out, matrix + column * p.ldo + row, v0);
    if (both) store_one(p.out, matrix + (column + 1) * p.ldo + row, v1);
  }
}

// The sums of all parts of a tile, if this CTA is the last one to arrive.
__device__ __forceinline__ bool reduce(const ProjectionParams& p, int tile, Sums& sum) {
  const int parts = gridDim.y, part = blockIdx.y;
  if (parts == 1) return true;
  float4* all = reinterpret_cast<float4*>(p.partial) + (long long)tile * parts * (BM * BN / 4) + threadIdx.x;
  float4* v = reinterpret_cast<float4*>(&sum[0][0][0]);
#pragma unroll
  for (int i = 0; i < MT * NT; ++i) __stcg(all + (long long)part * (BM * BN / 4) + i * THREADS, v[i]);
  unsigned* counter = p.counter + COUNTERS * (long long)tile;
  if (arrive(counter) + 1 != parts) return false;
#pragma unroll
  for (int i = 0; i < MT * NT; ++i) v[i] = make_float4(0.f, 0.f, 0.f, 0.f);
  for (int from = 0; from < parts; ++from)
#pragma unroll
    for (int i = 0; i < MT * NT; ++i) {
      const float4 x = __ldcg(all + (long long)from * (BM * BN / 4) + i * THREADS);
      v[i].x += x.x, v[i].y += x.y, v[i].z += x.z, v[i].w += x.w;
    }
  if (threadIdx.x == 0) *counter = 0;
  return true;
}

__device__ __forceinline__ void project(const ProjectionParams& p) {
  extern __shared__ __align__(16) char smem[];
  // As cake/plan/raster.py.
  const int t = blockIdx.x, band = t / (p.raster * p.tiles_n) * p.raster, height = min(p.raster, p.tiles_m - band);
  const int inside = t - band * p.tiles_n;
  const int m0 = (band + inside % height) * BM, n0 = inside / height * BN;
  const int k_begin = blockIdx.y * p.segment, k_end = min(p.k, k_begin + p.segment);
  const int stages = (k_end - k_begin + BK - 1) / BK;
  const unsigned short* a = static_cast<const unsigned short*>(p.a) + blockIdx.z * p.a_apart;
  const unsigned short* b = static_cast<const unsigned short*>(p.b) + blockIdx.z * p.b_apart;

  auto fill = [&](int stage) {
    if (stage < stages) {
      char* to = smem + stage % STAGES * (TileA::BYTES + TileB::BYTES);
      TileA::load(to, a, p.lda, m0, p.m, k_begin + stage * BK, k_end);
      TileB::load(to + TileA::BYTES, b, p.ldb, n0, p.n, k_begin + stage * BK, k_end);
    }
    copy_commit();
  };
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) fill(s);

  const int warp = threadIdx.x / 32, wm = warp % WARPS_M * WARP, wn = warp / WARPS_M * WARP, lane = threadIdx.x % 32;
  Sums sum;
#pragma unroll
  for (int i = 0; i < MT * NT * 4; ++i) (&sum[0][0][0])[i] = 0.f;
  for (int s = 0; s < stages; ++s) {
    copy_wait<STAGES - 2>();
    __syncthreads();
    fill(s + STAGES - 1);
    multiply(smem + s % STAGES * (TileA::BYTES + TileB::BYTES), wm, wn, sum);
  }

  if (reduce(p, blockIdx.z * gridDim.x + blockIdx.x, sum)) {
    const long long matrix = blockIdx.z * p.out_apart;
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
      for (int j = 0; j < NT; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          store_pair(p, matrix, m0 + wm + 16 * i + 8 * h + lane / 4, n0 + wn + 8 * j + lane % 4 * 2, sum[i][j][2 * h],
                     sum[i][j][2 * h + 1]);
  }
#ifdef PLANTED
  __syncthreads();
  if (threadIdx.x == 0) spin(p.spin);
#endif
}

}  // namespace cake

extern "C" __global__ void __launch_bounds__(cake::THREADS)
projection_sm80(const __grid_constant__ cake::ProjectionParams p) {
  cake::project(p);
}
