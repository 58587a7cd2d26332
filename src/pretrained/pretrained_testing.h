// Small models in the formats of others, with random numbers, for tests. Names and shapes are spelled out here once more, so
// that the tables under test are not tested against themselves.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/file.h"
#include "core/json.h"
#include "core/rng.h"
#include "core/safetensors.h"
#include "testing/temp_folder.h"

namespace tensorcache::pretrained {

struct TestTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;

  float At(int64_t index) const {
    float value;
    std::memcpy(&value, bytes.data() + index * 4, sizeof(value));
    return value;
  }
};

using TestTensors = std::map<std::string, TestTensor>;

inline TestTensor RandomTensor(DType dtype, std::vector<int64_t> shape, uint64_t seed) {
  TestTensor tensor{.dtype = dtype, .shape = std::move(shape)};
  int64_t count = 1;
  for (const int64_t size : tensor.shape) count *= size;
  Rng rng(seed, 1);
  tensor.bytes.resize(static_cast<size_t>(count * DTypeBytes(dtype)));
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(0.2 * rng.Normal());
    const auto half = static_cast<uint16_t>(0x3000 + i * 7 % 2048);  // some number of either kind of 16 bits
    std::memcpy(tensor.bytes.data() + i * DTypeBytes(dtype),
                dtype == DType::kF32 ? static_cast<const void*>(&value) : &half,
                static_cast<size_t>(DTypeBytes(dtype)));
  }
  return tensor;
}

inline void WriteTensors(const TestTensors& tensors, const std::string& path) {
  SafetensorsWriter writer;
  for (const auto& [name, tensor] : tensors) writer.Add(name, tensor.dtype, tensor.shape, tensor.bytes.data());
  ASSERT_TRUE(writer.Write(path).ok());
}

inline TestTensors ReadTensors(const std::string& path) {
  TestTensors tensors;
  const auto file = SafetensorsFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status().message();
  if (!file.ok()) return tensors;
  for (const std::string_view name : file->names()) {
    const TensorRef tensor = file->Find(name).value();
    tensors[std::string(name)] = {
        tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}, {tensor.data.begin(), tensor.data.end()}};
  }
  return tensors;
}

inline void ExpectSameTensors(const TestTensors& a, const TestTensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    const TestTensor& other = b.at(name);
    EXPECT_EQ(tensor.dtype, other.dtype) << name;
    EXPECT_EQ(tensor.shape, other.shape) << name;
    EXPECT_TRUE(tensor.bytes == other.bytes) << name;
  }
}

// A folder as Hugging Face's library writes it.
struct HfTestModel {
  Json config;
  TestTensors tensors;
  DType dtype = DType::kF32;

  void Add(const std::string& name, std::vector<int64_t> shape) {
    tensors[name] = RandomTensor(dtype, std::move(shape), tensors.size() + 1);
  }
  // In one file, or dealt out to `shards`.
  void Write(const std::string& folder, size_t shards = 1) const {
    std::filesystem::create_directories(folder);
    ASSERT_TRUE(WriteFileAtomically(folder + "/config.json", config.dump(2)).ok());
    if (shards == 1) return WriteTensors(tensors, folder + "/model.safetensors");
    std::vector<TestTensors> parts(shards);
    Json index = {{"metadata", {{"total_size", 1}}}, {"weight_map", Json::object()}};
    size_t i = 0;
    for (const auto& [name, tensor] : tensors) {
      parts[i % shards][name] = tensor;
      index["weight_map"][name] = "model-" + std::to_string(i++ % shards) + ".safetensors";
    }
    for (size_t k = 0; k < shards; ++k) WriteTensors(parts[k], folder + "/model-" + std::to_string(k) + ".safetensors");
    ASSERT_TRUE(WriteFileAtomically(folder + "/model.safetensors.index.json", index.dump()).ok());
  }
};

struct LlamaShape {
  std::string architecture = "LlamaForCausalLM", model_type = "llama";
  int64_t vocab = 19, width = 12, inner = 20, layers = 2, heads = 4, kv_heads = 2, head_dim = 6;
  bool qkv_bias = false, output_bias = false, mlp_bias = false, tied = false;
  DType dtype = DType::kF32;
};

inline HfTestModel MakeLlama(const LlamaShape& shape) {
  HfTestModel model{.dtype = shape.dtype};
  model.config = {{"architectures", {shape.architecture}},
                  {"model_type", shape.model_type},
                  {"vocab_size", shape.vocab},
                  {"hidden_size", shape.width},
                  {"intermediate_size", shape.inner},
                  {"num_hidden_layers", shape.layers},
                  {"num_attention_heads", shape.heads},
                  {"num_key_value_heads", shape.kv_heads},
                  {"head_dim", shape.head_dim},
                  {"max_position_embeddings", 64},
                  {"hidden_act", "silu"},
                  {"rms_norm_eps", 1e-5},
                  {"rope_theta", 10000.0},
                  {"tie_word_embeddings", shape.tied}};
  if (shape.output_bias) model.config["attention_bias"] = true;
  if (shape.mlp_bias) model.config["mlp_bias"] = true;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    model.Add(name + ".weight", {out, in});
    if (bias) model.Add(name + ".bias", {out});
  };
  const int64_t queries = shape.heads * shape.head_dim, keys = shape.kv_heads * shape.head_dim;
  model.Add("model.embed_tokens.weight", {shape.vocab, shape.width});
  for (int64_t i = 0; i < shape.layers; ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    model.Add(at + "input_layernorm.weight", {shape.width});
    linear(at + "self_attn.q_proj", queries, shape.width, shape.qkv_bias);
    linear(at + "self_attn.k_proj", keys, shape.width, shape.qkv_bias);
    linear(at + "self_attn.v_proj", keys, shape.width, shape.qkv_bias);
    linear(at + "self_attn.o_proj", shape.width, queries, shape.output_bias);
    model.Add(at + "post_attention_layernorm.weight", {shape.width});
    linear(at + "mlp.gate_proj", shape.inner, shape.width, shape.mlp_bias);
    linear(at + "mlp.up_proj", shape.inner, shape.width, shape.mlp_bias);
    linear(at + "mlp.down_proj", shape.width, shape.inner, shape.mlp_bias);
  }
  model.Add("model.norm.weight", {shape.width});
  if (!shape.tied) model.Add("lm_head.weight", {shape.vocab, shape.width});
  return model;
}

inline HfTestModel MakeGpt2(const std::string& prefix, DType dtype, bool tied = true) {
  HfTestModel model{.dtype = dtype};
  const int64_t V = 17, P = 11, E = 12, F = 20;
  model.config = {{"architectures", {"GPT2LMHeadModel"}},
                  {"model_type", "gpt2"},
                  {"vocab_size", V},
                  {"n_positions", P},
                  {"n_ctx", P},
                  {"n_embd", E},
                  {"n_layer", 2},
                  {"n_head", 3},
                  {"n_inner", F},
                  {"activation_function", "gelu_new"},
                  {"layer_norm_epsilon", 1e-5},
                  {"attn_pdrop", 0.1},
                  {"tie_word_embeddings", tied},
                  {"task_specific_params", {{"text-generation", {{"do_sample", true}}}}}};
  const auto both = [&](const std::string& name, std::vector<int64_t> weight, int64_t bias) {
    model.Add(prefix + name + ".weight", std::move(weight));
    model.Add(prefix + name + ".bias", {bias});
  };
  model.Add(prefix + "wte.weight", {V, E});
  model.Add(prefix + "wpe.weight", {P, E});
  for (const std::string at : {"h.0.", "h.1."}) {
    both(at + "ln_1", {E}, E);
    both(at + "attn.c_attn", {E, 3 * E}, 3 * E);
    both(at + "attn.c_proj", {E, E}, E);
    both(at + "ln_2", {E}, E);
    both(at + "mlp.c_fc", {E, F}, F);
    both(at + "mlp.c_proj", {F, E}, E);
  }
  both("ln_f", {E}, E);
  if (!tied) model.Add("lm_head.weight", {V, E});
  return model;
}

}  // namespace tensorcache::pretrained
