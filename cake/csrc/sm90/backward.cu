// Both gradients in one launch, each on CTAs of its own, which walk over its tiles: dX = G W on the first of them, dW = G^T X on
// the others. Defines: DGRAD_..., WGRAD_..., see sm90/gemm.cuh.
#include "sm90/gemm.cuh"

namespace cake {

struct Dgrad { CAKE_CONFIG(DGRAD) };
struct Wgrad { CAKE_CONFIG(WGRAD) };

// Mirrored by cake/launch/router.py.
struct BackwardParams {
  MappedParams dgrad, wgrad;
  int dgrad_ctas;
};

}  // namespace cake

extern "C" __global__ void __launch_bounds__(cake::Gemm<cake::Dgrad>::THREADS, 1)
backward_sm90(const __grid_constant__ cake::BackwardParams p) {
  using namespace cake;
  extern __shared__ __align__(1024) char smem[];
  const int first = p.dgrad_ctas, cta = blockIdx.x;
  if (cta < first)
    Gemm<Dgrad>::run(p.dgrad, {cta, first, 0, 1}, smem);
  else
    Gemm<Wgrad>::run(p.wgrad, {cta - first, (int)gridDim.x - first, 0, 1}, smem);
}
