#include "data/row_request.h"

#include <fmt/format.h>

#include "core/check.h"

namespace tensorcache::data {

uint64_t DataStream(StreamPurpose purpose, Split split, int64_t step, int64_t row) {
  TC_CHECK(step >= 0 && step < kMaxSteps && row >= 0 && row < kMaxRows);
  return uint64_t{1} << 63 | static_cast<uint64_t>(purpose) << 61 | uint64_t{split == Split::kValid} << 60 |
         static_cast<uint64_t>(step) << 24 | static_cast<uint64_t>(row);
}

Status PrepareBatch(int64_t step, int64_t first_row, int64_t rows, int64_t length, Batch* batch) {
  if (step < 0 || step >= kMaxSteps) {
    return InvalidArgument(fmt::format("no batch of step {}: steps are 0 to {}", step, kMaxSteps - 1));
  }
  if (first_row < 0 || rows < 0 || first_row > kMaxRows || rows > kMaxRows - first_row) {
    return InvalidArgument(
        fmt::format("no batch of {} rows from row {}: rows are 0 to {}", rows, first_row, kMaxRows - 1));
  }
  batch->rows = rows;
  batch->length = length;
  const auto size = static_cast<size_t>(rows * length);
  batch->inputs.assign(size, 0);
  batch->targets.assign(size, -1);
  batch->fresh.assign(static_cast<size_t>(rows), 1);
  return OkStatus();
}

}  // namespace tensorcache::data
