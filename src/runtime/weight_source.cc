#include "runtime/weight_source.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "core/buffer.h"
#include "core/checksum.h"
#include "core/model_files.h"
#include "core/rng.h"
#include "methods/method.h"

namespace tensorcache::runtime {
namespace {

// Of each tensor, this many pieces of so many bytes go into the fingerprint.
constexpr size_t kSamples = 16, kSampleBytes = 64;

void AddSample(const std::string& name, const TensorRef& tensor, Crc64& crc) {
  crc.Add(std::as_bytes(std::span(name)));
  crc.Add(std::as_bytes(tensor.shape));
  const size_t bytes = tensor.data.size();
  for (size_t i = 0; i < kSamples; ++i) {
    const size_t length = std::min(kSampleBytes, bytes);
    crc.Add(tensor.data.subspan((bytes - length) / (kSamples - 1) * i, length));
  }
}

class Checkpoint : public WeightSource {
 public:
  explicit Checkpoint(SafetensorsFile file) : file_(std::move(file)) {}

  Result<TensorRef> Get(const std::string& name, std::vector<int64_t> shape) override {
    TC_ASSIGN_OR_RETURN(TensorRef tensor, file_.Find(name));
    TC_ASSIGN_OR_RETURN(tensor, file_.Find(name, tensor.dtype, shape));
    used_.emplace(name, tensor);
    return tensor;
  }
  std::vector<std::string> Surplus() const override {
    std::vector<std::string> surplus;
    for (const std::string_view name : file_.names()) {
      if (!used_.contains(std::string(name))) surplus.emplace_back(name);
    }
    return surplus;
  }
  uint64_t Fingerprint() const override {
    Crc64 crc;
    for (const auto& [name, tensor] : used_) AddSample(name, tensor, crc);
    return crc.value();
  }

 private:
  SafetensorsFile file_;
  std::map<std::string, TensorRef> used_;
};

class RandomSource : public WeightSource {
 public:
  RandomSource(const ModelConfig& config, uint64_t seed) : seed_(seed), noise_(1 << 18) {
    Rng rng(seed, 0);
    for (float& x : noise_) x = static_cast<float>(rng.Normal());
    const methods::Method& method = methods::MethodOf(config.cache);
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      for (methods::LearnedTensor& tensor : method.Tensors(methods::PlaceOf(config, layer))) {
        if (!tensor.values.empty()) initial_[methods::TensorName(method, layer, tensor)] = std::move(tensor.values);
      }
    }
  }

  Result<TensorRef> Get(const std::string& name, std::vector<int64_t> shape) override {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    Tensor& tensor = tensors_[name];
    tensor = {.shape = std::move(shape), .data = Buffer(count * static_cast<int64_t>(sizeof(float)))};
    Fill(name, count, tensor);
    return TensorRef{.dtype = DType::kF32,
                     .shape = tensor.shape,
                     .data = {tensor.data.data(), static_cast<size_t>(tensor.data.bytes())}};
  }
  uint64_t Fingerprint() const override { return seed_ + 1; }

 private:
  struct Tensor {
    std::vector<int64_t> shape;
    Buffer data;
  };

  void Fill(const std::string& name, int64_t count, Tensor& tensor) {
    const auto has = [&](const char* part) { return name.find(part) != name.npos; };
    float* out = tensor.data.As<float>();
    if (const auto initial = initial_.find(name); initial != initial_.end()) {
      const std::vector<double>& values = initial->second;
      for (int64_t i = 0; i < count; ++i) {
        out[i] = static_cast<float>(values[static_cast<size_t>(i) % values.size()]);
      }
      return;
    }
    if (has("norm") && has(".weight")) return std::fill(out, out + count, 1.0f);
    if (has("bias")) return;  // zeros
    const float deviation = 1 / std::sqrt(static_cast<float>(tensor.shape.back()));
    // The same noise again and again, but never in step with the rows.
    for (int64_t i = 0; i < count; ++i) {
      out[i] = deviation * noise_[start_];
      if (++start_ == noise_.size()) start_ = static_cast<size_t>(count) % 12345;
    }
  }

  uint64_t seed_;
  std::map<std::string, std::vector<double>> initial_;  // what cache methods start with
  std::vector<float> noise_;
  size_t start_ = 0;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace

Result<std::unique_ptr<WeightSource>> OpenCheckpoint(const std::string& folder) {
  TC_ASSIGN_OR_RETURN(SafetensorsFile file,
                      SafetensorsFile::Open((std::filesystem::path(folder) / kModelFile).string()));
  return std::unique_ptr<WeightSource>(std::make_unique<Checkpoint>(std::move(file)));
}

std::unique_ptr<WeightSource> MakeRandomSource(const ModelConfig& config, uint64_t seed) {
  return std::make_unique<RandomSource>(config, seed);
}

}  // namespace tensorcache::runtime
