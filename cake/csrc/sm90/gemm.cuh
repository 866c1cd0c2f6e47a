// FP32 router GEMM on Hopper: out[M,N] = A[M,K] B[K,N] with FP32 accuracy from 16-bit warpgroup products (wgmma).
//
// A CTA has MMA_GROUPS warpgroups that multiply and one that converts. A row of A belongs to one thread quad for good: its
// FP32 elements come by cp.async into slots that only this warp reads, are split in registers and go to the tensor cores
// from there. B is shared: each thread of the converting warpgroup copies elements into slots of its own (cp.async too: kept
// in registers, a load's scoreboard is soon that of another, and every load is waited for), splits them and stores the parts
// into a ring of STAGES in shared memory, CHUNK = 64 of K each. So no element is split twice in a CTA.
//
// Along K, the 4 elements of a 16-byte load are put at places 2c, 2c+1, 2c+8, 2c+9 of a product's 16, which is where a
// thread of a quad holds its part of A; B is stored in the same order. A sum does not mind.
//
// Code is kept short on purpose: a launch with a cold L2 waits for its instructions too (they were half of a launch's time at
// T = 64), so loops are rolled where registers allow it, and edges have a path of their own.
//
// The tensor cores truncate as they add: per chunk, the small products of all its steps come first, then the leading
// ones; the sum of a chunk is added to FP32 registers.
//
// BF16x3: 3 parts, 6 products. FP16X2: 2 parts, 3 products; every row of A and column of B has a power of two for each
// chunk, which the thread quad of the row and the converting warpgroup find before they split it.
//
// Defines: CHUNK, GROUP, COUNTERS; FP16X2 (or none); PLANTED as in sm80/router.cu. Those of a GEMM are in its config, below.
#pragma once
#ifndef FP16X2
#define FP16X2 0
#endif
#include "common/ampere.cuh"
#include "common/arrival.cuh"
#include "common/fp16x2.cuh"
#include "common/hopper.cuh"
#include "common/router.cuh"
#include "common/wgmma.cuh"

namespace cake {

constexpr int BK = CHUNK, STEPS = CHUNK / 16;
constexpr int MMA_BARRIER = 1;  // number of the barrier of the MMA warpgroups
static_assert(CHUNK == 64, "a stage is a promotion chunk of 4 steps");
// What tells one program's GEMM from another's, from defines that begin with a name: MMA_GROUPS, BN (the tile is 64 MMA_GROUPS
// x BN), STAGES, A_RING (chunks of A that shared memory holds), B_RING (units of B), UNIT, SIDE, CORE (see B below),
// MMA_REGISTERS and CONVERT_REGISTERS (0: as launched), A_UNIT_K / B_UNIT_K (1: unit stride along K; 0: along M or N), A_BF16 /
// B_BF16.
#define CAKE_CONFIG(name)                                                                                                   \
  static constexpr int MMA_GROUPS = name##_MMA_GROUPS, BN = name##_BN, STAGES = name##_STAGES, A_RING = name##_A_RING;      \
  static constexpr int B_RING = name##_B_RING, UNIT = name##_UNIT, SIDE = name##_SIDE, CORE = name##_CORE;                  \
  static constexpr int MMA_REGISTERS = name##_MMA_REGISTERS, CONVERT_REGISTERS = name##_CONVERT_REGISTERS;                  \
  static constexpr bool A_UNIT_K = name##_A_UNIT_K, B_UNIT_K = name##_B_UNIT_K, A_BF16 = name##_A_BF16, B_BF16 = name##_B_BF16;

// A CTA of a GEMM: it walks over tiles `tile`, `tile + walkers`, ..., and has part `part` of their K.
struct Cta {
  int tile, walkers, part, parts;
};

// One arrival for a warp, all of whose threads are done.
__device__ __forceinline__ void arrive_warp(unsigned long long* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

#if FP16X2
constexpr int MODERATE = 60;  // scales of 2^+-60 and less can be applied one after the other to any sum of products
#endif

// The parts of a pair; `down` scales it, with FP16X2.
template <int PARTS>
__device__ __forceinline__ void split_pair(float x0, float x1, float2 down, unsigned (&part)[PARTS]) {
  if constexpr (FP16X2)
    split_fp16x2(x0, x1, down.x, down.y, part);
  else if constexpr (PARTS == 3)
    split_bf16x3(x0, x1, part);
}

// Four neighbours along the unit stride.
template <bool BF16>
struct Four { float x[4]; };  // FP32
template <>
struct Four<true> { unsigned x[2]; };  // BF16, packed

__device__ __forceinline__ void load_slot(Four<false>& to, const char* slot) {
  const float4 x = *reinterpret_cast<const float4*>(slot);
  to.x[0] = x.x, to.x[1] = x.y, to.x[2] = x.z, to.x[3] = x.w;
}
__device__ __forceinline__ void load_slot(Four<true>& to, const char* slot) {
  const uint2 x = *reinterpret_cast<const uint2*>(slot);
  to.x[0] = x.x, to.x[1] = x.y;
}

__device__ __forceinline__ float4 floats(const Four<false>& v) { return make_float4(v.x[0], v.x[1], v.x[2], v.x[3]); }
__device__ __forceinline__ float4 floats(const Four<true>& v) {
  return make_float4(low_as_float(v.x[0]), high_as_float(v.x[0]), low_as_float(v.x[1]), high_as_float(v.x[1]));
}

// The parts of two pairs: of elements 0, 1 and of 2, 3.
template <bool BF16, int PARTS>
__device__ __forceinline__ void split_four(const Four<BF16>& v, float4 down, unsigned (&first)[PARTS],
                                           unsigned (&second)[PARTS]) {
  if constexpr (PARTS == 1) {
    first[0] = v.x[0], second[0] = v.x[1];
  } else {
    const float4 x = floats(v);
    split_pair(x.x, x.y, make_float2(down.x, down.y), first);
    split_pair(x.z, x.w, make_float2(down.z, down.w), second);
  }
}

__device__ __forceinline__ int clamp(int x, int high) { return x < 0 ? 0 : (x > high ? high : x); }

__device__ __forceinline__ float largest(float4 x) {
  return fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
}
__device__ __forceinline__ float4 operator+(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

template <class C>
struct Gemm {

static constexpr int MMA_GROUPS = C::MMA_GROUPS, BM = 64 * MMA_GROUPS, BN = C::BN, STAGES = C::STAGES;
static constexpr int A_RING = C::A_RING, B_RING = C::B_RING, UNIT = C::UNIT, SIDE = C::SIDE, CORE = C::CORE;
static constexpr bool A_UNIT_K = C::A_UNIT_K, B_UNIT_K = C::B_UNIT_K, A_BF16 = C::A_BF16, B_BF16 = C::B_BF16;
static constexpr int MMA_THREADS = 128 * MMA_GROUPS;
static constexpr int SUMS = BN / 2;  // of a thread's 64 x BN share

// --- what a CTA does -------------------------------------------------------------------------------------------------

// Its part of K.
struct Span {
  int k_begin, k_end;
  int chunks, whole;  // chunks, and those of them that are whole
};

static __device__ __forceinline__ Span span_of(const Params& p, const Cta& cta) {
  const int k_begin = cta.part * p.hold * p.segment, k_end = min(p.k, k_begin + p.hold * p.segment);
  return {k_begin, k_end, (k_end - k_begin + CHUNK - 1) / CHUNK, (k_end - k_begin) / CHUNK};
}

static __device__ __forceinline__ void origin(const Params& p, int tile, int& m0, int& n0) {
  int tile_m, tile_n;
  locate(p, tile, tile_m, tile_n);
  m0 = tile_m * BM, n0 = tile_n * BN;
}

// The chunk to be fetched next, of all chunks of all tiles.
struct Source {
  int tile, chunk, m0, n0;
};

static __device__ __forceinline__ Source first_source(const Params& p, const Cta& cta) {
  Source next{cta.tile, 0, 0, 0};
  origin(p, next.tile, next.m0, next.n0);
  return next;
}
static __device__ __forceinline__ void advance(Source& next, const Params& p, const Cta& cta, const Span& s) {
  if (++next.chunk < s.chunks) return;
  next.chunk = 0, next.tile += cta.walkers;
  if (next.tile < tiles_of(p)) origin(p, next.tile, next.m0, next.n0);
}

// --- B ---------------------------------------------------------------------------------------------------------------

static constexpr int A_PARTS = FP16X2 ? 2 : (A_BF16 ? 1 : 3), B_PARTS = FP16X2 ? 2 : (B_BF16 ? 1 : 3);
// Core matrices of 8 x 8, CORE bytes apart: 128, and more where a warp's stores would meet in the same banks.
static constexpr int ALONG_N = CORE, ALONG_K = CORE * (BN / 8);
static constexpr int PART_BYTES = ALONG_K * (BK / 8), SCALES = B_PARTS * PART_BYTES;  // FP16X2: where the columns' scales begin
static constexpr int STAGE_BYTES = SCALES + (FP16X2 ? BN * 4 : 0);
static constexpr int B_LOADS = BK * BN / 4 / 128;  // 4 neighbours along the unit stride each, of a thread a chunk
static_assert(B_LOADS * 4 * 128 == BK * BN, "");

// Where the unit stride runs along N, SIDE threads lie side by side along a row, and a thread has the same columns in
// B_ROWS loads; along K it has them in all steps with FP16X2, whose warps have columns of their own, so that the largest of a
// column is found without the others.
static constexpr int SIDE_THREADS = FP16X2 ? 32 : 128;
static constexpr int B_ROWS = B_UNIT_K ? STEPS : BK * SIDE / SIDE_THREADS;

// What a thread lets go, waits for and splits at once: UNIT loads. Its slots: [B_RING][UNIT][128 threads]. With FP16X2 these
// are whole columns. Units lie alike in a chunk, so that they are gone through in a loop.
static constexpr int UNITS = B_LOADS / UNIT;
static constexpr int B_SLOT = 4 * (B_BF16 ? 2 : 4), UNIT_BYTES = UNIT * B_SLOT * 128;
static constexpr int BATCH = UNIT <= 6 ? UNIT : (UNIT % 5 ? 4 : 5);  // loads on their way from shared memory at once
static_assert(UNIT * UNITS == B_LOADS && UNIT % BATCH == 0 && !(FP16X2 && UNIT != B_ROWS), "");

// Element (k, n) of a chunk: the first of the 4 of a thread's first load, and how far from there its i-th is.
static __device__ __forceinline__ void first_b(int& k, int& n) {
  const int tid = threadIdx.x % 128, warp = tid / 32, lane = tid % 32;
  if (B_UNIT_K) {
    k = lane % 4 * 4 + (FP16X2 ? 0 : warp * 16);
    n = lane / 4 + (FP16X2 ? warp * 8 : 0);
  } else {
    k = (FP16X2 ? lane : tid) / SIDE;
    n = (FP16X2 ? lane : tid) % SIDE * 4 + (FP16X2 ? warp * (BN / 4) : 0);
  }
}
static __device__ constexpr int further_k(int i) { return B_UNIT_K ? (FP16X2 ? i % STEPS * 16 : 0) : i % B_ROWS * (SIDE_THREADS / SIDE); }
static __device__ constexpr int further_n(int i) { return B_UNIT_K ? (FP16X2 ? i / STEPS * 32 : i * 8) : i / B_ROWS * SIDE * 4; }

// The same as bytes of a stage. Row k of a step lies at the place that A's order gives it: 4c, 4c+1 -> 2c, 2c+1; 4c+2, 4c+3
// -> 2c+8, 2c+9.
static __device__ __forceinline__ int first_stored() {
  int k, n;
  first_b(k, n);
  if (B_UNIT_K) return k / 16 * 2 * ALONG_K + n / 8 * ALONG_N + n % 8 * 16 + k % 16;
  const int place = k % 16 / 4 * 2 + k % 2 + k % 4 / 2 * 8;
  return (k / 16 * 2 + place / 8) * ALONG_K + n / 8 * ALONG_N + place % 8 * 16 + n % 8 * 2;
}
static __device__ constexpr int further_stored(int i) {
  return further_k(i) / 16 * 2 * ALONG_K + further_k(i) % 16 / 4 * 32 + further_n(i) / 8 * ALONG_N;
}

// A thread's i-th slot of a unit.
static __device__ __forceinline__ const char* slot_b(const char* unit, int i) {
  return unit + (i * 128 + (int)threadIdx.x % 128) * B_SLOT;
}

// Stores the parts of a load at its place in a stage.
static __device__ __forceinline__ void store_b(char* to, const Four<B_BF16>& v, float4 down) {
  unsigned first[B_PARTS], second[B_PARTS];
  split_four(v, down, first, second);
#pragma unroll
  for (int p = 0; p < B_PARTS; ++p, to += PART_BYTES) {
    if (B_UNIT_K) {
      *reinterpret_cast<unsigned*>(to) = first[p];
      *reinterpret_cast<unsigned*>(to + ALONG_K) = second[p];
    } else {
      *reinterpret_cast<uint2*>(to) = make_uint2(first[p], second[p]);
    }
  }
}

// A unit, split and stored; `to` is the place of its first element.
static __device__ __forceinline__ void split_b(char* to, const char* unit, float4 down) {
#pragma unroll
  for (int i = 0; i < UNIT; i += BATCH) {
    Four<B_BF16> v[BATCH];
#pragma unroll
    for (int j = 0; j < BATCH; ++j) load_slot(v[j], slot_b(unit, i + j));
#pragma unroll
    for (int j = 0; j < BATCH; ++j) store_b(to + further_stored(i + j), v[j], down);
  }
}

// --- A ---------------------------------------------------------------------------------------------------------------

// A thread's elements of a step: rows `row` and `row + 8` (or the neighbours 2r, 2r + 1 where the unit stride runs along M),
// 4 neighbours along K. Where that runs along K a thread copies what it needs itself; else 4 neighbours along M, for two
// threads of its warp.
static constexpr int A_SIZE = A_BF16 ? 2 : 4, SLOT = 4 * A_SIZE;  // bytes of a copy
static constexpr int A_COPIES = BK * 16 / 4 / 32;                 // of a thread a chunk
static constexpr int A_CHUNK_BYTES = A_COPIES * SLOT * MMA_THREADS;

// First row of a thread's two in its warp's 16, and the step to the second.
static __device__ __forceinline__ int row_of(int lane) { return A_UNIT_K ? lane / 4 : lane / 4 * 2; }
static constexpr int ROW_STEP = A_UNIT_K ? 8 : 1;

// What a thread copied at once along K: [i][thread].
static __device__ __forceinline__ const char* slot_a(const char* ring, int i) {
  return ring + (i * MMA_THREADS + (int)threadIdx.x) * SLOT;
}
// Unit stride along M: a warp's 16 rows at place k of a chunk. Lines trade places inside fours, else the four threads that
// read places k, k + 4, k + 8 and k + 12 at once would meet in the same banks.
static __device__ __forceinline__ const char* line_a(const char* ring, int k) {
  return ring + ((int)threadIdx.x / 32 * BK + (k ^ k / 4 % 4)) * 4 * SLOT;
}
// A thread's two rows at the j-th of its places in a step.
static __device__ __forceinline__ const char* pair_a(const char* ring, int step, int j) {
  const int lane = threadIdx.x % 32;
  return line_a(ring, step * 16 + lane % 4 * 4 + j) + row_of(lane) * A_SIZE;
}

// A chunk of A.
static __device__ __forceinline__ void fetch_a(const char* ring, const Params& p, const Span& s, const Source& next) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = next.m0 + warp * 16 + (A_UNIT_K ? lane / 4 : lane % 4 * 4);
  const int k = s.k_begin + next.chunk * CHUNK + (A_UNIT_K ? lane % 4 * 4 : lane / 4);
  const char* from = static_cast<const char*>(p.a) + (A_UNIT_K ? row * p.lda + k : k * p.lda + row) * A_SIZE;
  const long long line = p.lda * A_SIZE;
  auto to = [&](int i) { return A_UNIT_K ? slot_a(ring, i) : line_a(ring, i * 8 + lane / 4) + lane % 4 * SLOT; };
  // Rows, or places, of the i-th copy beyond the first one's.
  auto further = [&](int i) { return A_UNIT_K ? i % 2 * 8 * line + i / 2 * 16 * A_SIZE : i * 8 * line; };
  if (next.m0 + BM <= p.m && next.chunk < s.whole) {
#pragma unroll
    for (int i = 0; i < A_COPIES; ++i) copy_async<SLOT>(to(i), from + further(i));
  } else {
#pragma unroll 1
    for (int i = 0; i < A_COPIES; ++i) {
      const int left_m = p.m - row - (A_UNIT_K ? i % 2 * 8 : 0), left_k = s.k_end - k - (A_UNIT_K ? i / 2 * 16 : i * 8);
      const int count = A_UNIT_K ? (left_m > 0 ? clamp(left_k, 4) : 0) : (left_k > 0 ? clamp(left_m, 4) : 0);
      copy_some<SLOT>(to(i), count ? from + further(i) : p.a, count * A_SIZE);
    }
  }
}

static __device__ __forceinline__ float2 load_two(const char* slot) {
  if (!A_BF16) return *reinterpret_cast<const float2*>(slot);
  const unsigned x = *reinterpret_cast<const unsigned*>(slot);
  return make_float2(low_as_float(x), high_as_float(x));
}

// FP16X2: the exponents of a thread's two rows in a chunk.
struct RowScales {
  int e[2];
  __device__ __forceinline__ float down(int h) const { return power_of_two(-e[h]); }
};

static __device__ __forceinline__ RowScales row_scales(const char* ring) {
  float most[2] = {0.f, 0.f};
#pragma unroll
  for (int i = 0; i < STEPS * (A_UNIT_K ? 2 : 4); ++i) {
    if (A_UNIT_K) {
      Four<A_BF16> v;
      load_slot(v, slot_a(ring, i));
      most[i % 2] = fmaxf(most[i % 2], largest(floats(v)));
    } else {
      const float2 x = load_two(pair_a(ring, i / 4, i % 4));
      most[0] = fmaxf(most[0], fabsf(x.x)), most[1] = fmaxf(most[1], fabsf(x.y));
    }
  }
  RowScales scales;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    most[h] = fmaxf(most[h], __shfl_xor_sync(~0u, most[h], 1));
    most[h] = fmaxf(most[h], __shfl_xor_sync(~0u, most[h], 2));
    scales.e[h] = scale_exponent(__float_as_uint(most[h]));
  }
  return scales;
}

// The parts of a step as the registers of a product: rows r, r + 8 x places (2c, 2c + 1), then x (2c + 8, 2c + 9).
static __device__ __forceinline__ void parts_a(const char* ring, int step, const RowScales& scales, unsigned (&part)[A_PARTS][4]) {
  if constexpr (A_UNIT_K) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      Four<A_BF16> v;
      load_slot(v, slot_a(ring, step * 2 + h));
      const float s = scales.down(h);
      unsigned first[A_PARTS], second[A_PARTS];
      split_four(v, make_float4(s, s, s, s), first, second);
#pragma unroll
      for (int q = 0; q < A_PARTS; ++q) part[q][h] = first[q], part[q][2 + h] = second[q];
    }
  } else if constexpr (A_PARTS == 1) {
    unsigned x[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = *reinterpret_cast<const unsigned*>(pair_a(ring, step, j));
    part[0][0] = __byte_perm(x[0], x[1], 0x5410), part[0][1] = __byte_perm(x[0], x[1], 0x7632);
    part[0][2] = __byte_perm(x[2], x[3], 0x5410), part[0][3] = __byte_perm(x[2], x[3], 0x7632);
  } else {
    float2 x[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = load_two(pair_a(ring, step, j));
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      unsigned top[A_PARTS], bottom[A_PARTS];
      split_pair(x[j].x, x[j + 1].x, make_float2(scales.down(0), scales.down(0)), top);
      split_pair(x[j].y, x[j + 1].y, make_float2(scales.down(1), scales.down(1)), bottom);
#pragma unroll
      for (int q = 0; q < A_PARTS; ++q) part[q][j] = top[q], part[q][j + 1] = bottom[q];
    }
  }
}

// --- output ----------------------------------------------------------------------------------------------------------

using Sums = float[SUMS];

static __device__ __forceinline__ void convert_to(float& out, float v) { out = v; }
static __device__ __forceinline__ void convert_to(unsigned short& out, float v) { out = (unsigned short)pack_bf16(v, v); }

// One element after the other, as far as they are inside the output.
template <typename T>
static __device__ __forceinline__ void store_elements(const Params& p, int row, int column, const Sums& s) {
  T* upper = static_cast<T*>(p.out) + row * p.out_row + column * p.out_col;
  T* lower = upper + ROW_STEP * p.out_row;
  const int left = p.n - column;
  const bool inside[2] = {row < p.m, row + ROW_STEP < p.m};
#pragma unroll
  for (int i = 0; i < SUMS; ++i) {
    const int c = i / 4 * 8 + i % 2;
    if (inside[i % 4 / 2] && c < left) convert_to((i % 4 < 2 ? upper : lower)[c * p.out_col], s[i]);
  }
}

// Pairs where the tile is whole and its rows lie in memory.
static __device__ __forceinline__ void store_tile(const Params& p, int m0, int n0, Sums& s) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = m0 + warp * 16 + row_of(lane), column = n0 + lane % 4 * 2;
  const long long upper = row * p.out_row + column, lower = upper + ROW_STEP * p.out_row;
  const bool whole = m0 + BM <= p.m && n0 + BN <= p.n && p.out_col == 1;
  if (whole && !p.out_bf16) {
    float* out = static_cast<float*>(p.out);
#pragma unroll
    for (int i = 0; i < SUMS / 4; ++i) {
      *reinterpret_cast<float2*>(out + upper + i * 8) = make_float2(s[4 * i], s[4 * i + 1]);
      *reinterpret_cast<float2*>(out + lower + i * 8) = make_float2(s[4 * i + 2], s[4 * i + 3]);
    }
  } else if (whole) {
    unsigned short* out = static_cast<unsigned short*>(p.out);
#pragma unroll
    for (int i = 0; i < SUMS / 4; ++i) {
      *reinterpret_cast<unsigned*>(out + upper + i * 8) = pack_bf16(s[4 * i], s[4 * i + 1]);
      *reinterpret_cast<unsigned*>(out + lower + i * 8) = pack_bf16(s[4 * i + 2], s[4 * i + 3]);
    }
  } else if (p.out_bf16) {
    store_elements<unsigned short>(p, row, column, s);
  } else {
    store_elements<float>(p, row, column, s);
  }
}

// The sums of a tile as SUMS / 4 rows of float4, neighbours in memory held by neighbouring threads.
static __device__ __forceinline__ float4* slot(float* part, int i, int thread) {
  return reinterpret_cast<float4*>(part) + i * MMA_THREADS + thread;
}
static __device__ __forceinline__ void write_partial(float* part, const Sums& s) {
  const float4* v = reinterpret_cast<const float4*>(s);
#pragma unroll
  for (int i = 0; i < SUMS / 4; ++i) __stcg(slot(part, i, threadIdx.x), v[i]);
}

// The f-th float4 of a tile (of thread f % MMA_THREADS), summed over all parts in the fixed order: groups in sequence, parts of
// a group in sequence. PARTS_AT_ONCE are on their way at once, one trip to the L2 for all of them.
static constexpr int PARTS_AT_ONCE = SUMS <= 32 ? 16 : 8;
static __device__ __forceinline__ float4 sum_parts(const float* tile, int parts, bool grouped, int f) {
  static_assert(GROUP == 2, "groups are pairs");
  float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
  const float4* from = reinterpret_cast<const float4*>(tile) + f;
#pragma unroll 1
  for (int first = 0; first < parts; first += PARTS_AT_ONCE, from += PARTS_AT_ONCE * (BM * BN / 4)) {
    float4 v[PARTS_AT_ONCE];
#pragma unroll
    for (int j = 0; j < PARTS_AT_ONCE; ++j)
      if (first + j < parts) v[j] = __ldcg(from + j * (BM * BN / 4));
#pragma unroll
    for (int j = 0; j < PARTS_AT_ONCE; j += 2) {
      if (first + j >= parts) break;
      const bool second = first + j + 1 < parts;
      if (grouped && second) v[j] = v[j] + v[j + 1];
      total = first + j ? total + v[j] : v[j];
      if (!grouped && second) total = total + v[j + 1];
    }
  }
  return total;
}

// Writes the f-th float4 of a tile: two pairs, rows ROW_STEP apart.
static __device__ __forceinline__ void store_slot(const Params& p, int m0, int n0, int f, const float4& v) {
  const int t = f % MMA_THREADS, warp = t / 32, lane = t % 32;
  const int row = m0 + warp * 16 + row_of(lane), column = n0 + f / MMA_THREADS * 8 + lane % 4 * 2;
#pragma unroll 1
  for (int h = 0; h < 2; ++h) {
    const float pair[2] = {h ? v.z : v.x, h ? v.w : v.y};
    store_pair(p, row + h * ROW_STEP, column, pair);
  }
}

// Puts the sums of a CTA's MMA warpgroups into the output, alone or together with the other CTAs of the tile.
static __device__ __forceinline__ void finish(const Params& p, const Cta& cta, int tile, Sums& sum) {
  int m0, n0;
  origin(p, tile, m0, n0);
  if (p.reduction == DIRECT) {
    store_tile(p, m0, n0, sum);
    return;
  }
  const int parts = cta.parts;
  const bool spread = p.reduction == SPREAD;
  float* all = p.partial + (long long)tile * parts * BM * BN;
  // Two words: who has arrived, 0 again behind the last one; and how many times all have, which no other family's programs
  // take for anything else.
  unsigned* counter = p.counter + COUNTERS * (long long)tile;
  __shared__ bool last;
  unsigned* turns = counter + 2;
  unsigned turn = 0;
  if (threadIdx.x == 0 && spread) turn = load_relaxed(turns);
  write_partial(all + (long long)cta.part * BM * BN, sum);
  sync_threads(MMA_BARRIER, MMA_THREADS);
  if (threadIdx.x == 0) {
    last = increment_acq_rel(counter, parts - 1) == parts - 1;
    if (spread && last)
      store_release(turns, turn + 1);
    else if (spread)  // all CTAs are running: it is a cooperative launch
      while (load_acquire(turns) == turn) {}
  }
  sync_threads(MMA_BARRIER, MMA_THREADS);
  if (!spread && !last) return;
  // Where all have come, each adds a share: whole warps of float4.
  constexpr int ALL = SUMS / 4 * MMA_THREADS;
  const int share = spread ? (ALL / 32 + parts - 1) / parts * 32 : ALL, first = spread ? cta.part * share : 0;
#pragma unroll 1
  for (int f = first + threadIdx.x; f < min(first + share, ALL); f += MMA_THREADS)
    store_slot(p, m0, n0, f, sum_parts(all, parts, p.hold == 1, f));
}

// --- the two kinds of warpgroups -----------------------------------------------------------------------------------------

struct Ring {
  unsigned long long full[STAGES], empty[STAGES];
#if FP16X2
  int4 extreme[STAGES];  // of each converting warp: whether the scale of one of its columns is beyond 2^+-MODERATE
#endif
};

#if FP16X2
// The largest magnitudes of the columns that a thread has in a unit: of one column (unit stride along K), or of 4.
static __device__ __forceinline__ float4 largest_of_columns(const char* unit) {
  float4 m = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
  for (int i = 0; i < UNIT; ++i) {
    Four<B_BF16> v;
    load_slot(v, slot_b(unit, i));
    const float4 x = floats(v);
    if (B_UNIT_K)
      m.x = fmaxf(m.x, largest(x));
    else
      m.x = fmaxf(m.x, fabsf(x.x)), m.y = fmaxf(m.y, fabsf(x.y)), m.z = fmaxf(m.z, fabsf(x.z)), m.w = fmaxf(m.w, fabsf(x.w));
  }
#pragma unroll
  for (int lanes = B_UNIT_K ? 1 : SIDE; lanes < (B_UNIT_K ? 4 : 32); lanes *= 2) {
    m.x = fmaxf(m.x, __shfl_xor_sync(~0u, m.x, lanes));
    if (B_UNIT_K) continue;
    m.y = fmaxf(m.y, __shfl_xor_sync(~0u, m.y, lanes));
    m.z = fmaxf(m.z, __shfl_xor_sync(~0u, m.z, lanes));
    m.w = fmaxf(m.w, __shfl_xor_sync(~0u, m.w, lanes));
  }
  return m;
}

// A unit of B, split, stored and with its scales, by a warp that has its columns to itself. Returns whether one is extreme.
static __device__ __forceinline__ bool scale_and_split_b(char* to, float* scales, const char* unit) {
  const int lane = threadIdx.x % 32;
  const float4 m = largest_of_columns(unit);
  const float most[4] = {m.x, m.y, m.z, m.w};
  float up[4], down[4];
  bool extreme = false;
#pragma unroll
  for (int j = 0; j < (B_UNIT_K ? 1 : 4); ++j) {
    const int e = scale_exponent(__float_as_uint(most[j]));
    up[j] = power_of_two(e), down[j] = power_of_two(-e);
    extreme |= e < -MODERATE || e > MODERATE;
  }
  if (B_UNIT_K) {
    if (lane % 4 == 0) *scales = up[0];
    down[1] = down[2] = down[3] = down[0];
  } else if (lane < SIDE) {
    *reinterpret_cast<float4*>(scales) = make_float4(up[0], up[1], up[2], up[3]);
  }
  split_b(to, unit, make_float4(down[0], down[1], down[2], down[3]));
  return extreme;
}
#endif

// A unit of a chunk of B.
static __device__ __forceinline__ void fetch_b(const char* slots, const Params& p, const Span& s, const Source& next, int unit) {
  constexpr int SIZE = B_SLOT / 4;
  int k, n;
  first_b(k, n);
  k += s.k_begin + next.chunk * CHUNK + unit * further_k(UNIT), n += next.n0 + unit * further_n(UNIT);
  const char* from = static_cast<const char*>(p.b) + (B_UNIT_K ? n * p.ldb + k : k * p.ldb + n) * SIZE;
  const long long line = p.ldb * SIZE;
  if (next.n0 + BN <= p.n && next.chunk < s.whole) {
#pragma unroll
    for (int i = 0; i < UNIT; ++i)
      copy_async<B_SLOT>(slot_b(slots, i), from + (B_UNIT_K ? further_n(i) * line + further_k(i) * SIZE
                                                            : further_k(i) * line + further_n(i) * SIZE));
  } else {
#pragma unroll 1
    for (int i = 0; i < UNIT; ++i) {
      const int dk = further_k(i), dn = further_n(i), left_k = s.k_end - k - dk, left_n = p.n - n - dn;
      const int count = B_UNIT_K ? (left_n > 0 ? clamp(left_k, 4) : 0) : (left_k > 0 ? clamp(left_n, 4) : 0);
      const char* at = from + (B_UNIT_K ? dn * line + dk * SIZE : dk * line + dn * SIZE);
      copy_some<B_SLOT>(slot_b(slots, i), count ? at : p.b, count * SIZE);
    }
  }
}

static __device__ __forceinline__ void convert(const Params& p, const Cta& cta, char* stages, const char* slots, Ring& ring) {
  const Span s = span_of(p, cta);
  const int tiles = tiles_of(p), stored = first_stored();
  Source next = first_source(p, cta);
  int next_unit = 0, to_fill = 0, now = 0, tile = cta.tile, chunk = 0, unit = 0, stage = 0;
  unsigned phase = 0;
  bool extreme = false;
  // Before the first unit B_RING - 1 are let go, in the same loop: their code is fetched once.
#pragma unroll 1
  for (int i = 1 - B_RING; tile < tiles; ++i) {
    copy_wait<B_RING - 2>();
    if (next.tile < tiles) {
      fetch_b(slots + to_fill * UNIT_BYTES, p, s, next, next_unit);
      if (++next_unit == UNITS) next_unit = 0, advance(next, p, cta, s);
    }
    copy_commit();
    if (++to_fill == B_RING) to_fill = 0;
    if (i < 0) continue;
    if (unit == 0) barrier_wait(&ring.empty[stage], phase ^ 1);
    char* to = stages + stage * STAGE_BYTES;
    char* place = to + stored + unit * further_stored(UNIT);
#if FP16X2
    int k, n;
    first_b(k, n);
    float* scales = reinterpret_cast<float*>(to + SCALES) + n + unit * further_n(UNIT);
    extreme |= scale_and_split_b(place, scales, slots + now * UNIT_BYTES);
#else
    split_b(place, slots + now * UNIT_BYTES, make_float4(1.f, 1.f, 1.f, 1.f));
#endif
    if (++now == B_RING) now = 0;
    if (++unit < UNITS) continue;
    unit = 0;
    fence_async();
#if FP16X2
    extreme = __any_sync(~0u, extreme);
    if (threadIdx.x % 32 == 0) (&ring.extreme[stage].x)[threadIdx.x % 128 / 32] = extreme;
    extreme = false;
#endif
    arrive_warp(&ring.full[stage]);
    if (++stage == STAGES) stage = 0, phase ^= 1;
    if (++chunk == s.chunks) chunk = 0, tile += cta.walkers;
  }
}

// A chunk's products into `acc`, small ones first.
static __device__ __forceinline__ void multiply(Sums& acc, const char* a_ring, const RowScales& scales, unsigned b_stage) {
  unsigned leading[STEPS][4], part[2][A_PARTS][4];
  auto b_part = [&](int part, int step) {
    return descriptor(b_stage + part * PART_BYTES + step * 2 * ALONG_K, ALONG_K, ALONG_N);
  };
  bool keep = false;
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    parts_a(a_ring, step, scales, part[step % 2]);
#pragma unroll
    for (int r = 0; r < 4; ++r) leading[step][r] = part[step % 2][0][r];
    if (A_PARTS > 1 || B_PARTS > 1) {
      wgmma_fence();
#pragma unroll
      for (int weight = FP16X2 ? 1 : 2; weight >= 1; --weight)
#pragma unroll
        for (int i = A_PARTS - 1; i >= 0; --i) {
          const int j = weight - i;
          if (j < 0 || j >= B_PARTS) continue;
          wgmma<BN, !B_UNIT_K>(acc, part[step % 2][i], b_part(j, step), keep);
          keep = true;
        }
      wgmma_commit();
      wgmma_wait<1>();  // the other step's registers are free
    }
  }
  if (FP16X2) {
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < SUMS; ++i) acc[i] *= 1.f / LOW_SCALE;
  }
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    wgmma<BN, !B_UNIT_K>(acc, leading[step], b_part(0, step), keep);
    keep = true;
  }
  wgmma_commit();
  wgmma_wait<0>();
}

#if FP16X2
// Adds a chunk's sums with the scales of their rows and columns. Two scales that are far from 1 may leave FP32's range where
// their product does not: both are applied in halves then.
static __device__ __forceinline__ void add_scaled(Sums& sum, const Sums& acc, const RowScales& rows, const float* columns, int extreme) {
  const float2* pair = reinterpret_cast<const float2*>(columns) + threadIdx.x % 4;
  if (extreme || max(abs(rows.e[0]), abs(rows.e[1])) > MODERATE) {
#pragma unroll
    for (int i = 0; i < SUMS; ++i) {
      const float2 c = pair[i / 4 * 4];
      const int f = exponent_of(i % 2 ? c.y : c.x), row = rows.e[i % 4 / 2];
      const float half = power_of_two((row >> 1) + (f >> 1)), rest = power_of_two(row - (row >> 1) + f - (f >> 1));
      sum[i] = fmaf(acc[i] * half, rest, sum[i]);
    }
    return;
  }
  const float up[2] = {power_of_two(rows.e[0]), power_of_two(rows.e[1])};
#pragma unroll
  for (int i = 0; i < SUMS; ++i) {
    const float2 c = pair[i / 4 * 4];
    sum[i] = fmaf(acc[i] * up[i % 4 / 2], i % 2 ? c.y : c.x, sum[i]);
  }
}
#endif

static __device__ __forceinline__ void multiply_tiles(const Params& p, const Cta& cta, const char* stages, const char* slots, Ring& ring) {
  const Span s = span_of(p, cta);
  const int tiles = tiles_of(p), segment_chunks = p.segment / CHUNK;
  Source next = first_source(p, cta);
  Sums acc, sum;
  bool fresh = true;  // a segment begins
  int to_fill = 0, now = 0, tile = cta.tile, chunk = 0, stage = 0;
  unsigned phase = 0;
  // Before the first chunk A_RING - 1 are let go, in the same loop; those of a tile before the last one's sums are stored.
#pragma unroll 1
  for (int i = 1 - A_RING; tile < tiles; ++i) {
    copy_wait<A_RING - 2>();
    __syncwarp();  // a warp's rows may have been copied by others of it, and all of them have read the slot to be filled
    if (next.tile < tiles) {
      fetch_a(slots + to_fill * A_CHUNK_BYTES, p, s, next);
      advance(next, p, cta, s);
    }
    copy_commit();
    if (++to_fill == A_RING) to_fill = 0;
    if (i < 0) continue;
    if (fresh) {
      fresh = false;
#pragma unroll
      for (int j = 0; j < SUMS; ++j) sum[j] = 0.f;
    }
    barrier_wait(&ring.full[stage], phase);
    const char *a = slots + now * A_CHUNK_BYTES, *b = stages + stage * STAGE_BYTES;
#if FP16X2
    const RowScales scales = row_scales(a);
    multiply(acc, a, scales, smem_address(b));
    const int4 extreme = ring.extreme[stage];
    add_scaled(sum, acc, scales, reinterpret_cast<const float*>(b + SCALES), extreme.x | extreme.y | extreme.z | extreme.w);
    arrive_warp(&ring.empty[stage]);
#else
    multiply(acc, a, {}, smem_address(b));
    arrive_warp(&ring.empty[stage]);
#pragma unroll
    for (int j = 0; j < SUMS; ++j) sum[j] += acc[j];
#endif
    if (++stage == STAGES) stage = 0, phase ^= 1;
    if (++now == A_RING) now = 0;
    const bool last = ++chunk == s.chunks;
    if (p.hold > 1 && (last || chunk % segment_chunks == 0)) {
      // A segment is done: the sum of those before it waits in this CTA's own partial.
      float* mine = p.partial + ((long long)tile * cta.parts + cta.part) * BM * BN;
      float4* v = reinterpret_cast<float4*>(sum);
      if (chunk > segment_chunks) {
#pragma unroll
        for (int j = 0; j < SUMS / 4; ++j) v[j] = __ldcg(slot(mine, j, threadIdx.x)) + v[j];
      }
      if (!last) write_partial(mine, sum);
      fresh = true;
    }
    if (last) {
      finish(p, cta, tile, sum);
      fresh = true, chunk = 0, tile += cta.walkers;
    }
  }
}

// --- all of it -------------------------------------------------------------------------------------------------------

// Of dynamic shared memory, see cake/program/registry.py.
static constexpr int A_SLOTS = STAGES * STAGE_BYTES, B_SLOTS = A_SLOTS + A_RING * A_CHUNK_BYTES;

// By all threads of a CTA, which may have more than this GEMM needs. `counted` is where the CTAs of a planted launch count.
static __device__ __forceinline__ void run(const Params& p, const Cta& cta, char* smem, unsigned* counted) {
  __shared__ Ring ring;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(&ring.full[i], 4);
      barrier_init(&ring.empty[i], 4 * MMA_GROUPS);
    }
    barrier_fence();
  }
  __syncthreads();
  wait_for_earlier_launches();
  if (threadIdx.x < MMA_THREADS) {
    if (C::MMA_REGISTERS) registers_up<C::MMA_REGISTERS>();
    multiply_tiles(p, cta, smem, smem + A_SLOTS, ring);
#ifdef PLANTED
    sync_threads(MMA_BARRIER, MMA_THREADS);
    spin_if_last(counted, count_in(counted), p.spin);
#endif
  } else if (threadIdx.x < MMA_THREADS + 128) {
    if (C::MMA_REGISTERS) registers_down<C::CONVERT_REGISTERS>();
    convert(p, cta, smem, smem + B_SLOTS, ring);
  }
}

};

}  // namespace cake
