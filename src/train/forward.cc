#include "train/forward.h"

#include <algorithm>

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

RopeTable ForwardContext::SinkQueryRope() const {
  // The last index of a full cache: S sinks and W recent tokens. Until the cache is full, index and position agree.
  const int64_t last = config.cache.sinks + config.cache.window - 1;
  std::vector<int64_t> positions(static_cast<size_t>(tokens));
  for (int64_t t = 0; t < tokens; ++t) positions[static_cast<size_t>(t)] = std::min(position + t, last);
  return MakeRopeTable(frequencies_, config.rope_pairing, positions, device_);
}

RopeTable ForwardContext::SinkKeyRope(int64_t first, int64_t sinks) const {
  return MakeRopeTable(frequencies_, config.rope_pairing, first, sinks, device_);
}

}  // namespace tensorcache::train
