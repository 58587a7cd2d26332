// Padding of scratch tiles, the same on every SIMD target.
#pragma once

#include <cstdint>

namespace tensorcache {

inline constexpr int64_t kTilePad = 16;

constexpr int64_t TilePadded(int64_t n) { return (n + kTilePad - 1) / kTilePad * kTilePad; }

}  // namespace tensorcache
