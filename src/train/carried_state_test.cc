// Training on states that go on from block to block: what a train state stores of them, and that a run which is restored goes on
// with the same bits, for every cache method.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/rng.h"
#include "train/model_testing.h"
#include "train/trainer_testing.h"

namespace tensorcache::train {
namespace {

constexpr int64_t kBlock = 16;

// Row r starts a document at step r, and goes on with it from there.
class Documents final : public data::BatchSource {
 public:
  explicit Documents(int64_t vocab) : vocab_(vocab) {}
  int64_t vocab_size() const override { return vocab_; }
  int64_t length() const override { return kBlock; }
  Status Fill(data::Split, int64_t step, int64_t first_row, int64_t rows, data::Batch* batch) const override {
    *batch = {.rows = rows, .length = kBlock};
    for (int64_t row = first_row; row < first_row + rows; ++row) {
      Rng rng(static_cast<uint64_t>(step), static_cast<uint64_t>(row));
      for (int64_t t = 0; t < kBlock; ++t) {
        batch->inputs.push_back(static_cast<int32_t>(rng.Below(static_cast<uint64_t>(vocab_))));
      }
      batch->fresh.push_back(step == 0 || step == row ? 1 : 0);
    }
    batch->targets = batch->inputs;
    return OkStatus();
  }

 private:
  int64_t vocab_;
};

struct Carried {
  std::string name;
  std::vector<std::string> overrides;
  std::vector<std::string> parts;  // of a layer
};
void PrintTo(const Carried& c, std::ostream* out) { *out << c.name; }

class CarriedState : public ::testing::TestWithParam<Carried> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    AddToyTrainMethod();
    config_.model = ConfigOf({GetParam().name, GetParam().overrides});
    config_.model.max_position_embeddings = kBlock;
    config_.train.batch_size = 3;
    config_.train.carry_state = true;
    auto world = World::Join({}, at::kCPU);
    ASSERT_TRUE(world.ok());
    world_ = std::move(world).value();
  }
  std::unique_ptr<Trainer> Make() {
    auto trainer = Trainer::Create(config_, std::make_shared<Documents>(config_.model.vocab_size), world_.get());
    EXPECT_TRUE(trainer.ok()) << trainer.status().message();
    return std::move(trainer).value();
  }

  TrainConfig config_;
  std::unique_ptr<World> world_;
};

TEST_P(CarriedState, IsStoredByTheNamesOfItsParts) {
  const auto trainer = Make();
  Steps(*trainer, 1);
  std::vector<std::string> stored, expected;
  const Result<TrainState> state = trainer->Save();
  ASSERT_TRUE(state.ok()) << state.status().message();
  for (const StoredParameter& tensor : state->tensors) {
    if (tensor.name.starts_with("carried.")) stored.push_back(tensor.name);
  }
  for (int64_t layer = 0; layer < config_.model.num_hidden_layers; ++layer) {
    for (const std::string& part : GetParam().parts) expected.push_back(fmt::format("carried.{}.{}", layer, part));
  }
  EXPECT_EQ(stored, expected);
}

TEST_P(CarriedState, GoesOnWithTheSameBits) {
  const auto whole = Make(), half = Make(), rest = Make();
  Steps(*whole, 5);
  Steps(*half, 2);
  const Status restored = rest->Restore(half->Save().value());
  ASSERT_TRUE(restored.ok()) << restored.message();
  Steps(*rest, 3);
  ExpectSameParameters(*rest, *whole);
}

INSTANTIATE_TEST_SUITE_P(
    Methods, CarriedState,
    ::testing::Values(Carried{"window", {"cache.method=window"}, {"k", "v"}},
                      Carried{"streaming_llm", {"cache.method=streaming_llm"}, {"k", "v", "sink_k", "sink_v"}},
                      Carried{"infini", {"cache.method=infini"}, {"k", "v", "memory", "normalizer"}},
                      Carried{"tensor_cache", {"cache.method=tensor_cache"}, {"k", "v", "memory"}},
                      Carried{"toy", {"cache.method=running_mean"}, {"k", "v", "mean"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tensorcache::train
