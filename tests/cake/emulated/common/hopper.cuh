// csrc/common/hopper.cuh, emulated. A barrier's word: arrivals missing, arrivals of a phase (12 bits each), parity of the phase,
// bytes missing.
#pragma once
#include "emulated.h"

namespace cake {

constexpr int PARITY = 24, BYTES = 25;
inline void barrier_init(unsigned long long* b, int count) { *b = (unsigned long long)count << 12 | count; }
inline void barrier_fence() {}
inline void barrier_turn(unsigned long long* b) {
  if (!(*b & 0xfff) && !(*b >> BYTES)) *b = (*b ^ 1ull << PARITY) | (*b >> 12 & 0xfff);
  ++emulated::cta->progress;
}
inline void barrier_arrive(unsigned long long* b) {
  if (!(*b & 0xfff)) throw std::runtime_error("an arrival at a barrier that was not initialised, or one too many");
  --*b;
  barrier_turn(b);
}
inline void barrier_expect(unsigned long long* b, int bytes) {
  *b += (unsigned long long)bytes << BYTES;
  barrier_arrive(b);
}

// What tests/cake/emulation.py encodes; `planes` is 0 where the map has two axes.
struct alignas(64) TensorMap {
  char* base;
  long long inner, lines, stride;
  int box_inner, box_lines, size, swizzle;
  long long planes, plane;
  char rest[128 - 6 * 8 - 4 * 4];
};
static_assert(sizeof(TensorMap) == 128, "");
inline void prefetch_map(const TensorMap&) {}

// A box's first byte in shared memory; calls f(element in shared memory, in global memory, column, inside) of all of it.
inline long box_at(const void* smem, const TensorMap& map) {
  const long at = static_cast<const char*>(smem) - emulated::cta->smem.data(), line = (long)map.box_inner * map.size;
  if (at < 0 || at + line * map.box_lines > (long)emulated::cta->smem.size() || at % 128 || line % 16 ||
      (map.swizzle && line != map.swizzle))
    throw std::runtime_error("a box at " + std::to_string(at) + " of " + std::to_string(line * map.box_lines) + " bytes");
  return at;
}
template <typename F>
void each_of_box(long at, const TensorMap& map, int x, int y, int z, F f) {
  const long line = (long)map.box_inner * map.size;
  for (int l = 0; l < map.box_lines; ++l)
    for (int i = 0; i < map.box_inner; ++i) {
      const bool there = y + l >= 0 && y + l < map.lines && z >= 0 && z < std::max(map.planes, 1ll) && x + i >= 0;
      long offset = at + l * line + (long)i * map.size;
      if (map.swizzle) offset ^= (offset >> 7 & (map.swizzle / 16 - 1)) << 4;
      f(emulated::cta->smem.data() + offset, map.base + z * map.plane + (y + l) * map.stride + (long)(x + i) * map.size, x + i, there);
    }
}
// A box lands at once or later, between any two turns of threads.
inline void copy_any_box(const void* smem, const TensorMap& map, int x, int y, int z, unsigned long long* barrier) {
  const long at = box_at(smem, map);
  auto copy = [=, map = map] {
    each_of_box(at, map, x, y, z, [&](char* to, const char* from, int column, bool there) {
      if (there && column < map.inner)
        std::memcpy(to, from, map.size);
      else
        std::memset(to, 0, map.size);
    });
    *barrier -= (unsigned long long)map.box_inner * map.box_lines * map.size << BYTES;
    barrier_turn(barrier);
  };
  if (emulated::cta->late_copies)
    emulated::cta->boxes.push_back(copy);
  else
    copy();
}
inline void copy_box(const void* smem, const TensorMap& map, int x, int y, unsigned long long* barrier) {
  if (map.planes) throw std::runtime_error("a box of two axes by a map of three");
  copy_any_box(smem, map, x, y, 0, barrier);
}
inline void copy_box(const void* smem, const TensorMap& map, int x, int y, int z, unsigned long long* barrier) {
  if (!map.planes) throw std::runtime_error("a box of three axes by a map of two");
  copy_any_box(smem, map, x, y, z, barrier);
}

// A box is read out of shared memory at once, or when its group is waited for. What lies outside is left out by units of 16 bytes.
// The warpgroup's threads must have made their stores visible since the last group of boxes.
inline unsigned long long l2_policy(bool) { return 0; }
inline void store_box(const TensorMap& map, const void* smem, int x, int y, int z, unsigned long long) {
  if (!map.planes) throw std::runtime_error("a box of three axes by a map of two");
  for (int t = threadIdx.x / 128 * 128, end = t + 128; t < end; ++t)
    if (const auto& f = *emulated::cta->fibers[t]; f.fences == f.stored)
      throw std::runtime_error("a box is stored before a thread's fence");
  const long at = box_at(smem, map);
  auto store = [=, map = map] {
    each_of_box(at, map, x, y, z, [&](const char* from, char* to, int column, bool there) {
      if (there && (long long)column * map.size / 16 * 16 < map.inner * map.size) std::memcpy(to, from, map.size);
    });
  };
  if (emulated::cta->late_copies)
    emulated::cta->current->storing.push_back(store);
  else
    store();
}
inline void store_commit() {
  auto& f = *emulated::cta->current;
  f.stores.push_back(std::move(f.storing)), f.storing.clear();
  for (int t = threadIdx.x / 128 * 128, end = t + 128; t < end; ++t)
    emulated::cta->fibers[t]->stored = emulated::cta->fibers[t]->fences;
}
template <int PENDING>
void store_wait_read() {
  auto& f = *emulated::cta->current;
  for (; f.stores.size() > PENDING; f.stores.pop_front())
    for (auto& store : f.stores.front()) store();
}

template <bool TRANSPOSED>
void store_matrices(unsigned address, unsigned v0, unsigned v1, unsigned v2, unsigned v3) {
  auto& e = emulated::cta->warps[threadIdx.x / 32];
  const int lane = threadIdx.x % 32, far = lane / 4, pair = lane % 4 * 2;
  const unsigned v[4] = {v0, v1, v2, v3};
  if (address % 16) throw std::runtime_error("a matrix's line is not aligned");
  e.value[lane] = address;
  __syncwarp();
  for (int i = 0; i < 8; ++i) {
    const unsigned short half = v[i / 2] >> i % 2 * 16;
    const int line = TRANSPOSED ? pair + i % 2 : far, element = TRANSPOSED ? far : pair + i % 2;
    const unsigned at = e.value[i / 2 * 8 + line] + element * 2;
    emulated::cta->smem.at(at + 1);
    std::memcpy(&emulated::cta->smem.at(at), &half, 2);
  }
  __syncwarp();
}

inline void barrier_wait(unsigned long long* b, unsigned parity) {
  emulated::wait([&] { return (*b >> PARITY & 1) != parity; });
}
inline void fence_async() { ++emulated::cta->current->fences; }
inline void wait_for_earlier_launches() {}
template <int N>
void registers_up() {}
template <int N>
void registers_down() {}
inline void sync_threads(int number, int threads) { emulated::meet(emulated::cta->named[number], threads); }
inline void arrive_threads(int number, int threads) { emulated::arrive(emulated::cta->named[number], threads); }

}  // namespace cake
