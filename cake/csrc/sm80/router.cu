// FP32 router GEMM, BF16x3: out[M,N] = A[M,K] B[K,N] with FP32 accuracy from BF16 tensor cores (mma.sync).
//
// One CTA owns one BM x BN tile and `hold` consecutive K segments. FP32 operands stay FP32 in shared memory (cp.async
// ring) and are split into BF16 parts as they enter registers, so no pass over memory is spent on splitting. The tensor
// cores truncate as they accumulate: their sum is promoted into FP32 registers every CHUNK = 64 of K (relative error 2e-7
// against 2e-6 without). Order of additions, which decides the bits and which cake/cpu.py repeats: of a chunk first the sum
// of the small products, then that of the leading ones; chunks in sequence inside a segment, segments in sequence inside
// groups of GROUP, groups in sequence.
//
// PLANTED is not for use: it ends with a slowdown of known size, see common/planted.cuh.
// Defines: WARPS_M, WARPS_N (a warp computes 32 x 32), STAGES, A_UNIT_K / B_UNIT_K (1: unit stride along K; 0: along M or
// N), A_BF16 / B_BF16 (1: the operand is BF16 and its own single part), CHUNK, GROUP,
// COUNTERS (words from one tile's counters to the next).
namespace cake {
constexpr int BM = 32 * WARPS_M, BN = 32 * WARPS_N;
}
#include "common/ampere.cuh"
#include "common/arrival.cuh"
#include "common/planted.cuh"
#include "common/router.cuh"

namespace cake {

constexpr int BK = 32, THREADS = 32 * WARPS_M * WARPS_N;
constexpr int MT = 2, NT = 4;  // 16 x 8 products of a warp's 32 x 32
static_assert(CHUNK % BK == 0, "a promotion chunk is a whole number of stages");

template <bool BF16>
struct Element { using type = float; };
template <>
struct Element<true> { using type = unsigned short; };

// One operand's tile in shared memory: EXTENT along M or N, BK along K, the unit-stride axis inside. Padding makes the
// fragment reads free of bank conflicts: the leading dimension is 8 (mod 32) words for 8-byte reads along K, 4 (mod 32)
// for single words across K, and 4-word steps for BF16.
template <int EXTENT, bool UNIT_K, bool BF16>
struct Operand {
  using T = typename Element<BF16>::type;
  static constexpr int PARTS = BF16 ? 1 : 3;
  static constexpr int OUTER = UNIT_K ? EXTENT : BK, INNER = UNIT_K ? BK : EXTENT;
  static constexpr int LD = INNER + (BF16 || UNIT_K ? 8 : 4);
  static constexpr int BYTES = OUTER * LD * (int)sizeof(T);
  static constexpr int VEC = 16 / (int)sizeof(T);

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

  // The parts of elements (e, k) and (e, k + 1).
  __device__ __forceinline__ static void pair(const char* smem, int e, int k, unsigned (&part)[PARTS]) {
    const T* s = reinterpret_cast<const T*>(smem);
    if constexpr (BF16) {
      if constexpr (UNIT_K)
        part[0] = *reinterpret_cast<const unsigned*>(s + e * LD + k);
      else
        part[0] = s[k * LD + e] | (unsigned)s[(k + 1) * LD + e] << 16;
    } else if constexpr (UNIT_K) {
      const float2 x = *reinterpret_cast<const float2*>(s + e * LD + k);
      split_bf16x3(x.x, x.y, part);
    } else {
      split_bf16x3(s[k * LD + e], s[(k + 1) * LD + e], part);
    }
  }
};

using OperandA = Operand<BM, A_UNIT_K, A_BF16>;
using OperandB = Operand<BN, B_UNIT_K, B_BF16>;
constexpr int STAGE_BYTES = OperandA::BYTES + OperandB::BYTES;

using Sums = float[MT][NT][4];

__device__ __forceinline__ void clear(Sums& s) {
#pragma unroll
  for (int i = 0; i < MT * NT * 4; ++i) (&s[0][0][0])[i] = 0.f;
}
__device__ __forceinline__ void add(Sums& s, const Sums& x) {
#pragma unroll
  for (int i = 0; i < MT * NT * 4; ++i) (&s[0][0][0])[i] += (&x[0][0][0])[i];
}
// One stage: two k16 steps of a warp's 32 x 32. The product of the leading parts has a sum of its own: every addition to a
// tensor-core sum truncates it, and the small products would do that 5 times out of 6 (4.3e-7 relative error, not 1e-7).
__device__ __forceinline__ void multiply(const char* smem, int m0, int n0, Sums& leading, Sums& small) {
  const int lane = threadIdx.x % 32, row = lane / 4, col = lane % 4 * 2;
  const char* sa = smem;
  const char* sb = smem + OperandA::BYTES;
#pragma unroll
  for (int k = 0; k < BK; k += 16) {
    unsigned a[OperandA::PARTS][MT][4];
#pragma unroll
    for (int mt = 0; mt < MT; ++mt)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        unsigned part[OperandA::PARTS];
        OperandA::pair(sa, m0 + mt * 16 + row + r % 2 * 8, k + col + r / 2 * 8, part);
#pragma unroll
        for (int p = 0; p < OperandA::PARTS; ++p) a[p][mt][r] = part[p];
      }
#pragma unroll
    for (int nh = 0; nh < NT; nh += 2) {
      unsigned b[OperandB::PARTS][2][2];
#pragma unroll
      for (int nt = 0; nt < 2; ++nt)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          unsigned part[OperandB::PARTS];
          OperandB::pair(sb, n0 + (nh + nt) * 8 + row, k + col + r * 8, part);
#pragma unroll
          for (int p = 0; p < OperandB::PARTS; ++p) b[p][nt][r] = part[p];
        }
      // Part i of A times part j of B has weight 2^(-8 (i + j)): those of weight 2^-24 and less are dropped.
#pragma unroll
      for (int weight = 2; weight >= 0; --weight)
#pragma unroll
        for (int i = OperandA::PARTS - 1; i >= 0; --i) {
          const int j = weight - i;
          if (j < 0 || j >= OperandB::PARTS) continue;
#pragma unroll
          for (int nt = 0; nt < 2; ++nt)
#pragma unroll
            for (int mt = 0; mt < MT; ++mt) mma_bf16((weight ? small : leading)[mt][nh + nt], a[i][mt], b[j][nt]);
        }
    }
  }
}

// Visits a thread's output pairs: f(row, column, first value of two neighbours in a row).
template <typename F>
__device__ __forceinline__ void for_each_pair(int m0, int n0, Sums& s, F f) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int mt = 0; mt < MT; ++mt)
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        f(m0 + mt * 16 + h * 8 + lane / 4, n0 + nt * 8 + lane % 4 * 2, &s[mt][nt][2 * h]);
}

__device__ __forceinline__ void store_tile(const Params& p, int m0, int n0, Sums& s) {
  for_each_pair(m0, n0, s, [&](int row, int column, const float* v) { store_pair(p, row, column, v); });
}

__device__ __forceinline__ void add_tile(const Params& p, int m0, int n0, Sums& s) {
  for_each_pair(m0, n0, s, [&](int row, int column, const float* v) {
    if (row >= p.m || column >= p.n) return;
    float* out = static_cast<float*>(p.out) + row * p.out_row + column * p.out_col;
    atomicAdd(out, v[0]);
    if (column + 1 < p.n) atomicAdd(out + p.out_col, v[1]);
  });
}

// A thread's 32 sums as 8 float4, neighbours in memory held by neighbouring threads.
__device__ __forceinline__ float4* slot(float* part, int i) {
  return reinterpret_cast<float4*>(part) + i * THREADS + threadIdx.x;
}

__device__ __forceinline__ void write_partial(float* part, const Sums& s) {
  const float4* v = reinterpret_cast<const float4*>(&s[0][0][0]);
#pragma unroll
  for (int i = 0; i < MT * NT; ++i) __stcg(slot(part, i), v[i]);
}

// Fixed order: parts of one group in sequence, groups in sequence, whoever computed them.
__device__ __forceinline__ void sum_partials(float* tile, int parts, int group, Sums& total, Sums& run) {
  clear(total);
  clear(run);
  for (int part = 0; part < parts; ++part) {
    Sums v;
#pragma unroll
    for (int i = 0; i < MT * NT; ++i)
      reinterpret_cast<float4*>(&v[0][0][0])[i] = __ldcg(slot(tile + (long long)part * BM * BN, i));
    add(run, v);
    if ((part + 1) % group == 0 || part + 1 == parts) {
      add(total, run);
      clear(run);
    }
  }
}

// Puts a CTA's sums into the output, alone or together with the other CTAs of its tile. `spare` is overwritten.
__device__ __forceinline__ void finish(const Params& p, int wm, int wn, Sums& sum, Sums& spare) {
  const int parts = gridDim.y, part = blockIdx.y;
  if (p.reduction == DIRECT) {
    store_tile(p, wm, wn, sum);
    return;
  }
  unsigned* counter = p.counter + COUNTERS * (long long)blockIdx.x;
  if (p.reduction == ORDERED) {
    float* tile = p.partial + (long long)blockIdx.x * parts * BM * BN;
    write_partial(tile + (long long)part * BM * BN, sum);
    if (arrive(counter) + 1 == parts) {
      sum_partials(tile, parts, p.hold == 1 ? GROUP : 1, sum, spare);
      store_tile(p, wm, wn, sum);
      if (threadIdx.x == 0) counter[0] = 0;
    }
    return;
  }
  // ATOMIC: the first to arrive stores, so `out` needs no zeroing; the others add once its store is visible. They wait
  // only for a CTA that is already running.
  if (arrive(counter) == 0) {
    store_tile(p, wm, wn, sum);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) store_release(counter + 1, 1);
  } else {
    if (threadIdx.x == 0)
      while (load_acquire(counter + 1) == 0) {}
    __syncthreads();
    __threadfence();
    add_tile(p, wm, wn, sum);
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(counter + 1, 1u) + 1 == parts) counter[0] = counter[1] = 0;
  }
}

__device__ __forceinline__ void router(const Params& p) {
  extern __shared__ __align__(16) char smem[];
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");  // programmatic dependent launch: inputs may be the last kernel's
#endif
  int tile_m, tile_n;
  locate(p, blockIdx.x, tile_m, tile_n);
  const int m0 = tile_m * BM, n0 = tile_n * BN, part = blockIdx.y;
  const int k_begin = part * p.hold * p.segment;
  const int k_end = min(p.k, k_begin + p.hold * p.segment);
  const int stages = (k_end - k_begin + BK - 1) / BK;
  const int segment_stages = p.segment / BK;
  const int warp = threadIdx.x / 32, warp_m = warp % WARPS_M * 32, warp_n = warp / WARPS_M * 32;

  auto fill = [&](int stage) {
    if (stage < stages) {
      char* to = smem + stage % STAGES * STAGE_BYTES;
      OperandA::load(to, p.a, p.lda, m0, p.m, k_begin + stage * BK, k_end);
      OperandB::load(to + OperandA::BYTES, p.b, p.ldb, n0, p.n, k_begin + stage * BK, k_end);
    }
    copy_commit();
  };
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) fill(s);

  Sums leading, small, segment, sum;
  clear(leading);
  clear(small);
  clear(segment);
  clear(sum);
  for (int s = 0; s < stages; ++s) {
    copy_wait<STAGES - 2>();
    __syncthreads();
    fill(s + STAGES - 1);
    multiply(smem + s % STAGES * STAGE_BYTES, warp_m, warp_n, leading, small);
    const bool last = s + 1 == stages;
    if ((s + 1) % (CHUNK / BK) == 0 || last) {
      add(segment, small);
      add(segment, leading);
      clear(small);
      clear(leading);
    }
    if ((s + 1) % segment_stages == 0 || last) {
      add(sum, segment);
      clear(segment);
    }
  }

  finish(p, m0 + warp_m, n0 + warp_n, sum, segment);
#ifdef PLANTED
  __syncthreads();
  if (threadIdx.x == 0) spin(p.spin);
#endif
}

}  // namespace cake

extern "C" __global__ void __launch_bounds__(cake::THREADS)
router_sm80(const __grid_constant__ cake::Params p) {
  cake::router(p);
}
