// Words in global memory by which CTAs tell each other what is done.
#pragma once

namespace cake {

__device__ __forceinline__ unsigned load_acquire(const unsigned* p) {
  unsigned v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void store_release(unsigned* p, unsigned v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// Adds 1, or goes back to 0 from `top`: what this thread wrote or saw written (behind a barrier: its CTA) is there for those who
// see that by load_acquire. Does not wait for an answer.
__device__ __forceinline__ void increment_release(unsigned* p, unsigned top) {
  asm volatile("red.release.gpu.global.inc.u32 [%0], %1;" ::"l"(p), "r"(top) : "memory");
}
// Alike, and returns what was there: what this thread wrote or saw written (behind a barrier: its
// CTA) is there for those who come later, and what earlier ones wrote for it. A fence of every thread costs more.
__device__ __forceinline__ unsigned increment_acq_rel(unsigned* p, unsigned top) {
  unsigned v;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(v) : "l"(p), "r"(top) : "memory");
  return v;
}

}  // namespace cake
