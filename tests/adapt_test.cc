// tensorcache adapt, end to end: a model without a memory gets one.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "testing/port.h"
#include "tests/run_testing.h"

namespace tensorcache {
namespace {

class AdaptTest : public RunTest {
 protected:
  void SetUp() override {
    setenv("OMP_NUM_THREADS", "1", 1);
    ModelConfig config = TinyConfig();
    config.cache = {.method = CacheMethod::kFull};
    model_ = MakeModel("base", config, MakeByteTokenizer().get());
    std::string text;
    for (int i = 0; i < 200; ++i)
      text += "The quick brown fox jumps over the lazy dog number " + std::to_string(i) + ". ";
    temp_.Put("text.txt", text);
  }

  Args Adapt(const std::string& out, const Args& more = {}) const {
    return With({"adapt", "--model", model_, "--data", temp_.Path("text.txt"), "--out", temp_.Path(out), "--window",
                 "8", "--steps", "6", "--batch", "2", "--block", "32", "--set", "train.log_every=1", "--set",
                 "train.eval_batches=1"},
                more);
  }
  std::string ModelBytes(const std::string& folder) const { return ReadAll(temp_.Path(folder + "/model.safetensors")); }

  std::string model_;
};

TEST_F(AdaptTest, TheModelStaysAndTheMemoryIsNew) {
  const Outcome outcome = Run(Adapt("out"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("of them trained, method tensor_cache"), outcome.out.npos) << outcome.out;
  const auto before = SafetensorsFile::Open(model_ + "/model.safetensors");
  const auto after = SafetensorsFile::Open(temp_.Path("out/model.safetensors"));
  ASSERT_TRUE(before.ok() && after.ok());
  for (const std::string_view name : before->names()) {
    const TensorRef a = before->Find(name).value(), b = after->Find(name).value();
    EXPECT_TRUE(std::ranges::equal(a.data, b.data)) << name;
  }
  EXPECT_GT(after->names().size(), before->names().size());
  const Outcome compared = Run({"eval", "--model", temp_.Path("out"), "--data", temp_.Path("text.txt"), "--method",
                                "window,streaming_llm,tensor_cache", "--context", "64"});
  EXPECT_EQ(compared.status, 0) << compared.err;
  EXPECT_NE(compared.out.find("tensor_cache"), compared.out.npos);
}

TEST_F(AdaptTest, WhatStandsBesideTheTokenizerComesAlong) {
  const std::vector<std::string> names = {"tokenizer_config.json", "generation_config.json", "chat_template.jinja"};
  for (const std::string& name : names) temp_.Put("base/" + name, "{\"of\": \"" + name + "\"}");
  ASSERT_EQ(Run(Adapt("out")).status, 0);
  for (const std::string& name : names) {
    EXPECT_EQ(ReadAll(temp_.Path("out/" + name)), ReadAll(temp_.Path("base/" + name)));
    EXPECT_EQ(ReadAll(temp_.Path("out/best/" + name)), ReadAll(temp_.Path("base/" + name)));
  }
  EXPECT_FALSE(fs::exists(temp_.Path("out/special_tokens_map.json")));
}

TEST_F(AdaptTest, EveryKindTrainsAndResumesToTheLastBit) {
  const std::vector<Args> kinds = {{"--train", "memory+attention"},
                                   {"--train", "all"},
                                   {"--train", "lora", "--lora-rank", "2"},
                                   {"--distill", "0.5"}};
  for (size_t i = 0; i < kinds.size(); ++i) {
    const std::string whole = "whole" + std::to_string(i), parts = "parts" + std::to_string(i);
    const Args what = With(kinds[i], {"--set", "train.steps=150"});  // long enough to be stopped in the middle
    const Outcome all = Run(Adapt(whole, what));
    ASSERT_EQ(all.status, 0) << all.err;
    Process process(Adapt(parts, what), temp_.path());
    ASSERT_TRUE(WaitUntil(
        [&] { return ReadAll(temp_.Path(parts + "/metrics.jsonl")).find("\"step\":2") != std::string::npos; }));
    process.Signal(SIGTERM);
    ASSERT_EQ(process.Wait(), 0) << process.Err();
    ASSERT_NE(process.Out().find("tensorcache adapt --resume --out"), std::string::npos) << process.Out();
    const Outcome rest = Run({"adapt", "--resume", "--out", temp_.Path(parts)});
    ASSERT_EQ(rest.status, 0) << rest.err;
    EXPECT_EQ(ModelBytes(parts), ModelBytes(whole)) << i;
  }
}

// The losses of a run's steps and evaluations.
std::vector<double> Losses(const std::string& run) {
  std::vector<double> losses;
  std::ifstream file(run + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) losses.push_back(nlohmann::json::parse(line)["loss"]);
  return losses;
}

TEST_F(AdaptTest, ModelsOfOtherFamiliesGetAMemory) {
  ModelConfig gpt2 = TinyConfig();
  gpt2.norm = NormKind::kLayerNorm;
  gpt2.hidden_act = Activation::kGeluTanh;
  gpt2.gated_mlp = false;
  gpt2.attention_bias = gpt2.output_bias = gpt2.mlp_bias = true;
  gpt2.position_embedding = PositionKind::kLearned;
  gpt2.tie_word_embeddings = true;
  gpt2.cache = {.method = CacheMethod::kFull};
  ModelConfig mistral = TinyConfig();
  mistral.num_key_value_heads = 1;
  mistral.cache = {.method = CacheMethod::kWindow, .window = 8};
  ModelConfig llama3 = TinyConfig();
  llama3.rope_scaling = {.rope_type = RopeScalingKind::kLlama3, .factor = 8, .original_max_position_embeddings = 16};
  llama3.cache = {.method = CacheMethod::kFull};
  const std::pair<const char*, ModelConfig> families[] = {{"gpt2", gpt2}, {"mistral", mistral}, {"llama3", llama3}};
  for (const auto& [name, config] : families) {
    SCOPED_TRACE(name);
    model_ = MakeModel(name, config, MakeByteTokenizer().get());
    const std::string out = std::string("adapted-") + name;
    const Outcome outcome =
        Run(Adapt(out, {"--train", "memory+attention", "--learning-rate", "1e-2", "--set", "train.steps=30"}));
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const std::vector<double> losses = Losses(temp_.Path(out));
    EXPECT_LT(losses.back(), losses.front() - 0.3);
    const Outcome streamed =
        Run({"eval", "--model", temp_.Path(out), "--data", temp_.Path("text.txt"), "--context", "63"});
    EXPECT_EQ(streamed.status, 0) << streamed.err;
  }
}

TEST_F(AdaptTest, TwoProcessesLearnWhatOneLearns) {
  const Args what = {"--train", "lora", "--distill", "0.5"};
  const Outcome alone = Run(Adapt("one", what));
  ASSERT_EQ(alone.status, 0) << alone.err;
  const std::string port = std::to_string(testing::FreePort());
  const auto start = [&](const std::string& rank) {
    return Process(Adapt("two", what), temp_.path(), "rank" + rank,
                   {.environment = {"RANK=" + rank, "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port}});
  };
  Process first = start("0"), second = start("1");
  ASSERT_EQ(first.Wait(), 0) << first.Err();
  ASSERT_EQ(second.Wait(), 0) << second.Err();
  const std::vector<double> one = Losses(temp_.Path("one")), two = Losses(temp_.Path("two"));
  ASSERT_EQ(one.size(), two.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], two[i], 1e-5) << i;
}

TEST_F(AdaptTest, ActivationsMayBeBfloat16) {
  const Args what = {"--train", "lora", "--distill", "0.5"};
  ASSERT_EQ(Run(Adapt("float32", what)).status, 0);
  const Outcome outcome = Run(Adapt("bfloat16", With(what, {"--dtype", "bfloat16"})));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::vector<double> exact = Losses(temp_.Path("float32")), rounded = Losses(temp_.Path("bfloat16"));
  ASSERT_EQ(exact.size(), rounded.size());
  for (size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(exact[i], rounded[i], 0.02 * exact[i]) << i;
  EXPECT_NE(exact, rounded);
}

TEST_F(AdaptTest, GoesOnAfterTheModelItStartedFromHasMoved) {
  ASSERT_EQ(Run(Adapt("out", {"--set", "train.min_learning_rate=1e-2"})).status, 0);
  fs::rename(model_, temp_.Path("moved"));
  const Outcome lost = Run({"adapt", "--resume", "--out", temp_.Path("out"), "--set", "train.steps=8"});
  EXPECT_EQ(lost.status, 2);
  EXPECT_NE(lost.err.find("data.text.tokenizer"), std::string::npos) << lost.err;
  const Outcome found = Run({"adapt", "--resume", "--out", temp_.Path("out"), "--set", "train.steps=8", "--set",
                             "data.text.tokenizer=" + temp_.Path("moved")});
  EXPECT_EQ(found.status, 0) << found.err;
  const Outcome other = Run({"adapt", "--resume", "--out", temp_.Path("out"), "--set", "train.steps=10", "--set",
                             "data.text.tokenizer=characters"});
  EXPECT_EQ(other.status, 2);
  EXPECT_NE(other.err.find("another tokenizer"), std::string::npos) << other.err;
}

TEST_F(AdaptTest, NothingElseWritesToItsFolder) {
  Process process(Adapt("out", {"--set", "train.steps=100000", "--set", "train.save_every=1"}), temp_.path(), "first");
  ASSERT_TRUE(WaitUntil([&] { return fs::exists(temp_.Path("out/train_state.safetensors")) || !process.Running(); }));
  EXPECT_TRUE(process.Running()) << process.Err();
  for (const Args& args : {Adapt("out"), {"adapt", "--resume", "--out", temp_.Path("out"), "--set", "train.steps=8"}}) {
    ExpectMistake(args, "another program writes to this folder");
  }
  ExpectMistake({"export", "--model", model_, "--out", temp_.Path("out"), "--force"}, "holds a training run");
}

TEST_F(AdaptTest, AMemoryThatIsThereGoesOnLearning) {
  ASSERT_EQ(Run(Adapt("first")).status, 0);
  model_ = temp_.Path("first");
  const Outcome outcome = Run(Adapt("second"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(ModelBytes("first"), ModelBytes("second"));
}

TEST_F(AdaptTest, RefusesWhatCannotWork) {
  ASSERT_EQ(Run(Adapt("out")).status, 0);
  const std::string bare = MakeModel("bare", TinyConfig(), nullptr);
  const std::string text = temp_.Path("text.txt"), fresh = temp_.Path("fresh");
  struct Case {
    Args args;
    std::string reason;
  };
  const std::vector<Case> cases = {
      {{"adapt", "--model", model_, "--data", text}, "--out is missing"},
      {{"adapt", "--data", text, "--out", fresh}, "--model is missing"},
      {{"adapt", "--model", model_, "--out", fresh}, "--data is missing"},
      {{"adapt", "--model", temp_.Path("nowhere"), "--data", text, "--out", fresh}, "nowhere"},
      {{"adapt", "--model", bare, "--data", text, "--out", fresh}, "no tokenizer"},
      {{"adapt", "--model", model_, "--data", temp_.Path("nothing.txt"), "--out", fresh}, "nothing.txt"},
      {Adapt("fresh", {"--train", "memry"}), "memory"},
      {Adapt("fresh", {"--distill", "3"}), "distill"},
      {Adapt("fresh", {"--distill", "nan"}), "--distill is 'nan'"},
      {Adapt("fresh", {"--learning-rate", "nan"}), "--learning-rate is 'nan'"},
      {{"adapt", "--model", model_, "--data", text, "--out", fresh, "--window", "8x"}, "--window is '8x'"},
      {Adapt("fresh", {"--window", "8"}), "--window"},
      {Adapt("fresh", {"--distill", "0.5", "--set", "train.block=4096"}), "train.block"},
      {Adapt("fresh", {"--lora-rank", "0", "--train", "lora"}), "lora_rank"},
      {Adapt("fresh", {"--set", "cache.window=0"}), "cache.window"},
      {Adapt("out"), "--resume"},
      {With({"adapt", "--model", model_, "--data", text}, {"--out", model_}), "holds a model already"},
      {{"adapt", "--resume", "--out", temp_.Path("out"), "--steps", "9"}, "--steps"},
      {{"adapt", "--resume", "--out", fresh}, "no training to resume"},
  };
  for (const Case& c : cases) {
    ExpectMistake(c.args, c.reason);
    EXPECT_FALSE(fs::exists(fresh + "/model.safetensors")) << c.reason;
  }
}

}  // namespace
}  // namespace tensorcache
