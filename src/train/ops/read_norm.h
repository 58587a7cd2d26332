// The norm of reads as a differentiable op: tensorcache/kernels/read_norm.h has the formula, and what becomes of reads
// of 0.
#pragma once

#include "train/ops/backend.h"

namespace tensorcache::train {

// x (B, T, H, D), a view with any strides; gamma (H, D); c (H), undefined for the hard norm. Computed in float32 if x
// is of a lower precision; the result is contiguous and has the dtype of x. Gradients flow to all three. The composite
// op squares in the precision that it computes in: in float32, a row with numbers above 1e19 in magnitude becomes 0,
// and reads and floors below 1e-23 count as 0.
Tensor ReadNorm(const Tensor& x, const Tensor& gamma, const Tensor& c, Backend backend = Backend::kAuto);

}  // namespace tensorcache::train
