// The arithmetic that a model needs, by formula: matrix products, attention over visible pairs, memory reads and writes.
// What an algorithm adds on top (recomputation, chunking) does not count.
#pragma once

#include <cstdint>

#include "tensorcache/config.h"

namespace tensorcache {

struct StepSize {
  int64_t rows = 1;
  int64_t tokens = 1;      // of a row
  int64_t past = 0;        // tokens of the row that came before
  int64_t supervised = 1;  // tokens of all rows that have a target, or are continued: only those need logits
};

double ForwardFlops(const ModelConfig& config, const StepSize& size);
// Forward and backward; the backward pass of a product is two products.
double TrainingFlops(const ModelConfig& config, const StepSize& size);

}  // namespace tensorcache
