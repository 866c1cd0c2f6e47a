// csrc/common/ampere.cuh, as far as the sm90 GEMMs need it.
#pragma once
#include "emulated.h"

namespace cake {

inline unsigned smem_address(const void* p) { return (unsigned)(static_cast<const char*>(p) - emulated::cta->smem.data()); }

}  // namespace cake
