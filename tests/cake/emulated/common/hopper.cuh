// csrc/common/hopper.cuh, emulated. A barrier's word: arrivals missing, arrivals of a phase (16 bits each), parity of the phase.
#pragma once
#include "emulated.h"

namespace cake {

inline void barrier_init(unsigned long long* b, int count) { *b = (unsigned long long)count << 16 | count; }
inline void barrier_fence() {}
inline void barrier_arrive(unsigned long long* b) {
  if (!(*b & 0xffff)) throw std::runtime_error("an arrival at a barrier that was not initialised");
  if (!(--*b & 0xffff)) *b = (*b ^ 1ull << 32) | (*b >> 16 & 0xffff);
  ++emulated::cta->progress;
}
inline void barrier_wait(unsigned long long* b, unsigned parity) {
  emulated::wait([&] { return (*b >> 32 & 1) != parity; });
}
inline void fence_async() {}
inline void wait_for_earlier_launches() {}
template <int N>
void registers_up() {}
template <int N>
void registers_down() {}
inline void sync_threads(int number, int threads) { emulated::meet(emulated::cta->named[number], threads); }

}  // namespace cake
