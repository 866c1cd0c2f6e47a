// What the router programs of all families share: their parameters, the order of tiles, how sums reach the output.
#pragma once
#include "common/bf16x3.cuh"
#include "common/raster.cuh"

namespace cake {

enum Reduction { DIRECT = 0, ORDERED = 1, ATOMIC = 2, SPREAD = 3 };

// Mirrored by cake/launch/router.py: same order, same widths.
struct Params {
  const void* a;
  const void* b;
  void* out;
  float* partial;     // [tiles][parts][rows x columns of a tile] in register order
  unsigned* counter;  // [tiles][COUNTERS], two used by a program
  long long lda, ldb;         // elements between neighbours along the operand's strided axis
  long long out_row, out_col; // elements
  int m, n, k;
  int tiles_m, tiles_n; // rows and columns of tiles
  int segment;  // K elements a segment, a multiple of CHUNK
  int raster;   // row tiles walked before the next column tile: a band, at most tiles_m
  unsigned band_inverse, raster_inverse, rest_inverse; // of the tiles of a band; of the rows of one, and of the last one if it has fewer
  int spin;     // clocks, of planted programs
  unsigned char hold;      // segments a CTA
  unsigned char reduction;
  unsigned char out_bf16;
};

// Two neighbours in a row of the output, as far as they are inside it.
__device__ __forceinline__ void store_pair(const Params& p, int row, int column, const float* v) {
  if (row >= p.m || column >= p.n) return;
  const long long at = row * p.out_row + column * p.out_col;
  const bool both = column + 1 < p.n;
  if (p.out_bf16) {
    unsigned short* out = static_cast<unsigned short*>(p.out) + at;
    const unsigned pair = pack_bf16(v[0], v[1]);
    if (both && p.out_col == 1) {
      *reinterpret_cast<unsigned*>(out) = pair;
    } else {
      out[0] = (unsigned short)pair;
      if (both) out[p.out_col] = (unsigned short)(pair >> 16);
    }
  } else {
    float* out = static_cast<float*>(p.out) + at;
    if (both && p.out_col == 1) {
      *reinterpret_cast<float2*>(out) = make_float2(v[0], v[1]);
    } else {
      out[0] = v[0];
      if (both) out[p.out_col] = v[1];
    }
  }
}

}  // namespace cake
