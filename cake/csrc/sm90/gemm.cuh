// FP32 router GEMM on Hopper: out[M,N] = A[M,K] B[K,N] with FP32 accuracy from 16-bit warpgroup products (wgmma).
//
// A CTA has MMA_GROUPS x K_GROUPS warpgroups that multiply and one that converts. A row of A belongs to one thread quad for
// good: a warp's 16 rows of FP32 elements come by boxes (cp.async.bulk.tensor) into slots that only this warp reads, are split
// in registers and go to the tensor cores from there. B is shared: each warp of the converting warpgroup has boxes of its own
// too, splits them and stores the parts into a ring of STAGES in shared memory, CHUNK = 64 of K each. So no element is split
// twice in a CTA, no warp waits for another one's copies, and edges are filled with zeros by the hardware.
//
// Along K, the elements that a thread has of a step are put at places 2c, 2c+1, 2c+8, 2c+9 of a product's 16, which is where a
// thread of a quad holds its part of A: four neighbours where an operand's unit stride runs along K, else those whose rows
// in shared memory lie in different banks. B is stored in the same order. A sum does not mind.
//
// Code is kept short on purpose: a launch with a cold L2 waits for its instructions too (they were half of a launch's time at
// T = 64), so loops are rolled where registers allow it.
//
// The tensor cores truncate as they add: per chunk, the small products of all its steps come first, then the leading
// ones; the sum of a chunk is added to FP32 registers. With two K_GROUPS every other chunk is another warpgroup's, which hands
// its sum over; they are added in the order of the chunks all the same.
//
// BF16x3: 3 parts, 6 products. FP16X2: 2 parts, 3 products; every row of A and column of B has a power of two for each
// chunk, which the thread quad of the row and a converting warp find before they split it.
//
// Defines: CHUNK, GROUP, COUNTERS; FP16X2 (or none); PLANTED as in sm80/router.cu. Those of a GEMM are in its config, below.
#pragma once
#include "sm90/output.cuh"

namespace cake {

// What tells one program's GEMM from another's, from defines that begin with a name: MMA_GROUPS, BN (the tile is 64 MMA_GROUPS
// x BN), K_GROUPS, STAGES, A_RING and B_RING (chunks of A and B that shared memory holds as they are; of A a K group), UNIT, SIDE,
// PAD (see B below), MMA_REGISTERS and CONVERT_REGISTERS, A_UNIT_K / B_UNIT_K (1: unit stride along K; 0: along
// M or N), A_BF16 / B_BF16.
#define CAKE_CONFIG(name)                                                                                                   \
  static constexpr int MMA_GROUPS = name##_MMA_GROUPS, K_GROUPS = name##_K_GROUPS, BN = name##_BN, STAGES = name##_STAGES;  \
  static constexpr int A_RING = name##_A_RING, B_RING = name##_B_RING;                                                      \
  static constexpr int UNIT = name##_UNIT, SIDE = name##_SIDE, PAD = name##_PAD;                                            \
  static constexpr int MMA_REGISTERS = name##_MMA_REGISTERS, CONVERT_REGISTERS = name##_CONVERT_REGISTERS;                  \
  static constexpr bool A_UNIT_K = name##_A_UNIT_K, B_UNIT_K = name##_B_UNIT_K, A_BF16 = name##_A_BF16, B_BF16 = name##_B_BF16;

#if FP16X2
// 2^e in two factors: those of a row and of a column, each multiplied with its like, stay in FP32's range wherever the whole does.
__device__ __forceinline__ float2 halves_of_power(int e) { return make_float2(power_of_two(e >> 1), power_of_two(e - (e >> 1))); }
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

// 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, ...: of 16.
__device__ constexpr int fours_of_pairs(int p) { return p / 16 * 16 + p % 2 + p % 8 / 2 * 4 + p % 16 / 8 * 2; }

__device__ __forceinline__ float largest(float4 x) {
  return fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
}

template <class C>
struct Gemm {

static constexpr int MMA_GROUPS = C::MMA_GROUPS, K_GROUPS = C::K_GROUPS, BM = 64 * MMA_GROUPS, BN = C::BN, STAGES = C::STAGES;
static constexpr int A_RING = C::A_RING, B_RING = C::B_RING, UNIT = C::UNIT, SIDE = C::SIDE, PAD = C::PAD;
static constexpr bool A_UNIT_K = C::A_UNIT_K, B_UNIT_K = C::B_UNIT_K, A_BF16 = C::A_BF16, B_BF16 = C::B_BF16;
static constexpr int TILE_THREADS = 2 * BM;  // that have a tile's sums
static constexpr int MMA_THREADS = TILE_THREADS * K_GROUPS, THREADS = MMA_THREADS + 128;  // that multiply, and with those that convert
using Source = cake::Source<BM, BN>;
// Where no unit stride runs along K its order inside a step is free: threads then read neighbouring lines, see pair_a.
static constexpr bool FREE_ORDER = !A_UNIT_K && !B_UNIT_K;

// --- what a warp copies ------------------------------------------------------------------------------------------------

// What a warp copies of every chunk of an operand: boxes, side by side along their first axis, to one of its slots.
struct Share {
  const TensorMap* map;
  bool of_a, unit_k;
  int k, line;  // of its first element: from where the chunk, and the tile, begin
  int bytes, boxes, box_bytes, box_step;
};
// Lets go the next chunk's.
static __device__ __forceinline__ void fetch(const Share& share, const char* slot, const Params& p, const Cta& cta, Source& next,
                                             unsigned long long* barrier) {
  if (!next.left(p)) return;
  if (threadIdx.x % 32 == 0) {
    const int k = next.k + share.k, line = (share.of_a ? next.m0 : next.n0) + share.line;
    int x = share.unit_k ? k : line;
    barrier_expect(barrier, share.bytes);
#pragma unroll 1
    for (int i = 0; i < share.boxes; ++i, x += share.box_step, slot += share.box_bytes)
      copy_box(slot, *share.map, x, share.unit_k ? line : k, barrier);
  }
  next.advance(p, cta);
  __syncwarp();
}

// --- the order along K ---------------------------------------------------------------------------------------------------

// Which element of 16 along K takes place p of a product's 16, by bits that change places: so p's bits can be dealt with one by one.
static __device__ constexpr int element_at(int p) {
  return FREE_ORDER ? p / 16 * 16 + p % 2 * 2 + p / 2 % 2 + p % 16 / 4 * 4 : fours_of_pairs(p);
}
// Thread c of a quad holds places 2c, 2c + 1, 2c + 8 and 2c + 9: elements 4c ... 4c + 3, or in free order every other one of 8.
static __device__ constexpr int element(int c, int j) { return element_at(c * 2 + j % 2 + j / 2 * 8); }

// Columns are put at places in the same way, so that the two pairs that a thread has of 16 columns' sums are 4 neighbours of the
// output: half the stores. Where a converting warp's columns are 16s, that is.
static constexpr bool FOURS = (FP16X2 ? BN / 4 : BN) % 16 == 0;
static __device__ constexpr int column_at(int p) { return FOURS ? fours_of_pairs(p) : p; }

// --- B ---------------------------------------------------------------------------------------------------------------

static constexpr int A_PARTS = FP16X2 ? 2 : (A_BF16 ? 1 : 3), B_PARTS = FP16X2 ? 2 : (B_BF16 ? 1 : 3);
// Core matrices of 8 x 8 lie side by side along K; PAD bytes keep a warp's stores to several columns of them in different banks.
static constexpr int ALONG_K = 128, ALONG_N = ALONG_K * (BK / 8) + PAD;
static constexpr int PART_BYTES = ALONG_N * (BN / 8), SCALES = B_PARTS * PART_BYTES;  // FP16X2: where the columns' scales begin
static constexpr int STAGE_BYTES = SCALES + (FP16X2 ? BN * 8 : 0);
// A converting warp has a share of every chunk: a step of K with all columns (16 x BN), or with FP16x2, whose scales are those of
// whole columns, all steps of a quarter of the columns. It comes as one box, or as one a step, and lies in memory as the operand
// does: lines of SHARE_K elements along K, or of SHARE_N along N.
static constexpr int SHARE_K = FP16X2 ? BK : 16, SHARE_N = FP16X2 ? BN / 4 : BN;
static constexpr int B_SIZE = B_BF16 ? 2 : 4, SHARE_BYTES = SHARE_K * SHARE_N * B_SIZE;
static constexpr int B_BOXES = B_UNIT_K ? SHARE_K / 16 : 1;

// A thread's loads are of 4 neighbours along the unit stride. Where that runs along N, SIDE threads lie side by side along a line,
// and a thread has the same columns in B_LINES loads.
static constexpr int B_LOADS = BK * BN / 4 / 128;
static constexpr int B_LINES = SHARE_K * SIDE / 32;
static_assert(B_LOADS * 4 * 128 == BK * BN && SHARE_BYTES % 128 == 0, "");

// What a thread splits at once: UNIT loads. With FP16x2 these are whole columns. Units are alike, so that they are gone through
// in a loop.
static constexpr int UNITS = B_LOADS / UNIT;
static constexpr int BATCH = UNIT <= 6 ? UNIT : (UNIT % 5 ? 4 : 5);  // loads on their way from shared memory at once
static_assert(UNIT * UNITS == B_LOADS && UNIT % BATCH == 0 && !(FP16X2 && UNIT != (B_UNIT_K ? STEPS : B_LINES)), "");

// A thread's first load of a share, and how far from there its i-th is. Across lines in places, so that neighbouring threads store
// to neighbouring places: along K where lines run along N, along N where they run along K.
static __device__ __forceinline__ void first_b(int& k, int& n) {
  const int lane = threadIdx.x % 32;
  k = B_UNIT_K ? lane % 4 * 4 : lane / SIDE;
  n = B_UNIT_K ? lane / 4 : lane % SIDE * 4;
}
static __device__ constexpr int further_k(int i) {
  return B_UNIT_K ? (FP16X2 ? i % STEPS * 16 : 0) : i % B_LINES * (32 / SIDE);
}
static __device__ constexpr int further_n(int i) {
  return B_UNIT_K ? (FP16X2 ? i / STEPS : i) * 8 : i / B_LINES * SIDE * 4;
}
// The same as bytes of a share: [step][column][16 along K], or [line][SHARE_N].
static __device__ constexpr int raw(int k, int n) {
  return (B_UNIT_K ? k / 16 * 16 * SHARE_N + column_at(n) * 16 + k % 16 : element_at(k) * SHARE_N + n) * B_SIZE;
}
// The place of column n where lines run along N, n a multiple of 4; with FOURS columns n + 2 and n + 3 are 8 places further.
static __device__ constexpr int place_of(int n) { return FOURS ? n / 16 * 16 + n % 16 / 2 : n; }
// The same as bytes of a stage.
static __device__ constexpr int stored(int k, int n) {
  return B_UNIT_K ? k / 16 * 2 * ALONG_K + k % 16 + n / 8 * ALONG_N + n % 8 * 16
                  : k * 16 + place_of(n) / 8 * ALONG_N + place_of(n) % 8 * 2;
}
// A warp's share, and a thread's first element of it.
static __device__ __forceinline__ int first_stored() {
  const int warp = threadIdx.x % 128 / 32;
  int k, n;
  first_b(k, n);
  return (FP16X2 ? stored(k, n + warp * SHARE_N) : stored(k + warp * 16, n));
}

// Stores the parts of a load at its place in a stage.
static __device__ __forceinline__ void store_b(char* to, const Four<B_BF16>& v, float4 down) {
  unsigned first[B_PARTS], second[B_PARTS];
  split_four(v, down, first, second);
#pragma unroll
  for (int p = 0; p < B_PARTS; ++p, to += PART_BYTES) {
    if (B_UNIT_K || FOURS) {
      *reinterpret_cast<unsigned*>(to) = first[p];
      *reinterpret_cast<unsigned*>(to + (B_UNIT_K ? ALONG_K : ALONG_N)) = second[p];
    } else {
      *reinterpret_cast<uint2*>(to) = make_uint2(first[p], second[p]);
    }
  }
}

// A unit, split and stored; `to` is the place of its first element, `from` where that came to.
static __device__ __forceinline__ void split_b(char* to, const char* from, float4 down) {
#pragma unroll
  for (int i = 0; i < UNIT; i += BATCH) {
    Four<B_BF16> v[BATCH];
#pragma unroll
    for (int j = 0; j < BATCH; ++j) load_slot(v[j], from + raw(further_k(i + j), further_n(i + j)));
#pragma unroll
    for (int j = 0; j < BATCH; ++j) store_b(to + stored(further_k(i + j), further_n(i + j)), v[j], down);
  }
}

// --- A ---------------------------------------------------------------------------------------------------------------

// A thread's elements of a step: two rows, 4 elements along K. A warp's 16 rows of a chunk come as lines of at most 128 bytes:
//   unit stride along K: [box][16 rows][128 bytes along K], 16-byte units of row r at unit ^ r % 8;
//   else:                [64 of K][16 rows], 16-byte units of the 4 (FP32) or 2 of line k at unit ^ k / 2 % 4 or ^ k / 4 % 2.
static constexpr int A_SIZE = A_BF16 ? 2 : 4;
static constexpr int A_WARP_BYTES = BK * 16 * A_SIZE, A_CHUNK_BYTES = A_WARP_BYTES * (MMA_THREADS / 32);
static constexpr int A_BOX_K = A_UNIT_K ? 128 / A_SIZE : BK;

// A thread's first row of two, and the step to the second. Rows of neighbouring quads are 4 apart, and then 2: their units
// are in different banks.
struct Rows {
  static __device__ __forceinline__ int first(int lane) {
    const int quad = lane / 4;
    return A_UNIT_K ? quad % 2 * 4 + quad / 2 % 2 * 2 + quad / 4 : quad * 2;
  }
  static constexpr int STEP = A_UNIT_K ? 8 : 1;
};
using Out = Output<BM, BN, Rows, FOURS>;
static constexpr int SUMS = Out::SUMS;
using Sums = typename Out::Sums;

// A thread's elements of row Rows::first + h * Rows::STEP in a step, neighbours along K.
static __device__ __forceinline__ const char* row_a(const char* slot, int step, int h) {
  const int lane = threadIdx.x % 32, row = Rows::first(lane), c = lane % 4;
  constexpr int STEP_UNITS = A_SIZE;  // units of 16 bytes a step, 8 units a line
  const int unit = step * STEP_UNITS % 8 + c * A_SIZE / 4;
  return slot + step * STEP_UNITS / 8 * 2048 + (row + h * 8) * 128 + (unit ^ row) * 16 + c * 4 * A_SIZE % 16;
}
// A thread's two rows at its j-th element in a step, neighbours along M.
static __device__ __forceinline__ const char* pair_a(const char* slot, int step, int j) {
  const int lane = threadIdx.x % 32, row = Rows::first(lane), k = element(lane % 4, j);
  const int trade = A_BF16 ? k / 4 % 2 : k / 2 % 4;
  return slot + (step * 16 + k) * 16 * A_SIZE + ((row * A_SIZE / 16) ^ trade) * 16 + row * A_SIZE % 16;
}

// A multiplying warp's share of A: 16 rows.
static __device__ __forceinline__ Share share_of_a(const MappedParams& p) {
  const int row = (int)threadIdx.x % TILE_THREADS / 32 * 16;
  return {&p.a, true, A_UNIT_K, 0, row, A_WARP_BYTES, BK / A_BOX_K, A_BOX_K * 16 * A_SIZE, A_BOX_K};
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

static __device__ __forceinline__ RowScales row_scales(const char* slot) {
  float most[2] = {0.f, 0.f};
#pragma unroll
  for (int i = 0; i < STEPS * (A_UNIT_K ? 2 : 4); ++i) {
    if (A_UNIT_K) {
      Four<A_BF16> v;
      load_slot(v, row_a(slot, i / 2, i % 2));
      most[i % 2] = fmaxf(most[i % 2], largest(floats(v)));
    } else {
      const float2 x = load_two(pair_a(slot, i / 4, i % 4));
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

// Steps whose parts are held at once, and how many of a chunk are split before its first product: all where sums are few, else
// a step is split while the one before it is multiplied.
static constexpr int HELD = SUMS <= 24 ? STEPS : 2, AHEAD = SUMS <= 24 ? STEPS : 1;
struct Parts {
  unsigned part[HELD][A_PARTS][4], leading[STEPS][4];
};

// The parts of a step as the registers of a product: rows r, r + 8 x places (2c, 2c + 1), then x (2c + 8, 2c + 9).
static __device__ __forceinline__ void parts_a(const char* slot, int step, const RowScales& scales, unsigned (&part)[A_PARTS][4]) {
  if constexpr (A_UNIT_K) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      Four<A_BF16> v;
      load_slot(v, row_a(slot, step, h));
      const float s = scales.down(h);
      unsigned first[A_PARTS], second[A_PARTS];
      split_four(v, make_float4(s, s, s, s), first, second);
#pragma unroll
      for (int q = 0; q < A_PARTS; ++q) part[q][h] = first[q], part[q][2 + h] = second[q];
    }
  } else if constexpr (A_PARTS == 1) {
    unsigned x[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = *reinterpret_cast<const unsigned*>(pair_a(slot, step, j));
    part[0][0] = __byte_perm(x[0], x[1], 0x5410), part[0][1] = __byte_perm(x[0], x[1], 0x7632);
    part[0][2] = __byte_perm(x[2], x[3], 0x5410), part[0][3] = __byte_perm(x[2], x[3], 0x7632);
  } else {
    float2 x[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = load_two(pair_a(slot, step, j));
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

// --- the two kinds of warpgroups -----------------------------------------------------------------------------------------

struct Ring {
  unsigned long long full[STAGES], empty[STAGES];
  unsigned long long a[MMA_THREADS / 32][A_RING], b[4][B_RING];  // of each warp's slots: what was let go is there
  unsigned long long handed, taken;                              // a chunk's sums from K group 1 to K group 0
};

#if FP16X2
// The largest magnitudes of the columns that a thread has in a unit: of one column (unit stride along K), or of 4.
static __device__ __forceinline__ float4 largest_of_columns(const char* from) {
  float4 m = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
  for (int i = 0; i < UNIT; ++i) {
    Four<B_BF16> v;
    load_slot(v, from + raw(further_k(i), further_n(i)));
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

// A unit of B, split, stored and with the scales of its columns, by a warp that has them to itself.
static __device__ __forceinline__ void scale_and_split_b(char* to, float2* scales, const char* from) {
  const int lane = threadIdx.x % 32;
  const float4 m = largest_of_columns(from);
  const float most[4] = {m.x, m.y, m.z, m.w};
  float2 up[4];
  float down[4];
#pragma unroll
  for (int j = 0; j < (B_UNIT_K ? 1 : 4); ++j) {
    const int e = scale_exponent(__float_as_uint(most[j]));
    up[j] = halves_of_power(e), down[j] = power_of_two(-e);
  }
  if (B_UNIT_K) {
    if (lane % 4 == 0) *scales = up[0];
    down[1] = down[2] = down[3] = down[0];
  } else if (lane < SIDE) {
    *reinterpret_cast<float4*>(scales) = make_float4(up[0].x, up[0].y, up[1].x, up[1].y);
    *reinterpret_cast<float4*>(scales + (FOURS ? 8 : 2)) = make_float4(up[2].x, up[2].y, up[3].x, up[3].y);
  }
  split_b(to, from, make_float4(down[0], down[1], down[2], down[3]));
}
#endif

// A converting warp's share of B, see SHARE_K and SHARE_N.
static __device__ __forceinline__ Share share_of_b(const MappedParams& p) {
  const int warp = threadIdx.x % 128 / 32;
  return {&p.b, false, B_UNIT_K, FP16X2 ? 0 : warp * 16, FP16X2 ? warp * SHARE_N : 0, SHARE_BYTES, B_BOXES, SHARE_BYTES / B_BOXES, 16};
}

static __device__ __forceinline__ void convert(const MappedParams& mapped, const Cta& cta, const Span& s, char* stages, const char* slots,
                                               Ring& ring, Source next) {
  const int tiles = tiles_of(mapped.params), to_store = first_stored(), warp = threadIdx.x % 128 / 32;
  int k, n;
  first_b(k, n);
  int slot = 0, stage = 0;
  unsigned phase = 0, slot_phase = 0;
#pragma unroll 1
  for (int tile = cta.tile, chunk = 0; tile < tiles;) {
    barrier_wait(&ring.b[warp][slot], slot_phase);
    barrier_wait(&ring.empty[stage], phase ^ 1);
    char* to = stages + stage * STAGE_BYTES;
    const char* from = slots + slot * SHARE_BYTES;
#pragma unroll 1
    for (int unit = 0; unit < UNITS; ++unit) {
      const int i = unit * UNIT;
      char* place = to + to_store + stored(further_k(i), further_n(i));
      const char* share = from + raw(k, n) + raw(further_k(i), further_n(i));
#if FP16X2
      float2* scales = reinterpret_cast<float2*>(to + SCALES) + warp * SHARE_N + (B_UNIT_K ? n + further_n(i) : place_of(n + further_n(i)));
      scale_and_split_b(place, scales, share);
#else
      split_b(place, share, make_float4(1.f, 1.f, 1.f, 1.f));
#endif
    }
    fence_async();
    barrier_arrive(&ring.full[stage]);
    __syncwarp();  // all of the warp have read the slot
    fetch(share_of_b(mapped), from, mapped.params, cta, next, &ring.b[warp][slot]);
    if (++stage == STAGES) stage = 0, phase ^= 1;
    if (++slot == B_RING) slot = 0, slot_phase ^= 1;
    if (++chunk == s.chunks) chunk = 0, tile += cta.walkers;
  }
}

// Lets go a chunk's products into `acc`, small ones first. Its first steps, AHEAD of them, are split already. Two batches are
// under way at its end: the last of the small ones, and the leading ones. (To split the next chunk's first step meanwhile was
// tried: ptxas then waits for every product.)
static __device__ __forceinline__ void multiply(Sums& acc, Parts& parts, const char* slot, const RowScales& scales, unsigned b_stage) {
  auto b_part = [&](int part, int step) {
    return descriptor(b_stage + part * PART_BYTES + step * 2 * ALONG_K, ALONG_K, ALONG_N);
  };
  auto& [part, leading] = parts;
  bool keep = false;
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    if (step >= AHEAD) parts_a(slot, step, scales, part[step % HELD]);
#pragma unroll
    for (int r = 0; r < 4; ++r) leading[step][r] = part[step % HELD][0][r];
    if (A_PARTS == 1 && B_PARTS == 1) continue;
    wgmma_fence();
#pragma unroll
    for (int weight = FP16X2 ? 1 : 2; weight >= 1; --weight)
#pragma unroll
      for (int i = A_PARTS - 1; i >= 0; --i) {
        const int j = weight - i;
        if (j < 0 || j >= B_PARTS) continue;
        wgmma<BN, !B_UNIT_K>(acc, part[step % HELD][i], b_part(j, step), keep);
        keep = true;
      }
    wgmma_commit();
    if (HELD < STEPS) wgmma_wait<HELD - 1>();  // the oldest step's registers are free
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
}

#if FP16X2
// Gives a chunk's sums the scales of their rows and columns.
static __device__ __forceinline__ void scale_sums(Sums& acc, const RowScales& rows, const char* columns) {
  const float4* pair = reinterpret_cast<const float4*>(columns) + threadIdx.x % 4;
  const float2 up[2] = {halves_of_power(rows.e[0]), halves_of_power(rows.e[1])};
#pragma unroll
  for (int i = 0; i < SUMS; ++i) {
    const float4 c = pair[i / 4 * 4];
    const float2 r = up[i % 4 / 2];
    acc[i] = acc[i] * (r.x * (i % 2 ? c.z : c.x)) * (r.y * (i % 2 ? c.w : c.y));
  }
}
#endif

// The sums of a chunk from K group 1, for K group 0 to add: SUMS / 4 float4 a thread.
static __device__ __forceinline__ float4* handed(char* sums, int i) {
  return reinterpret_cast<float4*>(sums) + i * TILE_THREADS + (int)threadIdx.x % TILE_THREADS;
}
static __device__ __forceinline__ void hand_over(char* sums, const Sums& acc, Ring& ring, unsigned& phase) {
  barrier_wait(&ring.taken, phase ^ 1);
#pragma unroll
  for (int i = 0; i < SUMS / 4; ++i) *handed(sums, i) = reinterpret_cast<const float4*>(acc)[i];
  barrier_arrive(&ring.handed);
  phase ^= 1;
}
static __device__ __forceinline__ void take_over(char* sums, Sums& sum, Ring& ring, unsigned& phase) {
  barrier_wait(&ring.handed, phase);
  float4* v = reinterpret_cast<float4*>(sum);
#pragma unroll
  for (int i = 0; i < SUMS / 4; ++i) v[i] = v[i] + *handed(sums, i);
  barrier_arrive(&ring.taken);
  phase ^= 1;
}

static __device__ __forceinline__ void multiply_tiles(const MappedParams& mapped, const Cta& cta, const Span& s, const char* stages,
                                                      const char* slots, char* sums, Ring& ring, Source next) {
  const Params& p = mapped.params;
  const int tiles = tiles_of(p), segment_chunks = p.segment / CHUNK, warp = threadIdx.x / 32;
  const int group = K_GROUPS == 1 ? 0 : threadIdx.x / TILE_THREADS;  // its chunks are `group`, `group` + K_GROUPS, ... of a tile
  Sums acc, sum;
  Parts parts;
  RowScales scales;
  int slot = 0, stage = 0, segment_left = segment_chunks;
  unsigned phase = 0, slot_phase = 0, hand_phase = 0;
  bool owed = false;  // K group 0: whether the chunk before is the other's, and not added yet
#pragma unroll
  for (int j = 0; j < SUMS; ++j) sum[j] = 0.f;
#pragma unroll 1
  for (int tile = cta.tile, chunk = 0; tile < tiles;) {
    const bool last = chunk + 1 == s.chunks, segment_ends = last || (p.hold > 1 && segment_left == 1);
    if (K_GROUPS == 1 || chunk % K_GROUPS == group) {
      const char *a = slots + slot * A_WARP_BYTES, *b = stages + stage * STAGE_BYTES;
      barrier_wait(&ring.a[warp][slot], slot_phase);
#if FP16X2
      scales = row_scales(a);
      asm volatile("" ::: "memory");  // elements are read again, not kept in 32 registers
#endif
#pragma unroll
      for (int step = 0; step < AHEAD; ++step) parts_a(a, step, scales, parts.part[step]);
      barrier_wait(&ring.full[stage], phase);
      multiply(acc, parts, a, scales, smem_address(b));
      __syncwarp();  // all of the warp have read the slot
      fetch(share_of_a(mapped), a, p, cta, next, &ring.a[warp][slot]);
      if (++slot == A_RING) slot = 0, slot_phase ^= 1;
      wgmma_wait<0>();
#if FP16X2
      scale_sums(acc, scales, b + SCALES);
#endif
      barrier_arrive(&ring.empty[stage]);
      if (group) {
        hand_over(sums, acc, ring, hand_phase);
      } else {
        if (owed) take_over(sums, sum, ring, hand_phase);
#pragma unroll
        for (int j = 0; j < SUMS; ++j) sum[j] += acc[j];
      }
      owed = false;
    } else if (group == 0) {
      owed = true;
      if (segment_ends) take_over(sums, sum, ring, hand_phase), owed = false;
    }
    if (++stage == STAGES) stage = 0, phase ^= 1;
    ++chunk, --segment_left;
    if (!segment_ends) continue;
    if (group == 0 && p.hold > 1) {
      // The sum of the segments before it waits in this CTA's own partial.
      float* own = p.partial + (long long)(tile * cta.parts + cta.part) * (BM * BN);
      if (chunk > segment_chunks) Out::template add_partial<SUMS>(own, sum);
      if (!last) Out::template write_partial<SUMS>(own, sum);
    }
    if (last) {
      if (group == 0) Out::finish(p, cta, tile, sum);
      chunk = 0, tile += cta.walkers;
    }
    segment_left = segment_chunks;
#pragma unroll
    for (int j = 0; j < SUMS; ++j) sum[j] = 0.f;
  }
}

// --- all of it -------------------------------------------------------------------------------------------------------

// Of dynamic shared memory, see cake/program/registry.py: slots of A first, whose boxes have the strictest alignment.
static constexpr int STAGES_AT = A_RING * A_CHUNK_BYTES, B_SLOTS_AT = STAGES_AT + STAGES * STAGE_BYTES;
static constexpr int SUMS_AT = B_SLOTS_AT + B_RING * 4 * SHARE_BYTES;

// By all threads of a CTA. Every warp lets its first copies go before anything else, all by the same few instructions: these come
// from memory as well, and those of all else while the copies are on their way.
static __device__ __forceinline__ void run(const MappedParams& p, const Cta& cta, char* smem) {
  __shared__ Ring ring;
  const Span s = span_of(p.params, cta);
  const int warp = threadIdx.x / 32;
  const bool multiplies = threadIdx.x < MMA_THREADS;
  const Share share = multiplies ? share_of_a(p) : share_of_b(p);
  const int slot_count = multiplies ? A_RING : B_RING;
  const char* slots = smem + (multiplies ? warp * A_RING * A_WARP_BYTES : B_SLOTS_AT + warp % 4 * B_RING * SHARE_BYTES);
  unsigned long long* own = multiplies ? ring.a[warp] : ring.b[warp % 4];
  if (threadIdx.x % 32 == 0) prefetch_map(*share.map);
  wait_for_earlier_launches();
  Source next;
  next.begin(p.params, cta, s, multiplies && K_GROUPS > 1 ? threadIdx.x / TILE_THREADS : 0, multiplies ? K_GROUPS : 1);
#pragma unroll 1
  for (int i = 0; i < slot_count; ++i) {
    if (threadIdx.x % 32 == 0) {
      barrier_init(&own[i], 1);
      barrier_fence();
    }
    __syncwarp();  // else racecheck takes the initialisation for another thread's
    fetch(share, slots + i * share.bytes, p.params, cta, next, &own[i]);
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(&ring.full[i], 128);
      barrier_init(&ring.empty[i], TILE_THREADS);
    }
    barrier_init(&ring.handed, TILE_THREADS);
    barrier_init(&ring.taken, TILE_THREADS);
  }
  __syncthreads();
  if (multiplies) {
    registers_up<C::MMA_REGISTERS>();
    multiply_tiles(p, cta, s, smem + STAGES_AT, slots, smem + SUMS_AT, ring, next);
#ifdef PLANTED
    if (threadIdx.x < TILE_THREADS) {
      sync_threads(MMA_BARRIER, TILE_THREADS);
      if (threadIdx.x == 0) spin(p.params.spin);
    }
#endif
  } else {
    registers_down<C::CONVERT_REGISTERS>();
    convert(p, cta, s, smem + STAGES_AT, slots, ring, next);
  }
}

};

}  // namespace cake
