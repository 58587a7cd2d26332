// What every fused op needs of autograd.
#pragma once

#include <optional>

#include "train/torch.h"

namespace tensorcache::train {

// Function::apply wants optional tensors: it asks undefined ones for their device. Those that are none count neither as
// inputs of the node nor in the index that needs_input_grad takes.
inline std::optional<Tensor> OrNone(const Tensor& tensor) {
  return tensor.defined() ? std::optional<Tensor>(tensor) : std::nullopt;
}

// The first line of every backward: the kernels leave no trace that a second derivative could follow.
inline void RefuseSecondDerivative() {
  TORCH_CHECK(!at::GradMode::is_enabled(), "fused ops have no second derivative: use Backend::kComposite");
}

// Whether autograd will ask for the gradient of an op of these tensors.
inline bool NeedsGradient(at::TensorList tensors) {
  if (!at::GradMode::is_enabled()) return false;
  for (const Tensor& x : tensors) {
    if (x.defined() && x.requires_grad()) return true;
  }
  return false;
}

}  // namespace tensorcache::train
