// The decoder-only Transformer of all cache methods: one backbone, only the cache differs.
//
//   x = embedding[token];  x += Attention(norm(x));  x += Mlp(norm(x)) per layer;  hidden = norm(x);  logits = hidden head^T
//
// forward(block, state) is one function of a block of any length: any split of a sequence into blocks gives the same
// outputs and states, up to rounding (except in training with the write modes chunk_start and chunk_mean, whose blocks must
// be multiples of the chunk).
#pragma once

#include <cstdint>
#include <vector>

#include "tensorcache/config.h"
#include "tensorcache/status.h"
#include "train/forward.h"
#include "train/parameters.h"
#include "train/state.h"

namespace tensorcache::train {

class Model {
 public:
  // Validates the config.
  static Result<Model> Create(const ModelConfig& config, const RandomStart& start, at::Device device = at::kCPU);

  // tokens (B, T) int64 -> (B, T, E), after the last norm. With `state` the block continues it (an empty state: starts) and
  // the state moves on. `metrics`, if given, gets one entry a layer. Throws DivergedError.
  Tensor Hidden(const Tensor& tokens, const ForwardOptions& options, ModelState* state = nullptr,
                std::vector<LayerMetrics>* metrics = nullptr) const;
  // (..., E) -> (..., V). For short outputs; the loss has an op of its own.
  Tensor Logits(const Tensor& hidden) const;

  // Trains only these parameters from here on; lora adds its own.
  void SetTrained(const TrainOptions& options);

  const ModelConfig& config() const { return config_; }
  const ModelParameters& parameters() const { return parameters_; }
  at::Device device() const { return parameters_.embedding.device(); }

 private:
  Model(const ModelConfig& config, RopeFrequencies frequencies, ModelParameters parameters)
      : config_(config), frequencies_(frequencies), parameters_(std::move(parameters)) {}

  ModelConfig config_;
  RopeFrequencies frequencies_;
  ModelParameters parameters_;
};

}  // namespace tensorcache::train
