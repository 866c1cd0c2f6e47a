// csrc/common/acquire.cuh, emulated: other CTAs are other threads.
#pragma once
#include "emulated.h"

namespace cake {

inline unsigned load_relaxed(const unsigned* p) { return std::atomic_ref<unsigned>(*const_cast<unsigned*>(p)).load(); }
inline unsigned load_acquire(const unsigned* p) {
  emulated::yield();
  return std::atomic_ref<unsigned>(*const_cast<unsigned*>(p)).load();
}
inline void store_release(unsigned* p, unsigned v) { std::atomic_ref<unsigned>(*p).store(v); }
inline unsigned increment_acq_rel(unsigned* p, unsigned top) {
  std::atomic_ref<unsigned> word(*p);
  unsigned old = word.load();
  while (!word.compare_exchange_weak(old, old >= top ? 0 : old + 1)) {}
  return old;
}

}  // namespace cake
