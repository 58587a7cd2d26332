#include "experiments/needle_streaming.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "experiments/task_streaming.h"
#include "tensorcache/session.h"
#include "tensorcache/tokenizer.h"
#include "testing/temp_folder.h"

namespace tensorcache::experiments {
namespace {

class NeedleStreamingTest : public ::testing::Test {
 protected:
  NeedleStreamingTest() {
    std::string text;
    for (int i = 0; i < 200; ++i) text += "Sentence number " + std::to_string(i * i) + " is not the last.\n";
    folder_.Put("essay.txt", text);
    auto corpus =
        data::OpenCorpus({.path = folder_.Path("essay.txt"), .valid_fraction = 0.5, .cache_dir = folder_.Path("cache")},
                         *MakeByteTokenizer(), {});
    EXPECT_TRUE(corpus.ok()) << corpus.status().message();
    essays_ = *std::move(corpus);
  }

  static std::shared_ptr<const Model> RandomModel(const CacheConfig& cache) {
    const ModelConfig config{.vocab_size = 256,
                             .hidden_size = 32,
                             .intermediate_size = 48,
                             .num_hidden_layers = 2,
                             .num_attention_heads = 2,
                             .num_key_value_heads = 2,
                             .max_position_embeddings = 4096,
                             .cache = cache};
    auto model = Model::Random(config, {.threads = 2}, 7);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return *model;
  }

  // The same from a session that reads the text in one piece.
  NeedleAnswer InOnePiece(const std::shared_ptr<const Model>& model, const NeedleQuestion& question, double depth) {
    const auto source = data::MakeNeedleSource({.task = question.task, .length = question.length, .depth = depth},
                                               essays_, question.seed);
    EXPECT_TRUE(source.ok()) << source.status().message();
    data::Batch text;
    EXPECT_TRUE((*source)->Fill(data::Split::kValid, 0, question.row, 1, &text).ok());
    std::vector<float> logits(text.inputs.size() * 256);
    auto session = Session::Create(model);
    EXPECT_TRUE(session->PrefillLogits(text.inputs, logits).ok());
    NeedleAnswer answer{.state_bytes = session->state_bytes().total()};
    for (size_t t = 0; t < text.inputs.size(); ++t) {
      if (text.targets[t] < 0) continue;
      const auto row = std::span<const float>(logits).subspan(t * 256, 256);
      ++answer.tokens;
      answer.right += std::max_element(row.begin(), row.end()) - row.begin() == text.targets[t];
      answer.nll += NegativeLogProbability(row, text.targets[t]);
    }
    return answer;
  }

  testing::TempFolder folder_;
  data::Corpus essays_;
};

TEST_F(NeedleStreamingTest, WhatTextsShareIsReadOnceAndChangesNothing) {
  std::vector<std::pair<std::string, CacheConfig>> caches;
  for (const auto& [method, name] : EnumNames(CacheMethod{})) {
    caches.emplace_back(name, CacheConfig{.method = method, .window = 20});
  }
  caches.emplace_back("associative", CacheConfig{.method = CacheMethod::kTensorCache, .window = 20});
  caches.back().second.tensor_cache.Apply(MemoryDesign::kAssociative);
  const std::vector<double> depths = {0, 0.3, 0.31, 1};  // two of them at the same border
  for (const auto& [name, cache] : caches) {
    const auto model = RandomModel(cache);
    for (const data::NeedleTask task : data::kNeedleTasks) {
      const NeedleQuestion question{.task = task, .length = 1000, .row = 3, .seed = 5};
      const auto answers = AskAtDepths(model, essays_, question, depths);
      ASSERT_TRUE(answers.ok()) << name << ": " << answers.status().message();
      ASSERT_EQ(answers->size(), depths.size());
      for (size_t d = 0; d < depths.size(); ++d) {
        const NeedleAnswer expected = InOnePiece(model, question, depths[d]);
        const NeedleAnswer& answer = (*answers)[d];
        EXPECT_EQ(answer.tokens, data::AnswerBytes(task)) << name;
        EXPECT_EQ(answer.tokens, expected.tokens) << name;
        EXPECT_EQ(answer.right, expected.right) << name;
        EXPECT_NEAR(answer.nll, expected.nll, 1e-4 * static_cast<double>(answer.tokens)) << name << " " << depths[d];
        EXPECT_EQ(answer.state_bytes, expected.state_bytes) << name;
      }
    }
  }
}

TEST_F(NeedleStreamingTest, AnAnswerIsWholeIfAllOfItIsRight) {
  EXPECT_TRUE((NeedleAnswer{.tokens = 6, .right = 6}.Whole()));
  EXPECT_FALSE((NeedleAnswer{.tokens = 6, .right = 5}.Whole()));
}

TEST_F(NeedleStreamingTest, WhatCannotBeAskedIsRefused) {
  const auto model = RandomModel({.method = CacheMethod::kWindow, .window = 20});
  const auto code = [&](const NeedleQuestion& question, std::vector<double> depths) {
    return AskAtDepths(model, essays_, question, depths).status().code();
  };
  EXPECT_EQ(code({.length = 600}, {1, 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.length = 100}, {0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.length = 600}, {2}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.length = 600}, {}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.length = 600}, {0, 1}), StatusCode::kOk);
}

}  // namespace
}  // namespace tensorcache::experiments
