// csrc/common/acquire.cuh, emulated: other CTAs are other threads.
#pragma once
#include "emulated.h"

namespace cake {

inline unsigned load_acquire(const unsigned* p) {
  emulated::yield();
  return std::atomic_ref<unsigned>(*const_cast<unsigned*>(p)).load();
}
inline unsigned increment_acq_rel(unsigned* p, unsigned top) {
  std::atomic_ref<unsigned> word(*p);
  unsigned old = word.load();
  while (!word.compare_exchange_weak(old, old >= top ? 0 : old + 1)) {}
  return old;
}
inline void increment_release(unsigned* p, unsigned top) { increment_acq_rel(p, top); }

}  // namespace cake
