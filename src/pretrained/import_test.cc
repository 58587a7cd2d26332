#include "pretrained/import.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "core/config.h"
#include "pretrained/pretrained_testing.h"
#include "tensorcache/model.h"
#include "tensorcache/session.h"
#include "tensorcache/tokenizer.h"
#include "testing/child.h"

namespace tensorcache::pretrained {
namespace {

namespace fs = std::filesystem;

class ImportTest : public ::testing::Test {
 protected:
  Result<ImportReport> Import(bool force = false) const {
    return ImportModel({.from = from_, .out = out_, .force = force});
  }
  ImportReport ImportOrFail(bool force = false) const {
    auto report = Import(force);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : ImportReport{};
  }
  std::string Error(StatusCode code = StatusCode::kInvalidArgument) const {
    const auto report = Import();
    EXPECT_FALSE(fs::exists(out_ + "/config.json"));
    if (report.ok()) return "ok";
    EXPECT_EQ(report.status().code(), code) << report.status().message();
    EXPECT_EQ(report.status().message().find('\n'), std::string::npos);
    return report.status().message();
  }
  TestTensors Imported() const { return ReadTensors(out_ + "/model.safetensors"); }
  // Loads and takes a step.
  void ExpectRuns() const {
    auto model = Model::Load(out_, {.threads = 1});
    ASSERT_TRUE(model.ok()) << model.status().message();
    Session session = std::move(Session::Create(*model)).value();
    ASSERT_TRUE(session.Prefill(std::vector<int32_t>{1, 2, 3}).ok());
    for (const float logit : session.logits()) EXPECT_TRUE(std::isfinite(logit));
  }

  const testing::TempFolder folder_;
  const std::string from_ = folder_.Path("from"), out_ = folder_.Path("some/out");
};

TEST_F(ImportTest, LlamaKeepsItsTensors) {
  const HfTestModel model = MakeLlama({});
  model.Write(from_);
  const ImportReport report = ImportOrFail();
  ExpectSameTensors(Imported(), model.tensors);
  EXPECT_EQ(report.architecture, "LlamaForCausalLM");
  EXPECT_EQ(report.tensors, std::ssize(model.tensors));
  int64_t numbers = 0;
  for (const auto& [name, tensor] : model.tensors) numbers += std::ssize(tensor.bytes) / 4;
  EXPECT_EQ(report.parameters, numbers);
  EXPECT_EQ(report.bytes, numbers * 4);
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_NE(report.notes[0].find("no tokenizer"), std::string::npos);
  ExpectRuns();
}

TEST_F(ImportTest, EveryKindRuns) {
  const std::vector<HfTestModel> models = {
      MakeLlama({.qkv_bias = true, .output_bias = true, .mlp_bias = true, .tied = true}),
      MakeLlama({.architecture = "MistralForCausalLM", .model_type = "mistral", .dtype = DType::kBF16}),
      MakeLlama({.architecture = "Qwen2ForCausalLM", .model_type = "qwen2", .qkv_bias = true, .dtype = DType::kF16}),
      MakeGpt2("transformer.", DType::kF32)};
  for (const HfTestModel& model : models) {
    model.Write(from_);
    ImportOrFail(true);
    ExpectRuns();
  }
}

TEST_F(ImportTest, ShardsAreOneModel) {
  const HfTestModel model = MakeLlama({.dtype = DType::kBF16});
  model.Write(from_, 3);
  ImportOrFail();
  ExpectSameTensors(Imported(), model.tensors);
}

TEST_F(ImportTest, ShardErrors) {
  const HfTestModel model = MakeLlama({});
  model.Write(from_, 2);
  const std::string index_path = from_ + "/model.safetensors.index.json";
  const Json index = Json::parse(ReadWholeFile(index_path, 1 << 20).value());
  const auto with = [&](const Json& changed, StatusCode code) {
    EXPECT_TRUE(WriteFileAtomically(index_path, changed.dump()).ok());
    return Error(code);
  };
  Json changed = index;
  changed["weight_map"]["extra"] = "model-0.safetensors";
  EXPECT_NE(with(changed, StatusCode::kCorrupt).find("'extra' is not in model-0"), std::string::npos);
  for (const char* name : {"../model-0.safetensors", "/etc/passwd", "", "model-0.bin"}) {
    changed["weight_map"]["extra"] = name;
    EXPECT_NE(with(changed, StatusCode::kCorrupt).find("not the name"), std::string::npos) << name;
  }
  changed["weight_map"]["extra"] = "model-9.safetensors";
  EXPECT_NE(with(changed, StatusCode::kNotFound).find("model-9"), std::string::npos);
  EXPECT_NE(with(Json::object(), StatusCode::kCorrupt).find("weight_map"), std::string::npos);
  // The same tensor twice.
  fs::copy_file(from_ + "/model-0.safetensors", from_ + "/model-2.safetensors");
  changed = index;
  changed["weight_map"]["extra"] = "model-2.safetensors";
  EXPECT_NE(with(changed, StatusCode::kCorrupt).find("another shard"), std::string::npos);
}

TEST_F(ImportTest, TiedEmbeddingsMayHaveEitherName) {
  HfTestModel model = MakeLlama({.tied = true});
  const TestTensors expected = model.tensors;
  model.tensors["lm_head.weight"] = model.tensors["model.embed_tokens.weight"];
  model.Write(from_);
  EXPECT_EQ(ImportOrFail().notes.size(), 1u);  // both, and equal: nothing to say but that there is no tokenizer
  ExpectSameTensors(Imported(), expected);
  model.tensors.erase("model.embed_tokens.weight");
  model.Write(from_);
  ImportOrFail(true);
  ExpectSameTensors(Imported(), expected);
  model.tensors = expected;
  model.tensors["lm_head.weight"] = RandomTensor(DType::kF32, {19, 12}, 77);
  model.Write(from_);
  const ImportReport report = ImportOrFail(true);
  ExpectSameTensors(Imported(), expected);
  ASSERT_EQ(report.notes.size(), 2u);
  EXPECT_NE(report.notes[0].find("differ; the first is used"), std::string::npos) << report.notes[0];
}

TEST_F(ImportTest, Gpt2IsTurnedAndSplit) {
  for (const std::string prefix : {"", "transformer."}) {
    HfTestModel model = MakeGpt2(prefix, DType::kF32);
    const TestTensors theirs = model.tensors;
    model.Add(prefix + "h.0.attn.bias", {1, 1, 11, 11});  // a mask
    model.Add(prefix + "h.1.attn.masked_bias", {});
    model.Write(from_);
    EXPECT_EQ(ImportOrFail(true).architecture, "GPT2LMHeadModel");
    const TestTensors ours = Imported();
    EXPECT_EQ(ours.size(), theirs.size() + 2 * 2 * 2);  // q, k, v of two layers, with biases
    const TestTensor& fused = theirs.at(prefix + "h.1.attn.c_attn.weight");
    const TestTensor& fused_bias = theirs.at(prefix + "h.1.attn.c_attn.bias");
    const int64_t E = 12, F = 20;
    for (const auto& [name, first] : {std::pair("q", 0), std::pair("k", 12), std::pair("v", 24)}) {
      const std::string at = std::string("model.layers.1.self_attn.") + name + "_proj.";
      EXPECT_EQ(ours.at(at + "weight").shape, (std::vector<int64_t>{E, E}));
      for (int64_t out = 0; out < E; ++out) {
        EXPECT_EQ(ours.at(at + "bias").At(out), fused_bias.At(first + out));
        for (int64_t in = 0; in < E; ++in) {
          ASSERT_EQ(ours.at(at + "weight").At(out * E + in), fused.At(in * 3 * E + first + out));
        }
      }
    }
    const TestTensor &up = ours.at("model.layers.0.mlp.up_proj.weight"),
                     &down = ours.at("model.layers.0.mlp.down_proj.weight");
    for (int64_t out = 0; out < F; ++out) {
      for (int64_t in = 0; in < E; ++in) {
        ASSERT_EQ(up.At(out * E + in), theirs.at(prefix + "h.0.mlp.c_fc.weight").At(in * F + out));
        ASSERT_EQ(down.At(in * F + out), theirs.at(prefix + "h.0.mlp.c_proj.weight").At(out * E + in));
      }
    }
    EXPECT_TRUE(ours.at("model.embed_positions.weight").bytes == theirs.at(prefix + "wpe.weight").bytes);
    EXPECT_TRUE(ours.at("model.layers.0.input_layernorm.bias").bytes == theirs.at(prefix + "h.0.ln_1.bias").bytes);
    EXPECT_TRUE(ours.at("model.norm.weight").bytes == theirs.at(prefix + "ln_f.weight").bytes);
  }
}

TEST_F(ImportTest, AModelWithoutPrefixIsTheSame) {
  const HfTestModel model = MakeLlama({.tied = true});
  HfTestModel bare = model;
  bare.tensors.clear();
  for (const auto& [name, tensor] : model.tensors) bare.tensors[name.substr(6)] = tensor;
  bare.Write(from_);
  ImportOrFail();
  ExpectSameTensors(Imported(), model.tensors);
}

TEST_F(ImportTest, FrequenciesAreLeftOut) {
  HfTestModel model = MakeLlama({});
  const TestTensors expected = model.tensors;
  model.Add("model.layers.0.self_attn.rotary_emb.inv_freq", {3});
  model.Write(from_);
  ImportOrFail();
  ExpectSameTensors(Imported(), expected);
}

TEST_F(ImportTest, WrongTensorsAreCountedAndNamed) {
  const HfTestModel model = MakeLlama({});
  const auto error = [&](const auto& change, StatusCode code = StatusCode::kInvalidArgument) {
    HfTestModel changed = model;
    change(changed);
    changed.Write(from_);
    return Error(code);
  };
  std::string text = error([](HfTestModel& m) { m.tensors.erase("model.norm.weight"); });
  EXPECT_NE(text.find("1 tensor is missing: 'model.norm.weight'"), std::string::npos) << text;
  text = error([](HfTestModel& m) {
    std::erase_if(m.tensors, [](const auto& t) { return t.first.find("layers.1.") != t.first.npos; });
  });
  EXPECT_NE(text.find("9 tensors are missing: 'model.layers.1.input_layernorm.weight', "), std::string::npos) << text;
  EXPECT_NE(text.find(", ..."), std::string::npos) << text;
  text = error([](HfTestModel& m) { m.tensors.erase("lm_head.weight"); });
  EXPECT_NE(text.find("'lm_head.weight'"), std::string::npos) << text;
  text = error([](HfTestModel& m) {
    m.Add("model.layers.0.self_attn.q_norm.weight", {6});
    m.Add("model.layers.2.input_layernorm.weight", {12});
  });
  EXPECT_NE(text.find("2 tensors are not known: 'model.layers.0.self_attn.q_norm.weight', 'model.layers.2."),
            std::string::npos)
      << text;
  text = error([](HfTestModel& m) { m.Add("model.layers.0.self_attn.k_proj.weight", {24, 12}); });
  EXPECT_NE(text.find("'model.layers.0.self_attn.k_proj.weight' is [24, 12] instead of [12, 12]"), std::string::npos)
      << text;
  text = error(
      [](HfTestModel& m) {
        m.dtype = DType::kI8;
        m.Add("model.norm.weight", {12});
      },
      StatusCode::kUnsupported);
  EXPECT_NE(text.find("'model.norm.weight' is I8"), std::string::npos) << text;
  text = error([](HfTestModel& m) { m.config["attention_bias"] = true; });
  EXPECT_NE(text.find("8 tensors are missing"), std::string::npos) << text;
}

TEST_F(ImportTest, WhatIsNoModelIsSaid) {
  EXPECT_NE(Error(StatusCode::kNotFound).find("there is no '"), std::string::npos);
  fs::create_directories(from_);
  EXPECT_NE(Error(StatusCode::kNotFound).find("no config.json, nor a model of llama2.c"), std::string::npos);
  folder_.Put("from/config.json", MakeLlama({}).config.dump());
  EXPECT_NE(Error(StatusCode::kNotFound).find("neither model.safetensors nor"), std::string::npos);
  folder_.Put("from/pytorch_model.bin", "PK");
  EXPECT_NE(Error(StatusCode::kUnsupported).find("convert them to safetensors"), std::string::npos);
  fs::remove(from_ + "/config.json");
  EXPECT_NE(Error(StatusCode::kNotFound).find("a Hugging Face model needs it"), std::string::npos);
  folder_.Put("from/config.json", "{");
  EXPECT_NE(Error(StatusCode::kCorrupt).find("config.json"), std::string::npos);
  folder_.Put("from/config.json", "{\"architectures\": [\"FooForCausalLM\"]}");
  const std::string unknown = Error(StatusCode::kUnsupported);
  EXPECT_NE(unknown.find("config.json: the architecture 'FooForCausalLM'"), std::string::npos) << unknown;
  for (const std::string name : {"pytorch_model.bin", "model.safetensors"}) {
    const std::string path = folder_.Put("from/" + name, "x");
    EXPECT_EQ(ImportModel({.from = path, .out = out_}).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST_F(ImportTest, AModelIsReplacedOnlyIfAsked) {
  const HfTestModel model = MakeLlama({});
  model.Write(from_);
  ImportOrFail();
  const auto again = Import();
  EXPECT_EQ(again.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(again.status().message().find("has a model already, config.json"), std::string::npos);
  folder_.Put("some/out/tokenizer.json", "another one's");
  folder_.Put("some/out/notes.txt", "mine");
  ImportOrFail(true);
  EXPECT_FALSE(fs::exists(out_ + "/tokenizer.json"));
  EXPECT_TRUE(fs::exists(out_ + "/notes.txt"));
  fs::remove(out_ + "/config.json");
  EXPECT_FALSE(Import().ok());
  fs::remove(out_ + "/model.safetensors");
  EXPECT_TRUE(Import().ok());
  folder_.Put("some/out/train_state.safetensors", "");
  EXPECT_NE(Import(true).status().message().find("training run"), std::string::npos);
  EXPECT_NE(ImportModel({.from = from_, .out = from_ + "/.", .force = true}).status().message().find("is read"),
            std::string::npos);
  folder_.Put("other/tokenizer.model", "x");
  EXPECT_NE(ImportModel({.from = from_, .out = folder_.Path("other")}).status().message().find("tokenizer already"),
            std::string::npos);
}

// A kill while the tensors are written.
TEST_F(ImportTest, AKillLeavesNothingThatLoadsOrWhatWasThere) {
  HfTestModel model = MakeLlama({});
  model.Write(from_);
  const auto killed = [&] {
    (void)ImportModel({.from = from_, .out = out_, .force = true, .progress = [](int64_t, int64_t) { _exit(7); }});
    return 0;
  };
  EXPECT_EQ(testing::InChild(killed), 7);
  EXPECT_FALSE(Model::Load(out_).ok());
  ImportOrFail();
  model.tensors["model.norm.weight"] = RandomTensor(DType::kF32, {12}, 55);
  const TestTensors before = Imported();
  model.Write(from_);
  EXPECT_EQ(testing::InChild(killed), 7);
  ExpectSameTensors(Imported(), before);
  EXPECT_TRUE(Model::Load(out_).ok());
}

TEST_F(ImportTest, AFullDiskLeavesWhatWasThere) {
  MakeLlama({}).Write(from_);
  ImportOrFail();
  const std::string config = ReadWholeFile(out_ + "/config.json", 1 << 20).value();
  const TestTensors before = Imported();
  MakeLlama({.layers = 3}).Write(from_);
  const auto full = [&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    const auto report = Import(true);
    return report.status().code() == StatusCode::kIoError ? 7 : 1;
  };
  EXPECT_EQ(testing::InChild(full), 7);
  ExpectSameTensors(Imported(), before);
  EXPECT_EQ(ReadWholeFile(out_ + "/config.json", 1 << 20).value(), config);
  EXPECT_EQ(std::distance(fs::directory_iterator(out_), {}), 2);
}

TEST_F(ImportTest, AFolderInTheWayOfAFileStays) {
  MakeLlama({}).Write(from_);
  folder_.Put("from/tokenizer.json", "{}");
  fs::create_directories(out_ + "/tokenizer.json/x");
  EXPECT_NE(Import(true).status().message().find("tokenizer.json' is a folder"), std::string::npos);
  EXPECT_TRUE(fs::exists(out_ + "/tokenizer.json/x"));
  EXPECT_EQ(std::distance(fs::directory_iterator(out_), {}), 1);
}

TEST_F(ImportTest, TokenizersTravelAlong) {
  const HfTestModel model = MakeLlama({.vocab = 300});
  model.Write(from_);
  const std::vector<std::string_view> texts = {"the cat sat on the mat, the cat sat"};
  const auto tokenizer = TrainByteLevelBpe(texts, 270);
  ASSERT_TRUE(tokenizer.ok() && (*tokenizer)->Save(from_).ok());
  folder_.Put("from/generation_config.json", "{}");
  folder_.Put("from/README.md", "text");
  ImportReport report = ImportOrFail();
  EXPECT_EQ(report.tokenizer, (*tokenizer)->kind());
  EXPECT_EQ(report.tokenizer_tokens, (*tokenizer)->vocab_size());
  EXPECT_TRUE(report.notes.empty());
  EXPECT_EQ(LoadTokenizer(out_).value()->fingerprint(), (*tokenizer)->fingerprint());
  EXPECT_TRUE(fs::exists(out_ + "/generation_config.json"));
  EXPECT_FALSE(fs::exists(out_ + "/README.md"));
  // Another one, by name.
  const auto other = TrainByteLevelBpe(texts, 265);
  fs::create_directories(folder_.Path("other"));
  ASSERT_TRUE((*other)->Save(folder_.Path("other")).ok());
  fs::rename(folder_.Path("other/tokenizer.json"), folder_.Path("other/mine.json"));
  const auto named =
      ImportModel({.from = from_, .out = out_, .tokenizer = folder_.Path("other/mine.json"), .force = true});
  ASSERT_TRUE(named.ok()) << named.status().message();
  EXPECT_EQ(named->tokenizer_tokens, (*other)->vocab_size());
  EXPECT_EQ(LoadTokenizer(out_).value()->fingerprint(), (*other)->fingerprint());
  EXPECT_FALSE(ImportModel({.from = from_, .out = out_, .tokenizer = folder_.Path("none"), .force = true}).ok());
  // One that cannot be read travels, too; one with too many tokens is told of.
  folder_.Put("from/tokenizer.json", "{\"model\": {\"type\": \"WordPiece\"}}");
  report = ImportOrFail(true);
  EXPECT_EQ(report.tokenizer, "");
  EXPECT_EQ(report.notes.size(), 1u);
  EXPECT_TRUE(fs::exists(out_ + "/tokenizer.json"));
  MakeLlama({}).Write(from_);
  ASSERT_TRUE((*tokenizer)->Save(from_).ok());
  report = ImportOrFail(true);
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_NE(report.notes[0].find("the model only 19"), std::string::npos);
}

}  // namespace
}  // namespace tensorcache::pretrained
