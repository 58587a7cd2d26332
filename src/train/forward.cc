#include "train/forward.h"

namespace tensorcache::train {

ForwardContext::ForwardContext(const ModelConfig& config, const RopeFrequencies& frequencies,
                               const ForwardOptions& options, int64_t position, int64_t origin, int64_t tokens,
                               at::Device device)
    : config(config),
      options(options),
      position(position),
      tokens(tokens),
      frequencies_(frequencies),
      origin_(origin),
      device_(device),
      rope_(MakeRopeTable(frequencies, config.rope_pairing, origin + position, tokens, device)) {}

RopeTable ForwardContext::PastRope(int64_t past) const {
  return MakeRopeTable(frequencies_, config.rope_pairing, origin_ + position - past, past, device_);
}

RopeTable ForwardContext::RopeAt(std::span<const int64_t> positions) const {
  return MakeRopeTable(frequencies_, config.rope_pairing, positions, device_);
}

}  // namespace tensorcache::train
