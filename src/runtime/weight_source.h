// Where a model's tensors come from: a checkpoint, or a generator of random ones for measuring.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "tensorcache/config.h"
#include "tensorcache/status.h"

namespace tensorcache::runtime {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // The tensor of this name, which must have this shape. Its data stays where it is as long as the source.
  virtual Result<TensorRef> Get(const std::string& name, std::vector<int64_t> shape) = 0;
  // The names that nobody asked for.
  virtual std::vector<std::string> Surplus() const { return {}; }
  // Of names, shapes and a sample of the numbers of everything that was asked for.
  virtual uint64_t Fingerprint() const = 0;
};

// model.safetensors in `folder`.
Result<std::unique_ptr<WeightSource>> OpenCheckpoint(const std::string& folder);
// Ones for norms, zeros for biases, what cache methods start training with, and noise for the rest that keeps the size of what
// it is multiplied with.
std::unique_ptr<WeightSource> MakeRandomSource(const ModelConfig& config, uint64_t seed);

}  // namespace tensorcache::runtime
