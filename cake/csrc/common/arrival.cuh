// Who comes last, and who came first: split-K reductions without waiting for a CTA that may not have started.
// A tile owns the first two counters of a line of COUNTERS, zero between launches; whoever finishes the tile puts them back.
#pragma once
#include "common/acquire.cuh"

namespace cake {

// Called by a whole CTA after its stores: the number of CTAs of this tile that arrived earlier.
__device__ __forceinline__ unsigned arrive(unsigned* counter) {
  __shared__ unsigned earlier;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) earlier = atomicAdd(counter, 1u);
  __syncthreads();
  __threadfence();
  return earlier;
}

// A planted slowdown. Every CTA counts itself before it stores its tile, so that the answer is there when the stores are
// out: the last one then spins.
__device__ __forceinline__ unsigned count_in(unsigned* counted) {
  return threadIdx.x == 0 ? atomicAdd(counted, 1u) + 1 : 0;
}
__device__ __forceinline__ void spin_if_last(unsigned* counted, unsigned count, int clocks) {
  if (count != gridDim.x * gridDim.y) return;
  *counted = 0;
  const long long start = clock64();
  while (clock64() - start < clocks) {}
}

}  // namespace cake
