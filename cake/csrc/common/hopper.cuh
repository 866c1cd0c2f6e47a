// Barriers in shared memory, copies of boxes and warp specialisation, since Hopper.
#pragma once

namespace cake {

__device__ __forceinline__ void barrier_init(unsigned long long* b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(b)), "r"(count) : "memory");
}
// Behind the initialisation of barriers by one thread.
__device__ __forceinline__ void barrier_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_arrive(unsigned long long* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_address(b)) : "memory");
}
__device__ __forceinline__ void barrier_wait(unsigned long long* b, unsigned parity) {
  asm volatile(
      "{.reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;}" ::"r"(smem_address(b)), "r"(parity) : "memory");
}
// An arrival, and as many bytes that copies are to bring before the phase is done.
__device__ __forceinline__ void barrier_expect(unsigned long long* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(b)), "r"(bytes) : "memory");
}

// A matrix in global memory and the boxes that are copied of it, as the driver encodes them (cake/launch/driver.py).
struct alignas(64) TensorMap { unsigned long long words[16]; };

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// Lets go the copy of the box that begins at element `x` of line `y`: zeros where it lies outside the matrix.
__device__ __forceinline__ void copy_box(const void* smem, const TensorMap& map, int x, int y, unsigned long long* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          smem_address(smem)), "l"(&map), "r"(x), "r"(y), "r"(smem_address(barrier)) : "memory");
}
// The same of the matrix `z` of several.
__device__ __forceinline__ void copy_box(const void* smem, const TensorMap& map, int x, int y, int z, unsigned long long* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
          smem_address(smem)), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(smem_address(barrier)) : "memory");
}
// What the L2 does with lines: nothing special, or they are the first to leave it.
__device__ __forceinline__ unsigned long long l2_policy(bool first_to_leave) {
  unsigned long long policy;
  if (first_to_leave)
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  else
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// The other way: what of the box lies outside the matrix is not stored. One thread lets boxes go, ends a group of them and waits
// until at most PENDING groups are still to be read out of shared memory.
__device__ __forceinline__ void store_box(const TensorMap& map, const void* smem, int x, int y, int z, unsigned long long policy) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%1, %2, %3}], [%4], %5;" ::"l"(&map),
               "r"(x), "r"(y), "r"(z), "r"(smem_address(smem)), "l"(policy) : "memory");
}
__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
// Makes this thread's stores to shared memory visible to the tensor cores and to copies of boxes.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Four 8 x 8 matrices of 16-bit values in registers, to the lines of shared memory whose addresses the lanes give, eight lanes a
// matrix; TRANSPOSED: its columns are the lines.
template <bool TRANSPOSED>
__device__ __forceinline__ void store_matrices(unsigned address, unsigned v0, unsigned v1, unsigned v2, unsigned v3) {
  if constexpr (TRANSPOSED)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v0), "r"(v1), "r"(v2),
                 "r"(v3) : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v0), "r"(v1), "r"(v2),
                 "r"(v3) : "memory");
}

// Of the stream, where this one was let go before their end.
__device__ __forceinline__ void wait_for_earlier_launches() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

template <int N>
__device__ __forceinline__ void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N>
__device__ __forceinline__ void registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

// A barrier of some of the CTA's warps; number 0 is __syncthreads.
__device__ __forceinline__ void sync_threads(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// Counts as there, and does not wait.
__device__ __forceinline__ void arrive_threads(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

}  // namespace cake
