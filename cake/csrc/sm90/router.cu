// One router GEMM of the sm90 family: CTAs that walk over the tiles x parts of K. Defines: GEMM_..., see sm90/gemm.cuh.
#include "sm90/gemm.cuh"

struct Config { CAKE_CONFIG(GEMM) };
using Gemm = cake::Gemm<Config>;

extern "C" __global__ void __launch_bounds__(Gemm::THREADS, 1)
router_sm90(const __grid_constant__ cake::MappedParams p) {
  extern __shared__ __align__(1024) char smem[];
  const cake::Cta cta{(int)blockIdx.x, (int)gridDim.x, (int)blockIdx.y, (int)gridDim.y};
  Gemm::run(p, cta, smem);
}
