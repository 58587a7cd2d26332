// A trained model, ready to run: weights and config of a checkpoint folder. No training, no torch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "tensorcache/cache.h"
#include "tensorcache/config.h"
#include "tensorcache/status.h"

namespace tensorcache {

// How weight matrices are kept. Embedding rows, norms, biases and memories are always fp32.
enum class WeightType {
  kFp32,
  kBf16,
  kInt8,  // groups of 128 in a row share a scale
};
constexpr auto EnumNames(WeightType) {
  return std::to_array<std::pair<WeightType, std::string_view>>(
      {{WeightType::kFp32, "fp32"}, {WeightType::kBf16, "bf16"}, {WeightType::kInt8, "int8"}});
}

struct ModelOptions {
  WeightType weights = WeightType::kFp32;
  RingType ring = RingType::kFp32;
  // Threads that work on one call, the caller included; 0: one per core. Results do not depend on it.
  int threads = 0;
  // Tokens that a prefill takes through the layers together.
  int64_t prefill_block = 512;
  // Another cache than the checkpoint's own: `--method window` on a model trained with Tensor Cache. What such a cache does
  // not use of the checkpoint is left aside; what it needs and the checkpoint lacks is an error.
  std::optional<CacheConfig> cache;
};

struct ModelInfo {
  int64_t parameters = 0;    // numbers in the checkpoint that the model uses
  int64_t weight_bytes = 0;  // that decoding one token reads
};

// Immutable; sessions on any number of threads share one. Calls that use more than one thread take turns.
class Model {
 public:
  // Reads config.json and maps model.safetensors. fp32 weights stay in the file's pages where they can, so loading takes
  // milliseconds; other types are made here.
  static Result<std::shared_ptr<const Model>> Load(const std::string& folder, const ModelOptions& options = {});
  // Random weights in memory, for measuring.
  static Result<std::shared_ptr<const Model>> Random(const ModelConfig& config, const ModelOptions& options = {},
                                                     uint64_t seed = 0);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const;  // with the cache of the options
  const ModelOptions& options() const;
  int threads() const;
  ModelInfo info() const;
  // Of the checkpoint's weights and config: what a saved session belongs to. Samples the weights; not against forgery.
  uint64_t fingerprint() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  explicit Model(std::unique_ptr<Impl> impl);
  static Result<std::shared_ptr<const Model>> LoadUnguarded(const std::string& folder, const ModelOptions& options);
  static Result<std::shared_ptr<const Model>> RandomUnguarded(const ModelConfig& config, const ModelOptions& options,
                                                              uint64_t seed);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorcache
