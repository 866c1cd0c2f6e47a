// The order of tiles, for parameters that have tiles_m, tiles_n, raster, band_inverse, raster_inverse, rest_inverse.
#pragma once

namespace cake {

template <typename Params>
__device__ __forceinline__ int tiles_of(const Params& p) { return p.tiles_m * p.tiles_n; }

// x / d, `inverse` being 2^32 / d rounded down, or 2^32 - 1: short of the quotient by 1 at most. A division is 25 instructions, and
// a launch fetches its first ones from memory.
__device__ __forceinline__ unsigned divide(unsigned x, unsigned d, unsigned inverse) {
  const unsigned q = __umulhi(x, inverse);
  return q + (x - q * d >= d);
}

// Tile `t` in an order that walks p.raster row tiles before the next column tile (cake/plan/raster.py).
template <typename Params>
__device__ __forceinline__ void locate(const Params& p, unsigned t, int& tile_m, int& tile_n) {
  const unsigned first = divide(t, p.raster * p.tiles_n, p.band_inverse) * p.raster, left = p.tiles_m - first;
  const bool whole = left >= (unsigned)p.raster;
  const unsigned height = whole ? p.raster : left, inside = t - first * p.tiles_n;
  tile_n = divide(inside, height, whole ? p.raster_inverse : p.rest_inverse);
  tile_m = first + (inside - tile_n * height);
}

}  // namespace cake
