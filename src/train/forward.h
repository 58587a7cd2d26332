// What the layers of one forward pass share.
#pragma once

#include <vector>

#include "kernels/rope/rope.h"
#include "tensorcache/config.h"
#include "train/ops/backend.h"
#include "train/ops/rope.h"

namespace tensorcache::train {

struct ForwardOptions {
  // Training: dropout, Gumbel noise on routing, and the write modes chunk_start and chunk_mean. Off, the model is the
  // deterministic streaming model, in blocks of any length.
  bool training = false;
  double dropout = 0;
  at::ScalarType dtype = at::kFloat;  // of activations and matrix products; parameters, states and losses are float32
  Backend backend = Backend::kAuto;
};

// `tensor` in another dtype; undefined stays undefined.
inline Tensor As(const Tensor& tensor, at::ScalarType dtype) { return tensor.defined() ? tensor.to(dtype) : tensor; }

// Figures of one layer, for the metrics. Empty vectors: the layer has no memory.
struct LayerMetrics {
  std::vector<double> gate;    // sigmoid(g), or its mean over tokens; Infini: sigmoid(beta) of each head
  std::vector<double> lambda;  // of each head (and timescale)
  std::vector<double> eta;
  double memory_norm = 0;  // root mean square over the batch of |A|, over all memories of the layer
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
  // StreamingLLM: for the block's queries as the sinks see them, and for the sinks in the block, both at their index in
  // the cache.
  RopeTable SinkQueryRope() const;
  RopeTable SinkKeyRope(int64_t first, int64_t sinks) const;

  // If set, layers append their figures here.
  std::vector<LayerMetrics>* metrics = nullptr;

 private:
  const RopeFrequencies& frequencies_;
  int64_t origin_;
  at::Device device_;
  RopeTable rope_;
};

}  // namespace tensorcache::train
