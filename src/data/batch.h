// Where training sequences come from. A batch is a pure function of (seed, split, step, row): any step can be asked for in
// any order and by any process, so resuming needs no saved state and several processes share one global batch.
#pragma once

#include <cstdint>
#include <vector>

#include "tensorcache/status.h"

namespace tensorcache::data {

enum class Split { kTrain, kValid };

struct Batch {
  int64_t rows = 0;
  int64_t length = 0;            // tokens of a row
  std::vector<int32_t> inputs;   // [rows, length]
  std::vector<int32_t> targets;  // [rows, length]: the token that follows, or -1 where no loss is taken
  std::vector<uint8_t> fresh;    // [rows]: 1 where a document starts, 0 if it continues the same row of the step before
};

// Thread-safe once made.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual int64_t vocab_size() const = 0;
  // Tokens of a row.
  virtual int64_t length() const = 0;
  // Rows [first_row, first_row + rows) of the global batch of `step`, overwriting *batch.
  virtual Status Fill(Split split, int64_t step, int64_t first_row, int64_t rows, Batch* batch) const = 0;
};

}  // namespace tensorcache::data
