// The named choices that model configs and kernels share. The names are those of config.json.
#pragma once

#include <array>
#include <string_view>
#include <utility>

namespace tensorcache {

// How a key/value pair is written into the memory A: kernels/memory_scan/memory_scan.h has the formulas.
enum class WriteRule { kOuter, kDelta, kWedge };
constexpr auto EnumNames(WriteRule) {
  return std::to_array<std::pair<WriteRule, std::string_view>>(
      {{WriteRule::kOuter, "outer"}, {WriteRule::kDelta, "delta"}, {WriteRule::kWedge, "wedge"}});
}

// Which columns of a head rotary embedding turns together: (i, i + D/2) or (2i, 2i + 1).
enum class RopePairing { kHalfSplit, kInterleaved };
constexpr auto EnumNames(RopePairing) {
  return std::to_array<std::pair<RopePairing, std::string_view>>(
      {{RopePairing::kHalfSplit, "half_split"}, {RopePairing::kInterleaved, "interleaved"}});
}

// Of feed-forward layers: kernels/norm/activation.h has the formulas.
enum class Activation { kSilu, kGelu, kGeluTanh };
constexpr auto EnumNames(Activation) {
  return std::to_array<std::pair<Activation, std::string_view>>(
      {{Activation::kSilu, "silu"}, {Activation::kGelu, "gelu"}, {Activation::kGeluTanh, "gelu_tanh"}});
}

}  // namespace tensorcache
