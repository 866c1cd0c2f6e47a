// csrc/common/ampere.cuh, emulated: copies land at once, or when they are waited for.
#pragma once
#include "emulated.h"

namespace cake {

inline unsigned smem_address(const void* p) { return (unsigned)(static_cast<const char*>(p) - emulated::cta->smem.data()); }

// A thread's copies: groups committed and not yet waited for, the last one being made. A CTA is an OS thread.
inline std::deque<std::vector<std::function<void()>>>& copies() {
  static thread_local std::deque<std::vector<std::function<void()>>> all[1024];
  auto& mine = all[threadIdx.x];
  if (mine.empty()) mine.emplace_back();
  return mine;
}

inline void copy_some(const void* smem, const void* global, int bytes) {
  char* to = static_cast<char*>(const_cast<void*>(smem));
  if ((uintptr_t)global % 16 || smem_address(smem) % 16 || smem_address(smem) + 16 > emulated::cta->smem.size())
    throw std::runtime_error("a copy is not aligned, or leaves shared memory");
  const auto copy = [=] { std::memcpy(to, global, bytes), std::memset(to + bytes, 0, 16 - bytes); };
  if (emulated::cta->late_copies)
    copies().back().push_back(copy);
  else
    copy();
}
inline void copy_commit() { copies().emplace_back(); }
template <int PENDING>
void copy_wait() {
  auto& groups = copies();
  for (; groups.size() > PENDING + 1; groups.pop_front())
    for (auto& copy : groups.front()) copy();
}

template <bool TRANSPOSED>
void load_matrices(unsigned (&r)[4], unsigned address) {
  auto& e = emulated::cta->warps[threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  const auto element = [&](int line, int i) {
    unsigned short v;
    std::memcpy(&v, &emulated::cta->smem.at(e.value[line] + 2 * i), 2);
    return (unsigned)v;
  };
  e.value[lane] = address;
  __syncwarp();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4, pair = lane % 4 * 2;
    r[i] = TRANSPOSED ? element(8 * i + pair, row) | element(8 * i + pair + 1, row) << 16
                      : element(8 * i + row, pair) | element(8 * i + row, pair + 1) << 16;
  }
  __syncwarp();
}

inline void mma_bf16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  struct Operands { unsigned a[32][4], b[32][2]; };
  static thread_local Operands all[32];
  auto& of = all[threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  std::memcpy(of.a[lane], a, sizeof a), std::memcpy(of.b[lane], b, sizeof b);
  __syncwarp();
  const auto value = [](unsigned pair, int k) { return __uint_as_float(k % 2 ? pair & 0xffff0000 : pair << 16); };
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k)
      c[i] += value(of.a[row * 4 + k % 8 / 2][i / 2 + k / 8 * 2], k) * value(of.b[column * 4 + k % 8 / 2][k / 8], k);
  }
  __syncwarp();
}

}  // namespace cake
