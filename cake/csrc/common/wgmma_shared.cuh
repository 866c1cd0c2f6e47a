// Warpgroup products of Hopper with both operands in shared memory, in either order, swizzled by 128 bytes; FP32 sums of BF16.
#pragma once
#include "common/wgmma.cuh"

namespace cake {

// An operand's tile in lines of 128 bytes, as boxes copied with that swizzle lie: eight lines are an atom of 1,024 bytes.
// `along` are the bytes from one run of 64 elements across K to the next, where the unit stride is across K.
__device__ __forceinline__ unsigned long long swizzled_descriptor(unsigned address, unsigned along) {
  return (address & 0x3ffff) >> 4 | (unsigned long long)(along >> 4) << 16 | 64ull << 32 | 1ull << 62;
}

#define CAKE_ACC8(d, i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define CAKE_ACC32(d, i) CAKE_ACC8(d, i), CAKE_ACC8(d, i + 8), CAKE_ACC8(d, i + 16), CAKE_ACC8(d, i + 24)

// sum[64 x N] = a[64 x 16] * b[16 x N] + (keep ? sum : 0), by descriptors; A_ACROSS, B_ACROSS: the unit stride is not along K.
template <int N, bool A_ACROSS, bool B_ACROSS>
__device__ __forceinline__ void wgmma_shared(float (&d)[N / 2], unsigned long long a, unsigned long long b, bool keep) {
  if constexpr (N == 32) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, %16, %17, p, 1, 1, %19, %20;}"
        : CAKE_ACC8(d, 0), CAKE_ACC8(d, 8)
        : "l"(a), "l"(b), "r"((int)keep), "n"((int)A_ACROSS), "n"((int)B_ACROSS));
  } else if constexpr (N == 64) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
        "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, p, 1, 1, %35, %36;}"
        : CAKE_ACC32(d, 0)
        : "l"(a), "l"(b), "r"((int)keep), "n"((int)A_ACROSS), "n"((int)B_ACROSS));
  } else if constexpr (N == 96) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %50, 0; wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
        "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
        "%42, %43, %44, %45, %46, %47"
        "}, %48, %49, p, 1, 1, %51, %52;}"
        : CAKE_ACC32(d, 0), CAKE_ACC8(d, 32), CAKE_ACC8(d, 40)
        : "l"(a), "l"(b), "r"((int)keep), "n"((int)A_ACROSS), "n"((int)B_ACROSS));
  } else if constexpr (N == 128) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
        "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
        "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63"
        "}, %64, %65, p, 1, 1, %67, %68;}"
        : CAKE_ACC32(d, 0), CAKE_ACC32(d, 32)
        : "l"(a), "l"(b), "r"((int)keep), "n"((int)A_ACROSS), "n"((int)B_ACROSS));
  } else if constexpr (N == 192) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %98, 0; wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
        "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
        "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
        "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
        "}, %96, %97, p, 1, 1, %99, %100;}"
        : CAKE_ACC32(d, 0), CAKE_ACC32(d, 32), CAKE_ACC32(d, 64)
        : "l"(a), "l"(b), "r"((int)keep), "n"((int)A_ACROSS), "n"((int)B_ACROSS));
  } else if constexpr (N == 256) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
        "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
        "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
        "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, "
        "%101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, "
        "%117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, p, 1, 1, %131, %132;}"
        : CAKE_ACC32(d, 0), CAKE_ACC32(d, 32), CAKE_ACC32(d, 64), CAKE_ACC32(d, 96)
        : "l"(a), "l"(b), "r"((int)keep), "n"((int)A_ACROSS), "n"((int)B_ACROSS));
  } else {
    static_assert(N < 0, "no product of this width");
  }
}

#undef CAKE_ACC8
#undef CAKE_ACC32

}  // namespace cake
