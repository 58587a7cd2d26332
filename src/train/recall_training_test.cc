// The paper's recall task at its setting (gap 24, W = 12, 300 steps, batch 32, AdamW 1e-3, seed 1337): after training, the
// model answers when it reads token by token from its state.
#include <gtest/gtest.h>

#include "core/config.h"
#include "train/presets.h"
#include "train/trainer.h"

namespace tensorcache::train {
namespace {

// Of the answers of `rows` fresh sequences, streamed one token at a time.
double StreamingAccuracy(const Model& model, const data::BatchSource& source, int64_t rows) {
  const at::NoGradGuard no_grad;
  data::Batch batch;
  EXPECT_TRUE(source.Fill(data::Split::kValid, 1000, 0, rows, &batch).ok());
  const Tensor tokens = at::tensor(batch.inputs, at::kLong).view({rows, batch.length});
  const Tensor targets = at::tensor(batch.targets, at::kLong).view({rows, batch.length});
  ModelState state;
  int64_t right = 0, asked = 0, bytes = 0;
  for (int64_t t = 0; t < batch.length; ++t) {
    const Tensor logits = model.Logits(model.Hidden(tokens.narrow(1, t, 1), {}, &state)).squeeze(1);
    const Tensor target = targets.select(1, t), supervised = target.ge(0);
    right += logits.argmax(-1).eq(target).logical_and(supervised).sum().item<int64_t>();
    asked += supervised.sum().item<int64_t>();
    if (t >= model.config().cache.window) {
      if (bytes == 0) bytes = state.Bytes();
      EXPECT_EQ(state.Bytes(), bytes) << "the state must not grow";
    }
  }
  EXPECT_EQ(asked, rows * 6);
  return static_cast<double>(right) / static_cast<double>(asked);
}

class RecallTraining : public ::testing::TestWithParam<const char*> {};

TEST_P(RecallTraining, ReachesStreamingAccuracy) {
  TrainConfig config;
  ASSERT_TRUE(ReadPresetOrFile("recall", &config).ok());
  ASSERT_TRUE(ApplyOverride(std::string("cache.tensor_cache.write.rule=") + GetParam(), &config).ok());
  ASSERT_EQ(config.train.seed, 1337U);
  ASSERT_EQ(config.train.steps, 300);
  auto source = data::MakeSource(config.data, {.seed = config.train.seed, .rows_per_batch = 32}, nullptr);
  ASSERT_TRUE(source.ok()) << source.status().message();
  std::shared_ptr<const data::BatchSource> shared = std::move(*source);
  config.model.vocab_size = shared->vocab_size();
  config.model.max_position_embeddings = shared->length();
  Result<std::unique_ptr<World>> world = World::Join({}, at::kCPU);
  ASSERT_TRUE(world.ok());
  Result<std::unique_ptr<Trainer>> trainer = Trainer::Create(config, shared, world->get());
  ASSERT_TRUE(trainer.ok()) << trainer.status().message();
  for (int64_t step = 0; step < config.train.steps; ++step) {
    const Result<StepMetrics> metrics = (*trainer)->Step(false);
    ASSERT_TRUE(metrics.ok()) << metrics.status().message();
  }
  const double accuracy = StreamingAccuracy((*trainer)->model(), *shared, 64);
  RecordProperty("streaming_accuracy", std::to_string(accuracy));
  std::printf("%s: streaming accuracy %.4f\n", GetParam(), accuracy);
  EXPECT_GE(accuracy, 0.99);
}

INSTANTIATE_TEST_SUITE_P(Rules, RecallTraining, ::testing::Values("outer", "delta", "wedge"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tensorcache::train
