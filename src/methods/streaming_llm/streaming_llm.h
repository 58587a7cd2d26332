// What follows from the options of method streaming_llm, for both halves.
#pragma once

#include <cstdint>
#include <vector>

#include "tensorcache/config.h"

namespace tensorcache::methods {

// Where the sinks see the queries of `tokens` tokens from `position` on: at the last index of the cache, S sinks and W recent
// tokens. Until it is full, index and position agree.
std::vector<int64_t> SinkQueryIndices(const CacheConfig& cache, int64_t position, int64_t tokens);

}  // namespace tensorcache::methods
