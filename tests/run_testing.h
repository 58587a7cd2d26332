// For tests of the program on checkpoints that are made up: no training, no torch.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/rng.h"
#include "core/safetensors.h"
#include "core/thread_pool.h"
#include "runtime/weight_source.h"
#include "runtime/weights.h"
#include "tensorcache/config.h"
#include "tensorcache/tokenizer.h"
#include "testing/temp_folder.h"
#include "tests/process_testing.h"

namespace tensorcache {

// Weights that a model asks for, made up when it does, and kept to be written to a file.
class MadeUpWeights : public runtime::WeightSource {
 public:
  explicit MadeUpWeights(uint64_t seed) : rng_(seed) {}

  Result<TensorRef> Get(const std::string& name, std::vector<int64_t> shape) override {
    Tensor& tensor = tensors_[name];
    tensor.shape = std::move(shape);
    int64_t count = 1;
    for (const int64_t size : tensor.shape) count *= size;
    for (int64_t i = 0; i < count; ++i) tensor.values.push_back(Value(name, i));
    return TensorRef{.dtype = DType::kF32, .shape = tensor.shape, .data = std::as_bytes(std::span(tensor.values))};
  }
  uint64_t Fingerprint() const override { return 0; }

  void Write(const std::string& path) const {
    SafetensorsWriter writer;
    for (const auto& [name, tensor] : tensors_) writer.Add(name, tensor.shape, tensor.values.data());
    ASSERT_TRUE(writer.Write(path).ok());
  }
  int64_t Count() const {
    int64_t count = 0;
    for (const auto& [name, tensor] : tensors_) count += std::ssize(tensor.values);
    return count;
  }

 private:
  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };

  // Large enough that the next token depends on the ones before.
  float Value(const std::string& name, int64_t i) {
    const auto has = [&](const char* part) { return name.find(part) != name.npos; };
    if (has("lambda_logit")) return 3.0f + static_cast<float>(i);
    if (has("norm") && has(".weight")) return 1;
    return (has("embed") ? 1.0f : 0.3f) * static_cast<float>(rng_.Normal());
  }

  Rng rng_;
  std::map<std::string, Tensor> tensors_;
};

inline ModelConfig TinyConfig(int64_t vocab_size = 256) {
  return {.vocab_size = vocab_size,
          .hidden_size = 16,
          .intermediate_size = 24,
          .num_hidden_layers = 2,
          .num_attention_heads = 2,
          .num_key_value_heads = 2,
          .max_position_embeddings = 64,
          .cache = {.method = CacheMethod::kTensorCache,
                    .window = 8,
                    .tensor_cache = {.write = {.rule = WriteRule::kDelta}, .address = {.normalize_keys = true}}}};
}

struct Outcome {
  int status;
  std::string out;
  std::string err;
};

class RunTest : public ::testing::Test {
 protected:
  // A checkpoint folder with random weights and, if given, a tokenizer.
  std::string MakeModel(const std::string& name, const ModelConfig& config, const Tokenizer* tokenizer,
                        uint64_t seed = 1) {
    const std::string folder = temp_.Path(name);
    fs::create_directories(folder);
    MadeUpWeights weights(seed);
    ThreadPool pool(1);
    EXPECT_TRUE(runtime::LoadWeights(config, WeightType::kFp32, weights, pool).ok());
    weights.Write(folder + "/model.safetensors");
    parameters_ = weights.Count();
    temp_.Put(name + "/config.json", ToJson(config).dump());
    EXPECT_TRUE(tokenizer == nullptr || tokenizer->Save(folder).ok());
    return folder;
  }
  std::string ByteModel() { return MakeModel("bytes", TinyConfig(), MakeByteTokenizer().get()); }

  Outcome Run(const Args& args, const std::string& input = "", const Limits& limits = {}) const {
    Process process(args, temp_.path(), "program", limits);
    process.Type(input);
    process.CloseInput();
    const int status = process.Wait();
    return {status, process.Out(), process.Err()};
  }
  // What `generate` prints on standard output.
  std::string Generate(Args args, const std::string& input = "") const {
    args.insert(args.begin(), "generate");
    const Outcome outcome = Run(args, input);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out;
  }
  // One line, in the program's voice.
  void ExpectMistake(const Args& args, const std::string& message, int status = 2) const {
    const Outcome outcome = Run(args);
    EXPECT_EQ(outcome.status, status) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(outcome.err.starts_with("tensorcache: ")) << outcome.err;
    EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;
    EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
  }

  const testing::TempFolder temp_;
  int64_t parameters_ = 0;  // of the last model that was made
};

}  // namespace tensorcache
