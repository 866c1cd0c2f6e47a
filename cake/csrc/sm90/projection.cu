// BF16 projections of Hopper: out[b][M,N] = A[b][M,K] B[b][K,N], FP32 sums in the tensor cores, BF16 or FP32 out.
//
// Persistent CTAs of three warpgroups. A thread of the first one copies boxes of A and B, 64 of K at a time, into a ring of
// STAGES; the other two multiply out of it. TEAMS = 2: each of them has a tile of its own, and while one multiplies the other
// one stores (an order barrier keeps them in turns); TEAMS = 1: they share a tile. A warpgroup has HEIGHT blocks of 64 rows by
// BN columns in registers. The output goes through shared memory in pieces of 64 rows by boxes, which leave out what lies
// outside the view.
//
// A unit of work is one part of K of one tile. Where K is split, parts leave their sums in `partial`, and the last one to arrive
// adds all of them in order, 64 rows at a time. The units behind `whole` are cut in half heights, so that a last wave that fills
// less than half of the CTAs takes half as long; each half sums over all of its part, so no bit depends on it.
//
// Defines: TEAMS, HEIGHT, BN, STAGES, OUT_BUFFERS (pieces of output a warpgroup has under way), A_UNIT_K, B_UNIT_K (1: unit stride
// along K), OUT_BF16, OUT_UNIT_N (1: the output's unit stride is along N), COUNTERS, PLANTED (see common/planted.cuh).
#include "common/ampere.cuh"
#include "common/acquire.cuh"
#include "common/hopper.cuh"
#include "common/pack.cuh"
#include "common/planted.cuh"
#include "common/raster.cuh"
#include "common/wgmma_shared.cuh"

namespace cake {

constexpr int BK = 64, BLOCK = 64;  // elements of K a stage, rows of a block
constexpr int SHARING = TEAMS == 2 ? 1 : 2;  // warpgroups a tile
constexpr int BLOCKS = HEIGHT * SHARING, BM = BLOCK * BLOCKS;
constexpr int ATOMS_N = B_UNIT_K ? 1 : (BN + 63) / 64;  // boxes of B
constexpr int A_BOX = BLOCK * BK * 2, B_BOX = (B_UNIT_K ? BN : 64) * BK * 2;
constexpr int A_BYTES = BLOCKS * A_BOX, B_BYTES = ATOMS_N * B_BOX;
constexpr int STAGE = A_BYTES + (B_BYTES + 1023) / 1024 * 1024;
// A piece of output: 64 rows x PIECE columns, in lines of 128 bytes (64, unswizzled, where half a piece is all there is). The last
// one of a block ends where the block does, and may repeat columns of the one before.
constexpr int WIDTH = OUT_BF16 ? 64 : 32, PIECE = BN < WIDTH ? BN : WIDTH, PIECES = (BN + PIECE - 1) / PIECE;
constexpr int ELEMENT = OUT_BF16 ? 2 : 4;
constexpr int LINE = OUT_UNIT_N ? PIECE * ELEMENT : 128;
constexpr int PIECE_BYTES = BLOCK * PIECE * ELEMENT;
constexpr int THREADS = 3 * 128, PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;

// Mirrored by cake/launch/projection.py.
struct ProjectionParams {
  TensorMap a, b, out;
  float* partial;     // [tiles of all matrices][parts][64-row blocks][64 x BN in register order]
  unsigned* counter;  // [tiles of all matrices][COUNTERS], one a block used, zero between launches
  int tiles_m, tiles_n, raster;
  int k, segment, parts;
  int units, whole;  // units with halves counted as units; those that are not cut
  unsigned parts_inverse, tiles_inverse, band_inverse, raster_inverse, rest_inverse;  // see common/raster.cuh
  int a_batched, b_batched;  // 0: one matrix for all
  int spin;
  int streamed;  // the output is larger than the L2: its lines are the first to leave it
  // The output in lines along its unit stride: elements of a line, and how many of them are whole 16-byte units.
  int inner, whole_inner, lines;
  long long line, matrix;  // elements from one to the next
  void* to;
};

struct Unit { int tile, batch, part, row, column, first, count; };  // row in blocks, `count` blocks; column in elements

__device__ __forceinline__ Unit unit_of(const ProjectionParams& p, int u) {
  Unit w;
  const int half = HEIGHT > 1 && u >= p.whole ? (u - p.whole) % 2 : -1;
  if (half >= 0) u = p.whole + (u - p.whole) / 2;
  w.count = half < 0 ? HEIGHT : HEIGHT / 2;
  w.first = half > 0 ? SHARING * (HEIGHT / 2) : 0;
  w.tile = divide(u, p.parts, p.parts_inverse);
  w.part = u - w.tile * p.parts;
  w.batch = divide(w.tile, tiles_of(p), p.tiles_inverse);
  int tile_m, tile_n;
  locate(p, w.tile - w.batch * tiles_of(p), tile_m, tile_n);
  w.row = tile_m * BLOCKS;
  w.column = tile_n * BN;
  return w;
}

__device__ __forceinline__ int steps_of(const ProjectionParams& p, const Unit& w) {
  return (min(p.k - w.part * p.segment, p.segment) + BK - 1) / BK;
}

struct Barriers {
  unsigned long long full[STAGES], empty[STAGES], order[2];
};

// A place in the ring, and how often it was passed.
struct Place {
  int stage = 0;
  unsigned phase = 0;
  __device__ __forceinline__ void step() {
    if (++stage == STAGES) stage = 0, phase ^= 1;
  }
  __device__ __forceinline__ void skip(int steps) {
    const int at = stage + steps;
    stage = at % STAGES;
    phase ^= (at / STAGES) & 1;
  }
};

// Lets go the copies of step `i` of a unit to a stage of the ring.
__device__ __forceinline__ void copy_step(const ProjectionParams& p, const Unit& w, int i, char* ring, Barriers& barriers, int stage) {
  const int blocks = w.count * SHARING, k = w.part * p.segment + i * BK;
  unsigned long long* full = &barriers.full[stage];
  barrier_expect(full, blocks * A_BOX + B_BYTES);
  char* to = ring + stage * STAGE;
#pragma unroll 1
  for (int j = 0; j < blocks; ++j) {
    const int row = (w.row + w.first + j) * BLOCK;
    copy_box(to + j * A_BOX, p.a, A_UNIT_K ? k : row, A_UNIT_K ? row : k, w.batch * p.a_batched, full);
  }
#pragma unroll
  for (int j = 0; j < ATOMS_N; ++j) {
    const int column = w.column + 64 * j;
    copy_box(to + A_BYTES + j * B_BOX, p.b, B_UNIT_K ? k : column, B_UNIT_K ? column : k, w.batch * p.b_batched, full);
  }
}

// All copies but those of the first unit's first step.
__device__ __forceinline__ void produce(const ProjectionParams& p, char* ring, Barriers& barriers) {
  Place at;
  at.step();
  for (int u = blockIdx.x, i = 1; u < p.units; u += gridDim.x, i = 0) {
    const Unit w = unit_of(p, u);
    const int steps = steps_of(p, w);
#pragma unroll 1
    for (; i < steps; ++i) {
      barrier_wait(&barriers.empty[at.stage], at.phase ^ 1);
      copy_step(p, w, i, ring, barriers, at.stage);
      at.step();
    }
  }
}

// What a warpgroup keeps from one unit to the next.
struct Consumer {
  const ProjectionParams& p;
  char* ring;
  char* staging;  // OUT_BUFFERS pieces
  unsigned* earlier;
  Barriers& barriers;
  int group, thread;  // of the two that multiply; in it
  int pieces = 0;     // stored so far

  __device__ __forceinline__ void sync() { sync_threads(1 + group, 128); }

  // COUNT blocks, from the ring's first one that is this warpgroup's.
  template <int COUNT>
  __device__ __forceinline__ void multiply(float (&sum)[HEIGHT][BN / 2], Place& at, int steps) {
    const int mine = TEAMS == 2 ? 0 : group * COUNT;
    const unsigned long long first_a = swizzled_descriptor(smem_address(ring) + mine * A_BOX, 8192);
    const unsigned long long first_b = swizzled_descriptor(smem_address(ring) + A_BYTES, 8192);
    int before = 0;
    // A launch on its own fetches its instructions from memory, so there are few; with 176 sums a thread this one would spill.
#if HEIGHT * BN < 352
#pragma unroll 1
#endif
    for (int i = 0; i < steps; ++i) {
      barrier_wait(&barriers.full[at.stage], at.phase);
      const unsigned long long a = behind(first_a, at.stage * STAGE), b = behind(first_b, at.stage * STAGE);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < BK / 16; ++k)
#pragma unroll
        for (int r = 0; r < COUNT; ++r)
          wgmma_shared<BN, !A_UNIT_K, !B_UNIT_K>(
              sum[r], behind(a, r * A_BOX + k * (A_UNIT_K ? 32 : 2048)), behind(b, k * (B_UNIT_K ? 32 : 2048)), i + k > 0);
      wgmma_commit();
      wgmma_wait<1>();
      if (i && thread % 32 == 0) barrier_arrive(&barriers.empty[before]);
      before = at.stage;
      at.step();
    }
    if (TEAMS == 2 && thread % 32 == 0) barrier_arrive(&barriers.order[group ^ 1]);
    wgmma_wait<0>();
    if (thread % 32 == 0) barrier_arrive(&barriers.empty[before]);
  }

  // The sums of all parts of a block, if this one is the last to arrive.
  __device__ __forceinline__ bool reduce(const Unit& w, int block, float (&sum)[BN / 2]) {
    if (p.parts == 1) return true;
    constexpr int SIZE = BLOCK * BN;
    float4* const all = reinterpret_cast<float4*>(p.partial) + ((long long)w.tile * p.parts * BLOCKS + block) * (SIZE / 4) + thread;
    float4* const mine = all + (long long)w.part * (BLOCKS * SIZE / 4);
#pragma unroll
    for (int i = 0; i < BN / 8; ++i) __stcg(mine + 128 * i, make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]));
    sync();
    if (thread == 0) *earlier = increment_acq_rel(p.counter + (long long)COUNTERS * w.tile + block, p.parts - 1);
    sync();
    if ((int)*earlier + 1 != p.parts) return false;
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) sum[i] = 0.f;
    // As many parts at a time as there are registers for: each time is a way to the L2 and back.
    constexpr int ROOM = (384 - HEIGHT * BN) / BN, AT_ONCE = ROOM < 1 ? 1 : ROOM > 8 ? 8 : ROOM;
    const auto add = [&](int i, float4 v) {
      sum[4 * i] += v.x, sum[4 * i + 1] += v.y, sum[4 * i + 2] += v.z, sum[4 * i + 3] += v.w;
    };
#pragma unroll 1
    for (int first = 0; first < p.parts; first += AT_ONCE) {
      const float4* from = all + (long long)first * (BLOCKS * SIZE / 4);
      if constexpr (AT_ONCE == 1) {
#pragma unroll
        for (int i = 0; i < BN / 8; ++i) add(i, __ldcg(from + 128 * i));
      } else {
        float4 v[AT_ONCE][BN / 8];
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j)
          if (first + j < p.parts)
#pragma unroll
            for (int i = 0; i < BN / 8; ++i) v[j][i] = __ldcg(from + j * (BLOCKS * SIZE / 4) + 128 * i);
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j)
          if (first + j < p.parts)
#pragma unroll
            for (int i = 0; i < BN / 8; ++i) add(i, v[j][i]);
      }
    }
    return true;
  }

  // A piece's part of this thread: columns first .. first + PIECE of a block.
  __device__ __forceinline__ void stage(char* to, const float (&sum)[BN / 2], int first) {
    const int warp = thread / 32, lane = thread % 32;
    if constexpr (OUT_BF16) {
#pragma unroll
      for (int j = 0; j < PIECE; j += 16) {
        const int i = (first + j) / 2;
        const unsigned v0 = pack_bf16(sum[i], sum[i + 1]), v1 = pack_bf16(sum[i + 2], sum[i + 3]);
        const unsigned v2 = pack_bf16(sum[i + 4], sum[i + 5]), v3 = pack_bf16(sum[i + 6], sum[i + 7]);
        const int half = lane / 8 % 2, column = j / 8 + lane / 16;
        const int line = OUT_UNIT_N ? warp * 16 + half * 8 + lane % 8 : column * 8 + lane % 8;
        int unit = OUT_UNIT_N ? column : warp * 2 + half;
        if (LINE == 128) unit ^= line % 8;
        const unsigned address = smem_address(to + line * LINE + unit * 16);
        if constexpr (OUT_UNIT_N)
          store_matrices<false>(address, v0, v1, v2, v3);
        else
          store_matrices<true>(address, v0, v1, v2, v3);
      }
    } else {
#pragma unroll
      for (int j = 0; j < PIECE; j += 8)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int i = (first + j) / 2 + 2 * half;
          const int row = warp * 16 + half * 8 + lane / 4, column = j + lane % 4 * 2;
          if constexpr (OUT_UNIT_N) {
            *reinterpret_cast<float2*>(to + row * 128 + ((column / 4 ^ row % 8) * 16) + column % 4 * 4) =
                make_float2(sum[i], sum[i + 1]);
          } else {
            // Two boxes of 32 rows.
            char* box = to + row / 32 * (PIECE * 128);
            const int unit = row % 32 / 4;
#pragma unroll
            for (int c = 0; c < 2; ++c)
              *reinterpret_cast<float*>(box + (column + c) * 128 + ((unit ^ (column + c) % 8) * 16) + row % 4 * 4) = sum[i + c];
          }
        }
    }
  }

  // What of a piece is in the last unit of 16 bytes of its lines, where that is not whole. A box would store all of it (seen on an
  // H200: what lies outside the matrix is left out by units of 16 bytes), and the rest of the unit is another's.
  __device__ __forceinline__ void store_rest(const Unit& w, const char* from, int row, int column) {
    const int along = OUT_UNIT_N ? column : row, line = OUT_UNIT_N ? row : column, unit = 16 / ELEMENT;
    if (p.inner == p.whole_inner || along >= p.inner || along + (OUT_UNIT_N ? PIECE : BLOCK) <= p.whole_inner) return;
    const int at = p.whole_inner - along, left = p.inner - p.whole_inner;
    const char* box = from + (OUT_UNIT_N || OUT_BF16 ? 0 : at / 32 * (PIECE * 128));
#pragma unroll 1
    for (int i = thread; i < (OUT_UNIT_N ? BLOCK : PIECE) * unit; i += 128) {
      const int l = i / unit, e = i % unit;
      if (e >= left || line + l >= p.lines) continue;
      const int place = at % (LINE / ELEMENT) / unit ^ (LINE == 128 ? l % 8 : 0);
      const char* v = box + l * LINE + place * 16 + e * ELEMENT;
      const long long to = w.batch * p.matrix + (line + l) * p.line + p.whole_inner + e;
      if constexpr (OUT_BF16)
        static_cast<unsigned short*>(p.to)[to] = *reinterpret_cast<const unsigned short*>(v);
      else
        static_cast<float*>(p.to)[to] = *reinterpret_cast<const float*>(v);
    }
  }

  __device__ __forceinline__ void store(const Unit& w, int block, const float (&sum)[BN / 2]) {
    const int row = (w.row + block) * BLOCK;
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece) {
      const int first = min(piece * PIECE, BN - PIECE);
      char* to = staging + pieces % OUT_BUFFERS * PIECE_BYTES;
      if (thread == 0) store_wait_read<OUT_BUFFERS - 1>();
      sync();
      stage(to, sum, first);
      fence_async();
      sync();
      const int column = w.column + first;
      store_rest(w, to, row, column);
      if (thread == 0 && p.whole_inner) {
        const unsigned long long policy = l2_policy(p.streamed);
        if constexpr (OUT_UNIT_N) {
          store_box(p.out, to, column, row, w.batch, policy);
        } else if constexpr (OUT_BF16) {
          store_box(p.out, to, row, column, w.batch, policy);
        } else {
          store_box(p.out, to, row, column, w.batch, policy);
          store_box(p.out, to + PIECE * 128, row + 32, column, w.batch, policy);
        }
        store_commit();
      }
      ++pieces;
    }
  }

  template <int COUNT>
  __device__ __forceinline__ void work(const Unit& w, Place& at, float (&sum)[HEIGHT][BN / 2]) {
    multiply<COUNT>(sum, at, steps_of(p, w));
#pragma unroll
    for (int r = 0; r < COUNT; ++r) {
      const int block = w.first + (TEAMS == 2 ? 0 : group * COUNT) + r;
      if (reduce(w, block, sum[r])) store(w, block, sum[r]);
    }
  }

  __device__ __forceinline__ void run() {
    Place at;
    float sum[HEIGHT][BN / 2];
    int turn = 0;
    for (int u = blockIdx.x, j = 0; u < p.units; u += gridDim.x, ++j) {
      const Unit w = unit_of(p, u);
      if (TEAMS == 2 && j % 2 != group) {
        at.skip(steps_of(p, w));
        continue;
      }
      // A warpgroup that is ahead of the other one would take a phase for the one before.
      if (TEAMS == 2) barrier_wait(&barriers.order[group], group ? turn & 1 : (turn & 1) ^ 1);
      ++turn;
      if (HEIGHT > 1 && w.count < HEIGHT)
        work<(HEIGHT + 1) / 2>(w, at, sum);
      else
        work<HEIGHT>(w, at, sum);
    }
    if (thread == 0) store_wait_read<0>();
  }
};

__device__ __forceinline__ void project(const ProjectionParams& p) {
  extern __shared__ __align__(1024) char smem[];
  char* const staging = smem + STAGES * STAGE;
  Barriers& barriers = *reinterpret_cast<Barriers*>(staging + 2 * OUT_BUFFERS * PIECE_BYTES);
  unsigned* const earlier = reinterpret_cast<unsigned*>(&barriers + 1);
  // Behind a shuffle the compiler knows that it is a whole warp's, and counts what follows in uniform registers: a stage of 64 x 64
  // took 275 clocks without, of which the products are 128.
  const int group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  // A map is fetched from memory like all else, which takes as long as the barriers and the first unit's place.
  if (threadIdx.x == 32) prefetch_map(p.a);
  if (threadIdx.x == 64) prefetch_map(p.b);
  if (threadIdx.x == 128) prefetch_map(p.out);
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(&barriers.full[i], 1);
      barrier_init(&barriers.empty[i], 4 * SHARING);
    }
    barrier_init(&barriers.order[0], 4);
    barrier_init(&barriers.order[1], 4);
    barrier_fence();
    // Here and not in the loop, whose instructions are still to be fetched from memory.
    copy_step(p, unit_of(p, blockIdx.x), 0, smem, barriers, 0);
  }
  if (group == 0) {
    // The first copies wait for nobody.
    __syncwarp();
    arrive_threads(0, THREADS);
    registers_down<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) produce(p, smem, barriers);
  } else {
    sync_threads(0, THREADS);
    registers_up<CONSUMER_REGISTERS>();
    Consumer c{p, smem, staging + (group - 1) * OUT_BUFFERS * PIECE_BYTES, earlier + (group - 1), barriers, group - 1,
               (int)threadIdx.x % 128};
    c.run();
#ifdef PLANTED
    if (threadIdx.x == 128) spin(p.spin);
#endif
  }
}

}  // namespace cake

extern "C" __global__ void __launch_bounds__(cake::THREADS, 1)
projection_sm90(const __grid_constant__ cake::ProjectionParams p) {
  cake::project(p);
}
