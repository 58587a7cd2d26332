#include "train/ops/backend.h"

namespace tensorcache::train {

bool UseFused(Backend backend, at::TensorList tensors) {
  if (backend == Backend::kComposite) return false;
  for (const Tensor& tensor : tensors) {
    if (!tensor.defined() || (tensor.is_cpu() && tensor.scalar_type() == at::kFloat)) continue;
    TORCH_INTERNAL_ASSERT(backend == Backend::kAuto, "the fused op takes CPU float32 tensors");
    return false;
  }
  return true;
}

}  // namespace tensorcache::train
