// Warpgroup products of Hopper: A in registers, B in shared memory through a descriptor, FP32 sums.
#pragma once

namespace cake {

// A matrix of 8 x 16-byte core matrices (128 contiguous bytes each) without swizzle; strides in bytes between neighbours
// along K and along N.
__device__ __forceinline__ unsigned long long descriptor(unsigned address, unsigned along_k, unsigned along_n) {
  return address >> 4 | (unsigned long long)(along_k >> 4) << 16 | (unsigned long long)(along_n >> 4) << 32;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#if FP16X2
#define CAKE_TYPE "f16"
#else
#define CAKE_TYPE "bf16"
#endif
#define CAKE_ACC4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define CAKE_ACC16(d, i) CAKE_ACC4(d, i), CAKE_ACC4(d, i + 4), CAKE_ACC4(d, i + 8), CAKE_ACC4(d, i + 12)

// sum[64 x N] = a[64 x 16] * b[16 x N] + (keep ? sum : 0); TRANSPOSED: N is b's unit-stride axis.
template <int N, bool TRANSPOSED>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], const unsigned (&a)[4], unsigned long long b, bool keep);

#define CAKE_WGMMA_32(TRANS) \
  template <> \
  __device__ __forceinline__ void wgmma<32, TRANS>(float (&d)[16], const unsigned (&a)[4], \
                                                        unsigned long long b, bool keep) { \
    asm volatile( \
        "{.reg .pred p; setp.ne.b32 p, %21, 0; " \
        "wgmma.mma_async.sync.aligned.m64n32k16.f32." CAKE_TYPE "." CAKE_TYPE " {" \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15 " \
        "}, {%16, %17, %18, %19}, %20, p, 1, 1, %22;}" \
        : CAKE_ACC16(d, 0) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)keep), "n"((int)TRANS)); \
  }
CAKE_WGMMA_32(false)
CAKE_WGMMA_32(true)
#undef CAKE_WGMMA_32

#define CAKE_WGMMA_40(TRANS) \
  template <> \
  __device__ __forceinline__ void wgmma<40, TRANS>(float (&d)[20], const unsigned (&a)[4], \
                                                        unsigned long long b, bool keep) { \
    asm volatile( \
        "{.reg .pred p; setp.ne.b32 p, %25, 0; " \
        "wgmma.mma_async.sync.aligned.m64n40k16.f32." CAKE_TYPE "." CAKE_TYPE " {" \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19 " \
        "}, {%20, %21, %22, %23}, %24, p, 1, 1, %26;}" \
        : CAKE_ACC16(d, 0), CAKE_ACC4(d, 16) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)keep), "n"((int)TRANS)); \
  }
CAKE_WGMMA_40(false)
CAKE_WGMMA_40(true)
#undef CAKE_WGMMA_40

#define CAKE_WGMMA_48(TRANS) \
  template <> \
  __device__ __forceinline__ void wgmma<48, TRANS>(float (&d)[24], const unsigned (&a)[4], \
                                                        unsigned long long b, bool keep) { \
    asm volatile( \
        "{.reg .pred p; setp.ne.b32 p, %29, 0; " \
        "wgmma.mma_async.sync.aligned.m64n48k16.f32." CAKE_TYPE "." CAKE_TYPE " {" \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
        "%21, %22, %23 " \
        "}, {%24, %25, %26, %27}, %28, p, 1, 1, %30;}" \
        : CAKE_ACC16(d, 0), CAKE_ACC4(d, 16), CAKE_ACC4(d, 20) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)keep), "n"((int)TRANS)); \
  }
CAKE_WGMMA_48(false)
CAKE_WGMMA_48(true)
#undef CAKE_WGMMA_48

#define CAKE_WGMMA_64(TRANS) \
  template <> \
  __device__ __forceinline__ void wgmma<64, TRANS>(float (&d)[32], const unsigned (&a)[4], \
                                                        unsigned long long b, bool keep) { \
    asm volatile( \
        "{.reg .pred p; setp.ne.b32 p, %37, 0; " \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." CAKE_TYPE "." CAKE_TYPE " {" \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31 " \
        "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;}" \
        : CAKE_ACC16(d, 0), CAKE_ACC16(d, 16) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)keep), "n"((int)TRANS)); \
  }
CAKE_WGMMA_64(false)
CAKE_WGMMA_64(true)
#undef CAKE_WGMMA_64

#define CAKE_WGMMA_80(TRANS) \
  template <> \
  __device__ __forceinline__ void wgmma<80, TRANS>(float (&d)[40], const unsigned (&a)[4], \
                                                        unsigned long long b, bool keep) { \
    asm volatile( \
        "{.reg .pred p; setp.ne.b32 p, %45, 0; " \
        "wgmma.mma_async.sync.aligned.m64n80k16.f32." CAKE_TYPE "." CAKE_TYPE " {" \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39 " \
        "}, {%40, %41, %42, %43}, %44, p, 1, 1, %46;}" \
        : CAKE_ACC16(d, 0), CAKE_ACC16(d, 16), CAKE_ACC4(d, 32), CAKE_ACC4(d, 36) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)keep), "n"((int)TRANS)); \
  }
CAKE_WGMMA_80(false)
CAKE_WGMMA_80(true)
#undef CAKE_WGMMA_80

#define CAKE_WGMMA_96(TRANS) \
  template <> \
  __device__ __forceinline__ void wgmma<96, TRANS>(float (&d)[48], const unsigned (&a)[4], \
                                                        unsigned long long b, bool keep) { \
    asm volatile( \
        "{.reg .pred p; setp.ne.b32 p, %53, 0; " \
        "wgmma.mma_async.sync.aligned.m64n96k16.f32." CAKE_TYPE "." CAKE_TYPE " {" \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
        "%40, %41, %42, %43, %44, %45, %46, %47 " \
        "}, {%48, %49, %50, %51}, %52, p, 1, 1, %54;}" \
        : CAKE_ACC16(d, 0), CAKE_ACC16(d, 16), CAKE_ACC16(d, 32) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)keep), "n"((int)TRANS)); \
  }
CAKE_WGMMA_96(false)
CAKE_WGMMA_96(true)
#undef CAKE_WGMMA_96

#define CAKE_WGMMA_128(TRANS) \
  template <> \
  __device__ __forceinline__ void wgmma<128, TRANS>(float (&d)[64], const unsigned (&a)[4], \
                                                        unsigned long long b, bool keep) { \
    asm volatile( \
        "{.reg .pred p; setp.ne.b32 p, %69, 0; " \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." CAKE_TYPE "." CAKE_TYPE " {" \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
        "%59, %60, %61, %62, %63 " \
        "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;}" \
        : CAKE_ACC16(d, 0), CAKE_ACC16(d, 16), CAKE_ACC16(d, 32), CAKE_ACC16(d, 48) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)keep), "n"((int)TRANS)); \
  }
CAKE_WGMMA_128(false)
CAKE_WGMMA_128(true)
#undef CAKE_WGMMA_128

#undef CAKE_TYPE
#undef CAKE_ACC4
#undef CAKE_ACC16

}  // namespace cake
