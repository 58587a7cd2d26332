// Cross entropy of rows of logits against one target each, and its gradient, in one go. Strides count elements.
//
//   nll = log sum_j exp(x_j) - x_target        dx = softmax(x) - onehot(target)
#pragma once

#include <cstdint>

namespace tensorcache {

// -inf among the logits is a probability of 0 (and a loss of inf if it is the target's). NaN or +inf, or a row of nothing
// but -inf, makes the row's loss and gradient NaN.
struct CrossEntropyArgs {
  int64_t rows = 0;
  int64_t width = 0;         // at least 1
  const float* x = nullptr;  // [rows, width]
  int64_t x_stride = 0;
  const int64_t* targets = nullptr;  // [rows], 0 <= target < width; negative: the row has no loss, and a gradient of 0
  float* nll = nullptr;              // [rows]
  float* dx = nullptr;               // [rows, width], null: not wanted; may be x with the same stride
  int64_t dx_stride = 0;
  int64_t* best = nullptr;  // [rows], the first column with the largest logit (0 if all are NaN); null: not wanted
};

void SoftmaxCrossEntropy(const CrossEntropyArgs& args);

}  // namespace tensorcache
