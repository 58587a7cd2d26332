#include "experiments/recall_streaming.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tensorcache/session.h"

namespace tensorcache::experiments {
namespace {

ModelConfig Config(CacheMethod method, const data::RecallConfig& task) {
  return {.vocab_size = task.VocabSize(),
          .hidden_size = 32,
          .intermediate_size = 48,
          .num_hidden_layers = 2,
          .num_attention_heads = 2,
          .num_key_value_heads = 2,
          .max_position_embeddings = task.Length(),
          .cache = {.method = method, .window = 5}};
}

std::shared_ptr<const Model> RandomModel(CacheMethod method, const data::RecallConfig& task) {
  auto model = Model::Random(Config(method, task), {.threads = 2}, 7);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *model;
}

// The same figures from logits that a whole sequence gives at once.
TaskScore ScoreInOnePiece(const std::shared_ptr<const Model>& model, const RecallStreamOptions& options) {
  const auto source = data::MakeRecallSource(options.task, options.seed);
  data::Batch batch;
  EXPECT_TRUE((*source)->Fill(data::Split::kValid, 0, 0, options.rows, &batch).ok());
  const auto vocabulary = static_cast<size_t>(options.task.VocabSize()), length = static_cast<size_t>(batch.length);
  std::vector<float> logits(length * vocabulary);
  TaskScore score;
  for (size_t row = 0; row < static_cast<size_t>(options.rows); ++row) {
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

TEST(RecallStreamingTest, TokenByTokenEqualsTheWholeSequenceForEveryMethod) {
  const data::RecallConfig task{.gap = 6, .episodes = 3, .keys = 4, .values = 4, .fillers = 3, .lead = 2};
  for (const auto& [method, name] : EnumNames(CacheMethod{})) {
    const auto model = RandomModel(method, task);
    const RecallStreamOptions options{
        .task = task, .rows = 37, .seed = 5};  // more than stream together, not a multiple
    const auto streamed = StreamRecall(model, options);
    ASSERT_TRUE(streamed.ok()) << name << ": " << streamed.status().message();
    const TaskScore expected = ScoreInOnePiece(model, options);
    EXPECT_EQ(streamed->answers, 37 * 3) << name;
    EXPECT_EQ(streamed->answers, expected.answers) << name;
    EXPECT_NEAR(streamed->accuracy, expected.accuracy, 1e-12) << name;
    EXPECT_NEAR(streamed->nll, expected.nll, 1e-4) << name;
    const auto bytes = RecallStateBytes(model, task);
    EXPECT_EQ(streamed->state_bytes, *bytes) << name;
  }
}

TEST(RecallStreamingTest, BoundedMethodsKeepTheSameStateAtAnyGap) {
  const data::RecallConfig near{.gap = 6}, far{.gap = 60};
  const auto bounded = RandomModel(CacheMethod::kTensorCache, near);
  EXPECT_EQ(*RecallStateBytes(bounded, near), *RecallStateBytes(bounded, far));
  const auto full = RandomModel(CacheMethod::kFull, near);
  EXPECT_EQ(*RecallStateBytes(full, far), *RecallStateBytes(full, near) / near.Length() * far.Length());
}

TEST(RecallStreamingTest, FullBeyondTheTrainedLengthScalesItsRotaryEmbeddingUnlessTold) {
  const data::RecallConfig trained{.gap = 6, .episodes = 1}, longer{.gap = 60, .episodes = 1};
  const auto model = RandomModel(CacheMethod::kFull, trained);
  const auto scaled = StreamRecall(model, {.task = longer, .rows = 8});
  const auto plain = StreamRecall(model, {.task = longer, .rows = 8, .scale_full = false});
  EXPECT_NE(scaled->nll, plain->nll);
  const auto same = StreamRecall(model, {.task = trained, .rows = 8});
  EXPECT_EQ(same->nll, StreamRecall(model, {.task = trained, .rows = 8, .scale_full = false})->nll);
}

TEST(RecallStreamingTest, ATaskOfOtherTokensIsRefused) {
  const auto model = RandomModel(CacheMethod::kWindow, {});
  EXPECT_EQ(StreamRecall(model, {.task = {.values = 8}, .rows = 1}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tensorcache::experiments
