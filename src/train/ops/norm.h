// Normalisation as differentiable ops: tensorcache/kernels/norm.h has the formulas.
#pragma once

#include "train/ops/backend.h"

namespace tensorcache::train {

// x (..., E), weight (E), bias (E) or undefined. Computed in float32 if x is of a lower precision; dtype of x.
Tensor LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                 Backend backend = Backend::kAuto);
Tensor RmsNorm(const Tensor& x, const Tensor& weight, double eps, Backend backend = Backend::kAuto);

}  // namespace tensorcache::train
