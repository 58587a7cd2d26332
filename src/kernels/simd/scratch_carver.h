// How kernels cut the scratch that a caller gives them into pieces.
#pragma once

#include <cstdint>

#include "kernels/simd/tile.h"

namespace tensorcache {

// Hands out pieces of scratch, each starting on a 64-byte boundary, whatever the base is aligned to; with a null base it
// only counts.
class ScratchCarver {
 public:
  explicit ScratchCarver(float* base) : base_(base) {
    if (base == nullptr) return;
    const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(base) / sizeof(float) % kTilePad);
    base_ += misaligned == 0 ? 0 : kTilePad - misaligned;
  }
  float* Take(int64_t floats) {
    float* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += TilePadded(floats);
    return piece;
  }
  double* TakeDoubles(int64_t doubles) { return reinterpret_cast<double*>(Take(2 * doubles)); }
  // What all pieces need, with room to align the base.
  int64_t floats() const { return used_ + kTilePad; }

 private:
  float* base_;
  int64_t used_ = 0;
};

}  // namespace tensorcache
