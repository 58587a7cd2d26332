// A cost on a tensor that gradients see and the loss that is reported does not.
#pragma once

#include "train/torch.h"

namespace tensorcache::train {

// x itself. What is differentiated gains weight * mean(x): each gradient of x, weight / (number of elements).
Tensor WithCost(const Tensor& x, double weight);

}  // namespace tensorcache::train
