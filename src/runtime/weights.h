// The weights of a model, arranged for running: fused where one product serves for two, split where the checkpoint has them
// split and can stay mapped.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/thread_pool.h"
#include "methods/head.h"
#include "runtime/matrix.h"
#include "runtime/weight_source.h"
#include "tensorcache/cache.h"
#include "tensorcache/config.h"

namespace tensorcache::runtime {

struct NormWeights {
  std::vector<float> weight, bias;  // bias: LayerNorm only
};

// y = W x + b
struct LinearWeights {
  Matrix matrix;
  std::vector<float> bias;  // empty: none
};

struct LayerWeights {
  NormWeights attention_norm;
  LinearWeights q, k, v;
  LinearWeights cache_input, fusion_input;  // what the method wants of the same input; empty: nothing
  // W_o, or what the method joins it with, side by side: attention and memory leave in one product.
  LinearWeights out;
  std::unique_ptr<const methods::Fusion> fusion;
  NormWeights mlp_norm;
  LinearWeights gate, up, down;  // gate: gated_mlp only
};

struct Weights {
  TensorRef embedding;  // (V, E), in the source
  TensorRef positions;  // (max_position_embeddings, E), in the source; learned positions only
  std::vector<LayerWeights> layers;
  NormWeights final_norm;
  Matrix head;
  std::vector<LearnedNumbers> memories;  // one a layer
  int64_t parameters = 0;                // numbers that were read
  int64_t bytes_per_token = 0;           // of matrices
};

// `source` must outlive the weights.
Result<Weights> LoadWeights(const ModelConfig& config, WeightType type, WeightSource& source, ThreadPool& pool);

}  // namespace tensorcache::runtime
