#include "experiments/task_streaming.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "data/mqar_task.h"
#include "tensorcache/session.h"

namespace tensorcache::experiments {
namespace {

constexpr int64_t kVocabulary = 40;

std::shared_ptr<const Model> RandomModel(const CacheConfig& cache) {
  const ModelConfig config{.vocab_size = kVocabulary,
                           .hidden_size = 32,
                           .intermediate_size = 48,
                           .num_hidden_layers = 2,
                           .num_attention_heads = 2,
                           .num_key_value_heads = 2,
                           .max_position_embeddings = 64,
                           .cache = cache};
  auto model = Model::Random(config, {.threads = 2}, 7);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *model;
}

std::unique_ptr<data::BatchSource> Mqar(const data::MqarConfig& config) {
  auto source = data::MakeMqarSource(config, 5);
  EXPECT_TRUE(source.ok()) << source.status().message();
  return std::move(source).value();
}

// The same figures from logits that a whole sequence gives at once.
TaskScore ScoreInOnePiece(const std::shared_ptr<const Model>& model, const data::BatchSource& source, int64_t rows) {
  data::Batch batch;
  EXPECT_TRUE(source.Fill(data::Split::kValid, 0, 0, rows, &batch).ok());
  const auto vocabulary = static_cast<size_t>(kVocabulary), length = static_cast<size_t>(batch.length);
  std::vector<float> logits(length * vocabulary);
  TaskScore score;
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    auto session = Session::Create(model);
    EXPECT_TRUE(session->PrefillLogits(std::span(batch.inputs).subspan(row * length, length), logits).ok());
    for (size_t t = 0; t < length; ++t) {
      const int32_t target = batch.targets[row * length + t];
      if (target < 0) continue;
      double sum = 0, largest = -INFINITY;
      size_t best = 0;
      for (size_t v = 0; v < vocabulary; ++v) {
        const double logit = logits[t * vocabulary + v];
        if (logit > largest) best = v;
        largest = std::max(largest, logit);
        sum += std::exp(logit);
      }
      score.accuracy += best == static_cast<size_t>(target);
      score.nll += std::log(sum) - logits[t * vocabulary + static_cast<size_t>(target)];
      ++score.answers;
    }
  }
  score.accuracy /= static_cast<double>(score.answers);
  score.nll /= static_cast<double>(score.answers);
  return score;
}

TEST(TaskStreamingTest, AnyWayToReadGivesTheScoreOfTheWholeRowForEveryMethod) {
  std::vector<std::pair<std::string, CacheConfig>> caches;
  for (const auto& [method, name] : EnumNames(CacheMethod{})) {
    caches.emplace_back(name, CacheConfig{.method = method, .window = 5});
  }
  caches.emplace_back("associative", CacheConfig{.method = CacheMethod::kTensorCache, .window = 5});
  caches.back().second.tensor_cache.Apply(MemoryDesign::kAssociative);
  const std::vector<data::MqarConfig> tasks = {
      {.vocab = kVocabulary, .length = 30, .pairs = 6},
      {.vocab = kVocabulary, .length = 33, .pairs = 4, .min_pairs = 1, .task_tokens = 6}};
  for (const auto& [name, cache] : caches) {
    const auto model = RandomModel(cache);
    for (const data::MqarConfig& task : tasks) {
      const auto source = Mqar(task);
      constexpr int64_t kRows = 37;  // more than stream together, not a multiple
      const TaskScore expected = ScoreInOnePiece(model, *source, kRows);
      for (const bool prefill : {false, true}) {
        const auto score = StreamTask(model, *source, {.rows = kRows, .prefill = prefill});
        ASSERT_TRUE(score.ok()) << name << ": " << score.status().message();
        EXPECT_EQ(score->answers, expected.answers) << name;
        EXPECT_NEAR(score->accuracy, expected.accuracy, 1e-12) << name;
        EXPECT_NEAR(score->nll, expected.nll, 1e-4) << name;
        EXPECT_EQ(score->state_bytes, *StateBytesAfter(model, task.length)) << name;
      }
    }
  }
}

TEST(TaskStreamingTest, BoundedMethodsKeepTheSameStateAtAnyLength) {
  const auto bounded = RandomModel({.method = CacheMethod::kTensorCache, .window = 5});
  EXPECT_EQ(*StateBytesAfter(bounded, 20), *StateBytesAfter(bounded, 200));
  const auto full = RandomModel({.method = CacheMethod::kFull});
  EXPECT_EQ(*StateBytesAfter(full, 20) * 10, *StateBytesAfter(full, 200));
}

TEST(TaskStreamingTest, WhatCannotBeScoredIsRefused) {
  const auto model = RandomModel({.method = CacheMethod::kWindow, .window = 5});
  const auto code = [&](const data::MqarConfig& task, int64_t rows) {
    return StreamTask(model, *Mqar(task), {.rows = rows}).status().code();
  };
  EXPECT_EQ(code({.vocab = kVocabulary + 2, .length = 16, .pairs = 2}, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.vocab = kVocabulary, .length = 16, .pairs = 2}, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.vocab = kVocabulary, .length = 16, .pairs = 2}, 1), StatusCode::kOk);
}

}  // namespace
}  // namespace tensorcache::experiments
