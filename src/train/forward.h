// What the layers of one forward pass share.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorcache/config.h"
#include "tensorcache/kernels/rope.h"
#include "train/ops/backend.h"
#include "train/ops/rope.h"

namespace tensorcache::train {

struct ForwardOptions {
  // Training: dropout, Gumbel noise on routing, and the write modes chunk_start and chunk_mean. Off, the model is the
  // deterministic streaming model, in blocks of any length.
  bool training = false;
  double dropout = 0;
  // Gradients see this much more per sequence for a memory that writes everything at full strength, in proportion for less.
  double write_cost = 0;
  at::ScalarType dtype = at::kFloat;  // of activations and matrix products; parameters, states and losses are float32
  Backend backend = Backend::kAuto;
};

// `tensor` in another dtype; undefined stays undefined.
inline Tensor As(const Tensor& tensor, at::ScalarType dtype) { return tensor.defined() ? tensor.to(dtype) : tensor; }

// Figures of one layer, for the metrics. Empty: the layer has no memory.
struct LayerMetrics {
  std::vector<std::pair<std::string, std::vector<double>>> learned;  // "lambda" of each head, say
  std::optional<double> memory_norm;  // root mean square over the batch of the norm of what the memory holds
};

// One block's forward pass: options, positions and rotary tables. The block's own table is made once for all layers; the
// others, of few rows or of rare methods, by the layer that asks.
class ForwardContext {
 public:
  ForwardContext(const ModelConfig& config, const RopeFrequencies& frequencies, const ForwardOptions& options,
                 int64_t position, int64_t origin, int64_t tokens, at::Device device);

  const ModelConfig& config;
  const ForwardOptions& options;
  int64_t position;  // of the block's first token in its sequence
  int64_t tokens;    // T

  // For the block's tokens.
  const RopeTable& rope() const { return rope_; }
  // For the `past` tokens before the block.
  RopeTable PastRope(int64_t past) const;
  // For tokens at these positions, whatever the sequence's origin.
  RopeTable RopeAt(std::span<const int64_t> positions) const;

  // If set, layers append their figures here.
  std::vector<LayerMetrics>* metrics = nullptr;

 private:
  const RopeFrequencies& frequencies_;
  int64_t origin_;
  at::Device device_;
  RopeTable rope_;
};

}  // namespace tensorcache::train
