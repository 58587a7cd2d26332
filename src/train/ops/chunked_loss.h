// What losses share whose logits never exist all at once: gradients are computed chunk by chunk in the forward pass, kept,
// and handed over in the backward pass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "train/torch.h"

namespace tensorcache::train {

// Of logits held at a time. Each chunk reads the whole weight and adds to its whole gradient, so it should be large
// against them; beyond this it gains nothing.
inline constexpr int64_t kLossChunkBytes = int64_t{64} << 20;

inline int64_t LossChunkRows(int64_t rows, int64_t vocab) {
  const int64_t most = std::max<int64_t>(1, kLossChunkBytes / (vocab * int64_t{sizeof(float)}));
  const int64_t chunks = std::max<int64_t>(1, (rows + most - 1) / most);
  return std::max<int64_t>(1, (rows + chunks - 1) / chunks);
}

// The numbers of the rows that count: those with a target.
inline Tensor RowsWithTarget(const Tensor& targets) { return at::nonzero(targets >= 0).squeeze(1); }

inline void KeepGradients(torch::autograd::AutogradContext* ctx, const Tensor& dhidden, const Tensor& dweight) {
  ctx->saved_data["dhidden"] = dhidden;
  ctx->saved_data["dweight"] = dweight;
}

// Handed over rather than copied: the weight's gradient may be larger than everything else here.
inline std::pair<Tensor, Tensor> TakeGradients(torch::autograd::AutogradContext* ctx, double scale) {
  const auto take = [&](const char* name) {
    const auto it = ctx->saved_data.find(name);
    TORCH_CHECK(it != ctx->saved_data.end(), "the gradient of this loss can be taken only once");
    Tensor gradient = std::move(it->second).toTensor();
    ctx->saved_data.erase(it);
    if (gradient.defined() && scale != 1) gradient.mul_(scale);
    return gradient;
  };
  Tensor dhidden = take("dhidden");
  return {dhidden, take("dweight")};
}

}  // namespace tensorcache::train
