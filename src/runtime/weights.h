// The weights of a model, arranged for running: fused where one product serves for two, split where the checkpoint has them
// split and can stay mapped.
#pragma once

#include <cstdint>
#include <vector>

#include "core/thread_pool.h"
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
  // W_o, or [W_o, sigmoid(g) W_tc]: attention and memory leave in one product. A per-token gate scales the reads instead.
  LinearWeights out;
  std::vector<float> token_gate;  // (E), per-token gate only
  float token_gate_bias = 0;
  std::vector<float> infini_gate;  // (H): sigmoid(beta)
  NormWeights mlp_norm;
  LinearWeights gate, up, down;  // gate: gated_mlp only
};

struct Weights {
  TensorRef embedding;  // (V, E), in the source
  TensorRef positions;  // (max_position_embeddings, E), in the source; learned positions only
  std::vector<LayerWeights> layers;
  NormWeights final_norm;
  Matrix head;
  std::vector<MemoryParameters> memories;  // one a layer
  int64_t parameters = 0;                  // numbers that were read
  int64_t bytes_per_token = 0;             // of matrices
};

// `source` must outlive the weights.
Result<Weights> LoadWeights(const ModelConfig& config, WeightType type, WeightSource& source, ThreadPool& pool);

}  // namespace tensorcache::runtime
