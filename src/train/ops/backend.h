// Every op of this folder exists twice: fused over the kernels (CPU, float32), and composite, the same formula in tensor
// operations for every device and dtype. Composite is the specification: tests hold fused against it.
#pragma once

#include <stdexcept>

#include "train/torch.h"

namespace tensorcache::train {

enum class Backend {
  kAuto,       // fused where it can run
  kFused,      // fused; a bug to ask for with other tensors than CPU float32
  kComposite,  // for tests, and to see what fusing is worth
};

// Whether the op is to run fused. Undefined tensors count as fitting.
bool UseFused(Backend backend, at::TensorList tensors);

// A computation left the finite numbers: the delta rule with long keys does. An exception, because autograd lies between
// the kernel that finds out and the trainer that reports it.
class DivergedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace tensorcache::train
