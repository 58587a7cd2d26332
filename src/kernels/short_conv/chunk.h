// How the backward pass cuts an item into chunks of rows, the same on every SIMD target. Internal to the kernel.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/simd/scratch_carver.h"
#include "kernels/simd/tile.h"
#include "tensorcache/kernels/short_conv.h"

namespace tensorcache::short_conv {

// Rows of a chunk. At D = 64 a chunk's two arrays are 18 kB: they stay in the first cache level. At least
// kMaxShortConvTaps, so that the rows kept from the chunk behind do not overlap where they move to.
inline constexpr int64_t kChunkRows = 32;
static_assert(kChunkRows >= kMaxShortConvTaps);

// Rows before a block that its first row reaches back to.
inline int64_t KeptRows(const ShortConvShape& shape) { return std::max<int64_t>(0, shape.taps - 1); }

// Rows of d_z and x, kChunkRows + KeptRows of both.
struct Chunk {
  float* DZ(int64_t row) const { return d_z + row * stride; }
  float* X(int64_t row) const { return x + row * stride; }

  float* d_z;
  float* x;
  int64_t stride;
};

inline Chunk CarveChunk(const ShortConvShape& shape, ScratchCarver& carve) {
  const int64_t stride = TilePadded(shape.D), floats = (kChunkRows + KeptRows(shape)) * stride;
  return {.d_z = carve.Take(floats), .x = carve.Take(floats), .stride = stride};
}

}  // namespace tensorcache::short_conv
