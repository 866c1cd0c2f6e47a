// Warpgroup products of Hopper with both operands in shared memory, in either order, swizzled by 128 bytes; FP32 sums of BF16.
#pragma once
#include "common/wgmma.cuh"

namespace cake {

// An operand's tile in lines of 128 bytes, as boxes copied with that swizzle lie: eight lines are an atom of 1,024 bytes.
// `along` are the bytes from one run of 64 elements across K to the next, where the unit stride is across K.
__device__ __forceinline__ unsigned long long swizzled_descriptor(unsigned address, unsigned along) {
  return (address & 0x3ffff) >> 4 | (unsigned long long)(along >> 4) << 16 | 64ull << 32 | 1ull << 62;
}

// The descriptor of what lies `bytes` behind.
__device__ __forceinline__ unsigned long long behind(unsigned long long descriptor, unsigned bytes) {
  return descriptor >> 32 << 32 | ((unsigned)descriptor + (bytes >> 4));
}

#define CAKE_ACC4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define CAKE_ACC8(d, i) CAKE_ACC4(d, i), CAKE_ACC4(d, i + 4)
#define CAKE_ACC16(d, i) CAKE_ACC8(d, i), CAKE_ACC8(d, i + 8)
#define CAKE_ACC64(d, i) CAKE_ACC16(d, i), CAKE_ACC16(d, i + 16), CAKE_ACC16(d, i + 32), CAKE_ACC16(d, i + 48)
#define CAKE_R16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define CAKE_R32 CAKE_R16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define CAKE_R48 CAKE_R32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define CAKE_R64 CAKE_R48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define CAKE_R68 CAKE_R64 ", %64, %65, %66, %67"
#define CAKE_R72 CAKE_R68 ", %68, %69, %70, %71"
#define CAKE_R80 CAKE_R72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define CAKE_R88 CAKE_R80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define CAKE_R96 CAKE_R88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define CAKE_R112 CAKE_R96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define CAKE_R120 CAKE_R112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define CAKE_R128 CAKE_R120 ", %120, %121, %122, %123, %124, %125, %126, %127"
// A list with commas as one argument.
#define CAKE_SUMS(...) __VA_ARGS__
// `registers` are the sums' numbers; those of the descriptors, of `keep` and of the orders follow.
#define CAKE_PRODUCT(columns, registers, sums, first, second, third, fourth, fifth)                                              \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %" #third ", 0; wgmma.mma_async.sync.aligned.m64n" #columns                        \
               "k16.f32.bf16.bf16 {" registers "}, %" #first ", %" #second ", p, 1, 1, %" #fourth ", %" #fifth ";}"               \
               : sums                                                                                                            \
               : "l"(a), "l"(b), "r"((int)keep), "n"((int)A_ACROSS), "n"((int)B_ACROSS))

// sum[64 x N] = a[64 x 16] * b[16 x N] + (keep ? sum : 0), by descriptors; A_ACROSS, B_ACROSS: the unit stride is not along K.
template <int N, bool A_ACROSS, bool B_ACROSS>
__device__ __forceinline__ void wgmma_shared(float (&d)[N / 2], unsigned long long a, unsigned long long b, bool keep) {
  if constexpr (N == 32) {
    CAKE_PRODUCT(32, CAKE_R16, CAKE_SUMS(CAKE_ACC16(d, 0)), 16, 17, 18, 19, 20);
  } else if constexpr (N == 64) {
    CAKE_PRODUCT(64, CAKE_R32, CAKE_SUMS(CAKE_ACC16(d, 0), CAKE_ACC16(d, 16)), 32, 33, 34, 35, 36);
  } else if constexpr (N == 96) {
    CAKE_PRODUCT(96, CAKE_R48, CAKE_SUMS(CAKE_ACC16(d, 0), CAKE_ACC16(d, 16), CAKE_ACC16(d, 32)), 48, 49, 50, 51, 52);
  } else if constexpr (N == 128) {
    CAKE_PRODUCT(128, CAKE_R64, CAKE_SUMS(CAKE_ACC64(d, 0)), 64, 65, 66, 67, 68);
  } else if constexpr (N == 136) {
    CAKE_PRODUCT(136, CAKE_R68, CAKE_SUMS(CAKE_ACC64(d, 0), CAKE_ACC4(d, 64)), 68, 69, 70, 71, 72);
  } else if constexpr (N == 144) {
    CAKE_PRODUCT(144, CAKE_R72, CAKE_SUMS(CAKE_ACC64(d, 0), CAKE_ACC8(d, 64)), 72, 73, 74, 75, 76);
  } else if constexpr (N == 160) {
    CAKE_PRODUCT(160, CAKE_R80, CAKE_SUMS(CAKE_ACC64(d, 0), CAKE_ACC16(d, 64)), 80, 81, 82, 83, 84);
  } else if constexpr (N == 176) {
    CAKE_PRODUCT(176, CAKE_R88, CAKE_SUMS(CAKE_ACC64(d, 0), CAKE_ACC16(d, 64), CAKE_ACC8(d, 80)), 88, 89, 90, 91, 92);
  } else if constexpr (N == 192) {
    CAKE_PRODUCT(192, CAKE_R96, CAKE_SUMS(CAKE_ACC64(d, 0), CAKE_ACC16(d, 64), CAKE_ACC16(d, 80)), 96, 97, 98, 99, 100);
  } else if constexpr (N == 240) {
    CAKE_PRODUCT(240, CAKE_R120, CAKE_SUMS(CAKE_ACC64(d, 0), CAKE_ACC16(d, 64), CAKE_ACC16(d, 80), CAKE_ACC16(d, 96), CAKE_ACC8(d, 112)), 120, 121, 122, 123, 124);
  } else if constexpr (N == 256) {
    CAKE_PRODUCT(256, CAKE_R128, CAKE_SUMS(CAKE_ACC64(d, 0), CAKE_ACC64(d, 64)), 128, 129, 130, 131, 132);
  } else {
    static_assert(N < 0, "no product of this width");
  }
}

#undef CAKE_ACC4
#undef CAKE_ACC8
#undef CAKE_ACC16
#undef CAKE_ACC64
#undef CAKE_R16
#undef CAKE_R32
#undef CAKE_R48
#undef CAKE_R64
#undef CAKE_R68
#undef CAKE_R72
#undef CAKE_R80
#undef CAKE_R88
#undef CAKE_R96
#undef CAKE_R112
#undef CAKE_R120
#undef CAKE_R128
#undef CAKE_SUMS
#undef CAKE_PRODUCT

}  // namespace cake
