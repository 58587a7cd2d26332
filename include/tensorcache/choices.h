// The named choices that model configs and kernels share. The names are those of config.json.
#pragma once

#include <array>
#include <string_view>
#include <utility>

namespace tensorcache {

// A choice between two that configs once had as true or false, under an old key.
template <class Choice>
struct FlagFor {
  Choice& field;
  Choice when_true, when_false;
};

// How a key/value pair is written into the memory A: tensorcache/kernels/memory_scan.h has the formulas.
enum class WriteRule { kOuter, kDelta, kGatedDelta, kWedge };
constexpr auto EnumNames(WriteRule) {
  return std::to_array<std::pair<WriteRule, std::string_view>>({{WriteRule::kOuter, "outer"},
                                                                {WriteRule::kDelta, "delta"},
                                                                {WriteRule::kGatedDelta, "gated_delta"},
                                                                {WriteRule::kWedge, "wedge"}});
}

// Whether a write is of what the memory does not return for the key yet: such a write looks at A first, and lets A grow
// without bound where keys are too long.
constexpr bool IsDelta(WriteRule rule) { return rule == WriteRule::kDelta || rule == WriteRule::kGatedDelta; }

// Which columns of a head rotary embedding turns together: (i, i + D/2) or (2i, 2i + 1).
enum class RopePairing { kHalfSplit, kInterleaved };
constexpr auto EnumNames(RopePairing) {
  return std::to_array<std::pair<RopePairing, std::string_view>>(
      {{RopePairing::kHalfSplit, "half_split"}, {RopePairing::kInterleaved, "interleaved"}});
}

// How the frequencies of rotary embedding are stretched for contexts beyond those a model was first trained on.
enum class RopeScalingKind {
  kNone,
  kLinear,  // all divided by `factor`
  kLlama3,  // those of long waves divided by `factor`, those of short waves left, in between a mixture
};
constexpr auto EnumNames(RopeScalingKind) {
  return std::to_array<std::pair<RopeScalingKind, std::string_view>>(
      {{RopeScalingKind::kNone, "none"}, {RopeScalingKind::kLinear, "linear"}, {RopeScalingKind::kLlama3, "llama3"}});
}

struct RopeScaling {
  RopeScalingKind rope_type = RopeScalingKind::kNone;
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_max_position_embeddings = 8192;

  template <class V>
  void Fields(V& v) {
    v("rope_type", rope_type, "linear: all frequencies / factor; llama3: those of long waves / factor");
    v("factor", factor, "how much longer the context is");
    v("low_freq_factor", low_freq_factor, "llama3: waves longer than original / this are stretched");
    v("high_freq_factor", high_freq_factor, "llama3: waves shorter than original / this are left");
    v("original_max_position_embeddings", original_max_position_embeddings, "llama3: the context before");
  }
};

// How a model knows where a token stands.
enum class PositionKind { kRope, kLearned };
constexpr auto EnumNames(PositionKind) {
  return std::to_array<std::pair<PositionKind, std::string_view>>(
      {{PositionKind::kRope, "rope"}, {PositionKind::kLearned, "learned"}});
}

// Of feed-forward layers: src/kernels/norm/activation.h has the formulas.
enum class Activation { kSilu, kGelu, kGeluTanh };
constexpr auto EnumNames(Activation) {
  return std::to_array<std::pair<Activation, std::string_view>>(
      {{Activation::kSilu, "silu"}, {Activation::kGelu, "gelu"}, {Activation::kGeluTanh, "gelu_tanh"}});
}

}  // namespace tensorcache
