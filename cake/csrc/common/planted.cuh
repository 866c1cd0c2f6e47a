// A slowdown of known size, to test a benchmark with: PLANTED programs end with it.
#pragma once

namespace cake {

// By one thread of every CTA when its tiles are stored: a launch of one wave of CTAs ends as much later, one of several waves as many
// times that. All of them spin, since counting who is last takes time itself: 132 CTAs on one counter 0.35 us, 6 % of the shortest
// launch.
__device__ __forceinline__ void spin(int clocks) {
  const long long start = clock64();
  while (clock64() - start < clocks) {}
}

}  // namespace cake
