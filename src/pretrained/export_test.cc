#include "pretrained/export.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/config.h"
#include "pretrained/import.h"
#include "pretrained/pretrained_testing.h"
#include "tensorcache/model.h"
#include "tensorcache/session.h"
#include "tensorcache/tokenizer.h"

namespace tensorcache::pretrained {
namespace {

namespace fs = std::filesystem;

class ExportTest : public ::testing::Test {
 protected:
  void ImportFrom(const HfTestModel& model) const {
    model.Write(from_);
    const auto report = ImportModel({.from = from_, .out = model_, .force = true});
    ASSERT_TRUE(report.ok()) << report.status().message();
  }
  // Writes a checkpoint of ours that nobody imported.
  void WriteOurs(const ModelConfig& config, const TestTensors& tensors) const {
    fs::create_directories(model_);
    ASSERT_TRUE(WriteFileAtomically(model_ + "/config.json", ToJson(config).dump()).ok());
    WriteTensors(tensors, model_ + "/model.safetensors");
  }
  ExportReport Export(bool drop_memory = false) const {
    auto report = ExportModel({.model = model_, .out = out_, .force = true, .drop_memory = drop_memory});
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : ExportReport{};
  }
  std::string Error(StatusCode code) const {
    const auto report = ExportModel({.model = model_, .out = out_});
    EXPECT_FALSE(fs::exists(out_ + "/config.json"));
    EXPECT_EQ(report.status().code(), code) << report.status().message();
    return report.status().message();
  }
  void ImportAgain() const {
    const auto report = ImportModel({.from = out_, .out = again_, .force = true});
    ASSERT_TRUE(report.ok()) << report.status().message();
  }
  void ExpectComesBack() const {
    ImportAgain();
    EXPECT_EQ(Text(again_ + "/config.json"), Text(model_ + "/config.json"));
    EXPECT_EQ(Text(again_ + "/model.safetensors"), Text(model_ + "/model.safetensors"));
  }
  static std::string Text(const std::string& path) { return ReadWholeFile(path, 1 << 24).value(); }
  Json ExportedConfig() const { return Json::parse(Text(out_ + "/config.json")); }
  std::vector<float> Logits(const std::string& folder) const {
    auto model = Model::Load(folder, {.threads = 1});
    EXPECT_TRUE(model.ok()) << model.status().message();
    Session session = std::move(Session::Create(*model)).value();
    EXPECT_TRUE(session.Prefill(std::vector<int32_t>{1, 5, 3, 2, 7, 4, 9}).ok());
    return {session.logits().begin(), session.logits().end()};
  }

  const testing::TempFolder folder_;
  const std::string from_ = folder_.Path("from"), model_ = folder_.Path("model"), out_ = folder_.Path("out"),
                    again_ = folder_.Path("again");
};

TEST_F(ExportTest, EveryKindComesBackBitForBit) {
  struct Case {
    HfTestModel model;
    Json keys;
    std::string architecture;
  };
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  const LlamaShape mistral{.architecture = "MistralForCausalLM", .model_type = "mistral", .dtype = DType::kBF16};
  const LlamaShape qwen{.architecture = "Qwen2ForCausalLM", .model_type = "qwen2", .qkv_bias = true, .tied = true};
  const std::vector<Case> cases = {
      {MakeLlama({}), {}, "LlamaForCausalLM"},
      {MakeLlama({.dtype = DType::kF16}), {{"rope_scaling", llama3}}, "LlamaForCausalLM"},
      {MakeLlama({.qkv_bias = true, .output_bias = true, .mlp_bias = true, .tied = true}), {}, "LlamaForCausalLM"},
      {MakeLlama(mistral), {{"sliding_window", 5}}, "MistralForCausalLM"},
      {MakeLlama(mistral), {{"sliding_window", nullptr}}, "LlamaForCausalLM"},
      {MakeLlama(qwen), {}, "Qwen2ForCausalLM"},
      {MakeLlama(qwen),
       {{"use_sliding_window", true}, {"sliding_window", 5}, {"max_window_layers", 0}},
       "Qwen2ForCausalLM"},
      {MakeGpt2("", DType::kF32), {}, "GPT2LMHeadModel"},
      {MakeGpt2("transformer.", DType::kBF16, false), {}, "GPT2LMHeadModel"}};
  for (Case c : cases) {
    if (!c.keys.is_null()) c.model.config.update(c.keys);
    ImportFrom(c.model);
    EXPECT_EQ(Export().architecture, c.architecture);
    EXPECT_EQ(ExportedConfig()["architectures"][0], c.architecture);
    ExpectComesBack();
    // And theirs are what they were, under the usual names.
    TestTensors expected;
    const bool bare = c.architecture == "GPT2LMHeadModel" && c.model.tensors.contains("wte.weight");
    for (const auto& [name, tensor] : c.model.tensors) expected[bare ? "transformer." + name : name] = tensor;
    ExpectSameTensors(ReadTensors(out_ + "/model.safetensors"), expected);
  }
}

// Rows of interleaved pairs become halves, with their biases: the same function under the other pairing.
TEST_F(ExportTest, InterleavedPairsBecomeHalves) {
  const HfTestModel model = MakeLlama({.qkv_bias = true, .output_bias = true});
  ImportFrom(model);
  ModelConfig config;
  ASSERT_TRUE(ReadConfigFile(model_ + "/config.json", &config).ok());
  config.rope_pairing = RopePairing::kInterleaved;
  ASSERT_TRUE(WriteFileAtomically(model_ + "/config.json", ToJson(config).dump(2) + "\n").ok());
  Export();
  const TestTensors theirs = ReadTensors(out_ + "/model.safetensors");
  for (const std::string name : {"model.layers.1.self_attn.q_proj.", "model.layers.1.self_attn.k_proj."}) {
    const TestTensor &our = model.tensors.at(name + "bias"), &their = theirs.at(name + "bias");
    for (int64_t head = 0; head < our.shape[0] / 6; ++head) {
      for (int64_t i = 0; i < 3; ++i) {
        EXPECT_EQ(their.At(head * 6 + i), our.At(head * 6 + 2 * i));
        EXPECT_EQ(their.At(head * 6 + 3 + i), our.At(head * 6 + 2 * i + 1));
        for (int64_t in = 0; in < 12; ++in) {
          EXPECT_EQ(theirs.at(name + "weight").At((head * 6 + 3 + i) * 12 + in),
                    model.tensors.at(name + "weight").At((head * 6 + 2 * i + 1) * 12 + in));
        }
      }
    }
  }
  EXPECT_TRUE(theirs.at("model.layers.1.self_attn.v_proj.weight").bytes ==
              model.tensors.at("model.layers.1.self_attn.v_proj.weight").bytes);
  ExpectComesBack();
  // As anybody else reads it: half-split, and the same logits up to the order of sums.
  Json config_json = ExportedConfig();
  ASSERT_EQ(config_json.erase("tensorcache"), 1u);
  ASSERT_TRUE(WriteFileAtomically(out_ + "/config.json", config_json.dump()).ok());
  ImportAgain();
  ModelConfig read;
  ASSERT_TRUE(ReadConfigFile(again_ + "/config.json", &read).ok());
  EXPECT_EQ(read.rope_pairing, RopePairing::kHalfSplit);
  const std::vector<float> a = Logits(model_), b = Logits(again_);
  ASSERT_EQ(a.size(), b.size());
  double norm = 0;
  for (const float x : a) norm += static_cast<double>(x) * x;
  // Only the dot products of q and k, of 6 terms each, are summed in another order.
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 64 * 1.2e-7 * std::sqrt(norm));
}

TEST_F(ExportTest, MemoriesAreDroppedOnlyIfAsked) {
  HfTestModel model = MakeLlama({});
  ModelConfig config;
  ImportFrom(model);
  ASSERT_TRUE(ReadConfigFile(model_ + "/config.json", &config).ok());
  config.cache.method = CacheMethod::kTensorCache;
  config.cache.window = 7;
  TestTensors tensors = model.tensors;
  for (const std::string layer : {"0", "1"}) {
    const std::string at = "model.layers." + layer + ".self_attn.tensor_cache.";
    tensors[at + "o_proj.weight"] = RandomTensor(DType::kF32, {12, 24}, 3);
    tensors[at + "gate"] = RandomTensor(DType::kF32, {1}, 4);
    tensors[at + "lambda_logit"] = tensors[at + "eta_logit"] = RandomTensor(DType::kF32, {2, 1}, 5);
  }
  WriteOurs(config, tensors);
  EXPECT_NE(Error(StatusCode::kUnsupported).find("--drop-memory"), std::string::npos);
  const ExportReport report = Export(true);
  EXPECT_EQ(report.architecture, "MistralForCausalLM");
  EXPECT_EQ(report.dropped, 8);
  ASSERT_GE(report.notes.size(), 1u);
  EXPECT_NE(report.notes[0].find("memory is lost"), std::string::npos);
  EXPECT_EQ(ExportedConfig()["sliding_window"], 7);
  ExpectSameTensors(ReadTensors(out_ + "/model.safetensors"), model.tensors);
}

TEST_F(ExportTest, WhatCannotBeExportedIsSaid) {
  EXPECT_NE(Error(StatusCode::kNotFound).find("config.json"), std::string::npos);
  const HfTestModel model = MakeLlama({});
  model.Write(model_);
  EXPECT_NE(Error(StatusCode::kInvalidArgument).find("Hugging Face already"), std::string::npos);
  ImportFrom(model);
  ModelConfig config;
  ASSERT_TRUE(ReadConfigFile(model_ + "/config.json", &config).ok());
  ModelConfig changed = config;
  changed.rope_ntk_factor = 2;
  WriteOurs(changed, model.tensors);
  EXPECT_NE(Error(StatusCode::kUnsupported).find("rope_ntk_factor"), std::string::npos);
  TestTensors tensors = model.tensors;
  tensors.erase("model.norm.weight");
  WriteOurs(config, tensors);
  EXPECT_NE(Error(StatusCode::kInvalidArgument).find("1 tensor is missing: 'model.norm.weight'"), std::string::npos);
  tensors = model.tensors;
  tensors["model.layers.0.self_attn.tensor_cache.gate"] = RandomTensor(DType::kF32, {1}, 1);
  WriteOurs(config, tensors);
  EXPECT_NE(Error(StatusCode::kInvalidArgument).find("1 tensor is not known"), std::string::npos);
  changed = config;
  changed.vocab_size = 20;
  WriteOurs(changed, model.tensors);
  EXPECT_NE(Error(StatusCode::kInvalidArgument).find("[19, 12] instead of [20, 12]"), std::string::npos);
  // Three tensors of different types cannot become one.
  ImportFrom(MakeGpt2("", DType::kF32));
  TestTensors mixed = ReadTensors(model_ + "/model.safetensors");
  ASSERT_TRUE(ReadConfigFile(model_ + "/config.json", &config).ok());
  mixed["model.layers.0.self_attn.k_proj.weight"] = RandomTensor(DType::kBF16, {12, 12}, 1);
  WriteOurs(config, mixed);
  EXPECT_NE(Error(StatusCode::kUnsupported).find("different types"), std::string::npos);
}

TEST_F(ExportTest, TokenizersGetWhatTheLibraryWants) {
  HfTestModel model = MakeLlama({.vocab = 300});
  ImportFrom(model);
  const std::vector<std::string_view> texts = {"the cat sat on the mat, the cat sat"};
  const auto tokenizer = TrainByteLevelBpe(texts, 270);
  ASSERT_TRUE((*tokenizer)->Save(model_).ok());
  Export();
  const Json config = Json::parse(Text(out_ + "/tokenizer_config.json"));
  EXPECT_EQ(config["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(config["eos_token"], "<|endoftext|>");
  EXPECT_FALSE(config.contains("bos_token"));
  EXPECT_EQ(ExportedConfig()["eos_token_id"], (*tokenizer)->end_of_text());
  EXPECT_TRUE(ExportedConfig()["bos_token_id"].is_null());
  EXPECT_EQ(LoadTokenizer(out_).value()->fingerprint(), (*tokenizer)->fingerprint());
  // One that came with a config keeps it.
  ASSERT_TRUE(
      WriteFileAtomically(model_ + "/tokenizer_config.json", R"({"pad_token": {"content": "<|endoftext|>"}})").ok());
  Export();
  EXPECT_EQ(Text(out_ + "/tokenizer_config.json"), R"({"pad_token": {"content": "<|endoftext|>"}})");
  EXPECT_EQ(ExportedConfig()["pad_token_id"], (*tokenizer)->end_of_text());
  // Those that only we have stay at home.
  fs::remove(model_ + "/tokenizer.json");
  fs::remove(model_ + "/tokenizer_config.json");
  ASSERT_TRUE(MakeCharacterTokenizer("abc").value()->Save(model_).ok());
  const ExportReport report = Export();
  EXPECT_EQ(report.notes.size(), 1u);
  EXPECT_FALSE(fs::exists(out_ + "/characters.json"));
  EXPECT_FALSE(fs::exists(out_ + "/tokenizer.json"));
}

}  // namespace
}  // namespace tensorcache::pretrained
