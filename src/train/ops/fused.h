// What the fused ops on rows share; rows.h has what ops on (batch, head) items do.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "train/torch.h"

namespace tensorcache::train {

// f(begin, end) for ranges of rows on torch's threads, none with less work than handing it out costs.
template <class F>
void ParallelRows(int64_t rows, int64_t width, const F& f) {
  constexpr int64_t kElements = 8192;
  at::parallel_for(0, rows, std::max<int64_t>(1, kElements / std::max<int64_t>(1, width)), f);
}

// Function::apply wants optional tensors: it asks undefined ones for their device. Those that are none count neither as
// inputs of the node nor in the index that needs_input_grad takes.
inline std::optional<Tensor> OrNone(const Tensor& tensor) {
  return tensor.defined() ? std::optional<Tensor>(tensor) : std::nullopt;
}

// The first line of every backward: the kernels leave no trace that a second derivative could follow.
inline void RefuseSecondDerivative() {
  TORCH_CHECK(!at::GradMode::is_enabled(), "fused ops have no second derivative: use Backend::kComposite");
}

// x (..., E) as contiguous rows (N, E); a view if x is contiguous.
inline Tensor AsRows(const Tensor& x) { return x.reshape({-1, x.size(-1)}).contiguous(); }

}  // namespace tensorcache::train
