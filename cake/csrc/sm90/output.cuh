// How a tile's sums, in the registers of the warpgroups that multiply, reach the output: alone, or together with those of the other
// CTAs that have parts of the tile's K.
#pragma once
#include "sm90/cta.cuh"

namespace cake {

__device__ __forceinline__ float4 operator+(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
__device__ __forceinline__ float2 operator+(const float2& a, const float2& b) { return make_float2(a.x + b.x, a.y + b.y); }

// One pair of neighbouring sums, or two.
template <bool PAIR>
struct PieceOf { using type = float2; };
template <>
struct PieceOf<false> { using type = float4; };

// A tile of BM x BN, held by TILE_THREADS: each warp has 16 rows, and Rows says which of them a quad's first one is, and the step to
// its second. FOURS: columns trade places inside sixteens (fours_of_pairs), so that the two pairs that a thread has of 16 columns' sums
// are 4 neighbours of the output: half the stores.
template <int BM, int BN, class Rows, bool FOURS>
struct Output {

static constexpr int TILE_THREADS = 2 * BM, SUMS = BN / 2;  // of a thread
using Sums = float[SUMS];

// A thread's first row of the tile.
static __device__ __forceinline__ int row_of(int thread) { return thread / 32 * 16 + Rows::first(thread % 32); }

static __device__ __forceinline__ void convert_to(float& out, float v) { out = v; }
static __device__ __forceinline__ void convert_to(unsigned short& out, float v) { out = (unsigned short)pack_bf16(v, v); }

// The column of the tile of a pair of a thread's sums, s[4 * block] and s[4 * block + 1] of its upper row.
static __device__ __forceinline__ int column_of(int lane, int block) {
  const int c = lane % 4;
  return FOURS ? block / 2 * 16 + c * 4 + block % 2 * 2 : block * 8 + c * 2;
}

// One element after the other, as far as they are inside the output.
template <int N, typename T>
static __device__ __forceinline__ void store_elements(const Params& p, int row, int n0, const Sums& s) {
  const int lane = threadIdx.x % 32, left = p.n - n0;
  T* upper = static_cast<T*>(p.out) + row * p.out_row + n0 * p.out_col;
  T* lower = upper + Rows::STEP * p.out_row;
  const bool inside[2] = {row < p.m, row + Rows::STEP < p.m};
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int c = column_of(lane, i / 4) + i % 2;
    if (inside[i % 4 / 2] && c < left) convert_to((i % 4 < 2 ? upper : lower)[c * p.out_col], s[i]);
  }
}

static __device__ __forceinline__ void store_two(float* to, float x, float y) { *reinterpret_cast<float2*>(to) = make_float2(x, y); }
static __device__ __forceinline__ void store_two(unsigned short* to, float x, float y) { *reinterpret_cast<unsigned*>(to) = pack_bf16(x, y); }
static __device__ __forceinline__ void store_four(float* to, float x, float y, float z, float w) {
  *reinterpret_cast<float4*>(to) = make_float4(x, y, z, w);
}
static __device__ __forceinline__ void store_four(unsigned short* to, float x, float y, float z, float w) {
  *reinterpret_cast<uint2*>(to) = make_uint2(pack_bf16(x, y), pack_bf16(z, w));
}

// Neighbours at once: of a whole tile whose rows lie in memory.
template <int N, typename T>
static __device__ __forceinline__ void store_whole(const Params& p, int row, int n0, const Sums& s) {
  T* upper = static_cast<T*>(p.out) + row * p.out_row + n0 + column_of(threadIdx.x % 32, 0);
  T* lower = upper + Rows::STEP * p.out_row;
#pragma unroll
  for (int i = 0; i < N; i += FOURS ? 8 : 4) {
    const int c = i * 2;  // 4 sums are 8 columns of a quad
    if (FOURS) {
      store_four(upper + c, s[i], s[i + 1], s[i + 4], s[i + 5]);
      store_four(lower + c, s[i + 2], s[i + 3], s[i + 6], s[i + 7]);
    } else {
      store_two(upper + c, s[i], s[i + 1]);
      store_two(lower + c, s[i + 2], s[i + 3]);
    }
  }
}

// The columns of a tile from n0 on that a thread's first N sums are of.
template <int N>
static __device__ __forceinline__ void store_columns(const Params& p, int m0, int n0, const Sums& s) {
  const int row = m0 + row_of(threadIdx.x);
  const bool whole = m0 + BM <= p.m && n0 + N * 2 <= p.n && p.out_col == 1;
  if (whole && !p.out_bf16) store_whole<N, float>(p, row, n0, s);
  else if (whole) store_whole<N, unsigned short>(p, row, n0, s);
  else if (p.out_bf16) store_elements<N, unsigned short>(p, row, n0, s);
  else store_elements<N, float>(p, row, n0, s);
}

// The sums of a tile as SUMS / 4 rows of float4, neighbours in memory held by neighbouring threads.
static __device__ __forceinline__ float4* slot_of(float* part, int i, int thread) {
  return reinterpret_cast<float4*>(part) + i * TILE_THREADS + thread;
}
// The first N of them.
template <int N>
static __device__ __forceinline__ void write_partial(float* part, const Sums& s) {
  const float4* v = reinterpret_cast<const float4*>(s);
#pragma unroll
  for (int i = 0; i < N / 4; ++i) __stcg(slot_of(part, i, threadIdx.x), v[i]);
}
template <int N>
static __device__ __forceinline__ void add_partial(float* part, Sums& s) {
  float4* v = reinterpret_cast<float4*>(s);
#pragma unroll
  for (int i = 0; i < N / 4; ++i) v[i] = __ldcg(slot_of(part, i, threadIdx.x)) + v[i];
}

// CTAs that add a tile's partial sums do so in pieces: pairs of neighbours where a CTA has few, so that several warps have some, else
// two pairs. They are numbered as write_partial leaves them.
static constexpr bool BY_PAIRS = SUMS <= 32;
using Piece = typename PieceOf<BY_PAIRS>::type;
static constexpr int PIECES = SUMS * TILE_THREADS / (BY_PAIRS ? 2 : 4);

static __device__ __forceinline__ void store_piece(const Params& p, int m0, int n0, int piece, const Piece& v) {
  const int slot = BY_PAIRS ? piece / 2 : piece, lane = slot % 32;
  const int row = m0 + row_of(slot % TILE_THREADS), column = n0 + column_of(lane, slot / TILE_THREADS);
  if constexpr (BY_PAIRS) {
    store_pair(p, row + piece % 2 * Rows::STEP, column, &v.x);
  } else {
#pragma unroll 1
    for (int h = 0; h < 2; ++h) {
      const float pair[2] = {h ? v.z : v.x, h ? v.w : v.y};
      store_pair(p, row + h * Rows::STEP, column, pair);
    }
  }
}

// A piece summed over all parts, the first of which it is at, in the fixed order: groups in sequence, parts of a group in sequence.
// PARTS_AT_ONCE are on their way at once, one trip to the L2 for all of them.
static constexpr int PARTS_AT_ONCE = BY_PAIRS ? 16 : 8;
static __device__ __forceinline__ Piece sum_parts(const Piece* from, int parts, bool grouped) {
  static_assert(GROUP == 2, "groups are pairs");
  Piece total = {};
#pragma unroll 1
  for (int first = 0; first < parts; first += PARTS_AT_ONCE, from += PARTS_AT_ONCE * PIECES) {
    Piece v[PARTS_AT_ONCE];
#pragma unroll
    for (int j = 0; j < PARTS_AT_ONCE; ++j)
      if (first + j < parts) v[j] = __ldcg(from + j * PIECES);
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

// Waits until all CTAs of a tile have come here, which all are running (a cooperative launch). Who has come is counted in
// `counter`, which is 0 again behind the last one.
static __device__ __forceinline__ void meet(unsigned* counter, int parts) {
  sync_threads(MMA_BARRIER, TILE_THREADS);
  if (threadIdx.x == 0) {
    increment_release(counter, parts - 1);
    while (load_acquire(counter)) {}
  }
  sync_threads(MMA_BARRIER, TILE_THREADS);
}

// Puts the sums of a CTA's MMA warpgroups into the output, alone or together with the other CTAs of the tile: with SPREAD each
// waits for all and adds a share of the tile, with ORDERED the last to come adds all.
static __device__ __forceinline__ void finish(const Params& p, const Cta& cta, int tile, Sums& sum) {
  int m0, n0;
  origin<BM, BN>(p, tile, m0, n0);
  if (p.reduction == DIRECT) {
    store_columns<SUMS>(p, m0, n0, sum);
    return;
  }
  const int parts = cta.parts;
  const bool spread = p.reduction == SPREAD;
  float* all = p.partial + (long long)(tile * parts) * (BM * BN);
  float* mine = p.partial + (long long)(tile * parts + cta.part) * (BM * BN);
  unsigned* counter = p.counter + COUNTERS * (long long)tile;
  constexpr int HALF = BN % 32 ? 0 : SUMS / 2;
  if (HALF && spread && parts == 2) {
    // Two CTAs hand each other one half of their sums and store the other: the second one keeps the second half.
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
      const float x = sum[i], y = sum[i + HALF];
      sum[i] = cta.part ? x : y, sum[i + HALF] = cta.part ? y : x;
    }
    write_partial<HALF>(mine, sum);
    meet(counter, parts);
#pragma unroll
    for (int i = 0; i < HALF; ++i) sum[i] = sum[i + HALF];
    add_partial<HALF>(all + (1 - cta.part) * (BM * BN), sum);
    store_columns<HALF>(p, m0, n0 + cta.part * (BN / 2), sum);
    return;
  }
  write_partial<SUMS>(mine, sum);
  if (spread) {
    meet(counter, parts);
  } else {
    __shared__ bool last;
    sync_threads(MMA_BARRIER, TILE_THREADS);
    if (threadIdx.x == 0) last = increment_acq_rel(counter, parts - 1) == parts - 1;
    sync_threads(MMA_BARRIER, TILE_THREADS);
    if (!last) return;
  }
  // Shares are whole warps of pieces. As many parts as are read at once is the usual case, and a third of the code.
  const int share = spread ? (PIECES / 32 + parts - 1) / parts * 32 : PIECES, first = spread ? cta.part * share : 0;
  const bool usual = parts == PARTS_AT_ONCE, grouped = p.hold == 1;
#pragma unroll 1
  for (int piece = first + threadIdx.x; piece < min(first + share, PIECES); piece += TILE_THREADS) {
    const Piece* from = reinterpret_cast<const Piece*>(all) + piece;
    store_piece(p, m0, n0, piece, usual ? sum_parts(from, PARTS_AT_ONCE, grouped) : sum_parts(from, parts, grouped));
  }
}

};

}  // namespace cake
