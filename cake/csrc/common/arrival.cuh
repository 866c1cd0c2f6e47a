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

}  // namespace cake
