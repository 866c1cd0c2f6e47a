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

// What tests/cake/test_emulated.py encodes.
struct alignas(64) TensorMap {
  const char* base;
  long long inner, lines, stride;
  int box_inner, box_lines, size, swizzle;
  char rest[128 - 4 * 8 - 4 * 4];
};
static_assert(sizeof(TensorMap) == 128, "");
inline void prefetch_map(const TensorMap&) {}
// A box lands at once or later, between any two turns of threads.
inline void copy_box(const void* smem, const TensorMap& map, int x, int y, unsigned long long* barrier) {
  char* to = static_cast<char*>(const_cast<void*>(smem));
  const long at = to - emulated::cta->smem.data(), line = (long)map.box_inner * map.size, bytes = line * map.box_lines;
  if (at < 0 || at + bytes > (long)emulated::cta->smem.size() || at % 128 || line % 16 || (map.swizzle && line != map.swizzle))
    throw std::runtime_error("a box to " + std::to_string(at) + " of " + std::to_string(bytes) + " bytes");
  auto copy = [=, map = map] {
    for (int l = 0; l < map.box_lines; ++l)
      for (int i = 0; i < map.box_inner; ++i) {
        const bool inside = x + i >= 0 && x + i < map.inner && y + l >= 0 && y + l < map.lines;
        long offset = at + l * line + (long)i * map.size;
        if (map.swizzle) offset ^= (offset >> 7 & (map.swizzle / 16 - 1)) << 4;
        char* element = emulated::cta->smem.data() + offset;
        if (inside)
          std::memcpy(element, map.base + (y + l) * map.stride + (long)(x + i) * map.size, map.size);
        else
          std::memset(element, 0, map.size);
      }
    *barrier -= (unsigned long long)bytes << BYTES;
    barrier_turn(barrier);
  };
  if (emulated::cta->late_copies)
    emulated::cta->boxes.push_back(copy);
  else
    copy();
}
inline void barrier_wait(unsigned long long* b, unsigned parity) {
  emulated::wait([&] { return (*b >> PARITY & 1) != parity; });
}
inline void fence_async() {}
inline void wait_for_earlier_launches() {}
template <int N>
void registers_up() {}
template <int N>
void registers_down() {}
inline void sync_threads(int number, int threads) { emulated::meet(emulated::cta->named[number], threads); }

}  // namespace cake
