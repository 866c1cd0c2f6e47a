// The programs of sm80/projection.cuh: a CTA for each tile of the batch and each segment of K.
#include "sm80/projection.cuh"

extern "C" __global__ void __launch_bounds__(cake::THREADS)
projection_sm80(const __grid_constant__ cake::Params p) {
  extern __shared__ __align__(128) char smem[];
  cake::projection(p, cake::Cta{(int)blockIdx.x, (int)blockIdx.y, (int)gridDim.y}, smem);
}
