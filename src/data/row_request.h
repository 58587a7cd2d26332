// What all sources share: the check of a request, and which random stream a row draws from.
#pragma once

#include <cstdint>

#include "data/batch.h"
#include "tensorcache/status.h"

namespace tensorcache::data {

inline constexpr int64_t kMaxSteps = int64_t{1} << 36;
inline constexpr int64_t kMaxRows = int64_t{1} << 24;

// What a stream decides. The values are part of what a seed means: keep them.
enum class StreamPurpose : uint64_t { kRow = 0, kOrder = 1 };

// A stream for each (purpose, split, step, row), step < kMaxSteps, row < kMaxRows. The highest bit is set, so that none
// of them is a stream with a small number, as others draw from with the same seed.
uint64_t DataStream(StreamPurpose purpose, Split split, int64_t step, int64_t row);

// Checks a Fill request and gives *batch its shape: inputs 0, targets -1, every row fresh.
Status PrepareBatch(int64_t step, int64_t first_row, int64_t rows, int64_t length, Batch* batch);

}  // namespace tensorcache::data
