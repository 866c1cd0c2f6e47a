// csrc/common/ampere.cuh, emulated: copies land when they are let go or when they are waited for.
#pragma once
#include "emulated.h"

namespace cake {

inline unsigned smem_address(const void* p) { return (unsigned)(static_cast<const char*>(p) - emulated::cta->smem.data()); }

template <int BYTES>
void copy_some(const void* smem, const void* global, int bytes) {
  char* to = static_cast<char*>(const_cast<void*>(smem));
  const long at = to - emulated::cta->smem.data();
  if (at < 0 || at + BYTES > (long)emulated::cta->smem.size() || at % BYTES || (uintptr_t)global % BYTES || bytes < 0 || bytes > BYTES)
    throw std::runtime_error("a copy to " + std::to_string(at) + " of " + std::to_string(bytes) + " bytes");
  auto copy = [=] { std::memcpy(to, global, bytes), std::memset(to + bytes, 0, BYTES - bytes); };
  if (emulated::cta->late_copies)
    emulated::cta->current->group.push_back(copy);
  else
    copy();
}
template <int BYTES>
void copy_async(const void* smem, const void* global) { copy_some<BYTES>(smem, global, BYTES); }
inline void copy_commit() {
  auto& f = *emulated::cta->current;
  f.groups.push_back(std::move(f.group)), f.group.clear();
}
template <int PENDING>
void copy_wait() {
  auto& f = *emulated::cta->current;
  for (; f.groups.size() > PENDING; f.groups.pop_front())
    for (auto& copy : f.groups.front()) copy();
}

}  // namespace cake
