// How large a cache is, by its config alone.
#pragma once

#include <cstdint>
#include <span>

#include "methods/method.h"
#include "tensorcache/cache.h"
#include "tensorcache/config.h"

namespace tensorcache::runtime {

// The cache of a model.
TwoLevelCacheConfig CacheConfigOf(const ModelConfig& config, RingType ring);

// Of one number in the window.
constexpr int64_t RingBytes(RingType ring) { return ring == RingType::kBf16 ? 2 : 4; }

// What a cache of this config, which must be valid, keeps after `tokens` tokens.
StateBytes StateBytesAfter(const TwoLevelCacheConfig& config, int64_t tokens);
// Adds what one of its layers keeps, whose method has these arrays.
void AddLayerBytes(const TwoLevelCacheConfig& config, std::span<const methods::StateArray> arrays, int64_t tokens,
                   StateBytes& bytes);

}  // namespace tensorcache::runtime
