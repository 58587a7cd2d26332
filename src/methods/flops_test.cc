#include "methods/flops.h"

#include <gtest/gtest.h>

namespace tensorcache {
namespace {

// Counted by hand for one layer of width 4 with two heads of 2, F = 8, V = 5; a row of 3 tokens, all supervised.
ModelConfig Tiny(CacheMethod method) {
  ModelConfig config;
  config.vocab_size = 5;
  config.hidden_size = 4;
  config.intermediate_size = 8;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 2;
  config.cache.method = method;
  config.cache.window = 2;
  return config;
}
constexpr StepSize kRow{.rows = 1, .tokens = 3, .supervised = 3};
constexpr double kProducts = 2 * 3 * (4 * 12 + 4 * 4 + 2 * 4 * 8) + 2 * 3 * 4 * 5;  // projections, MLP, logits

TEST(TrainingFlops, CountsProductsAndVisiblePairs) {
  EXPECT_DOUBLE_EQ(TrainingFlops(Tiny(CacheMethod::kFull), kRow), 3 * (kProducts + 4 * 2 * 2 * 6));
  EXPECT_DOUBLE_EQ(TrainingFlops(Tiny(CacheMethod::kWindow), kRow), 3 * (kProducts + 4 * 2 * 2 * 5));
}

TEST(TrainingFlops, CountsReadsAndWritesOfTheMemory) {
  const double window = TrainingFlops(Tiny(CacheMethod::kWindow), kRow);
  ModelConfig config = Tiny(CacheMethod::kTensorCache);
  const double output = 2 * 3 * 4 * 4, reads = 3 * 2 * (2 * 2 * 2), writes = reads;
  EXPECT_DOUBLE_EQ(TrainingFlops(config, kRow), window + 3 * (output + reads + writes));
  config.cache.tensor_cache.write.rule = WriteRule::kDelta;
  EXPECT_DOUBLE_EQ(TrainingFlops(config, kRow), window + 3 * (output + reads + 2 * writes));
  config.cache.tensor_cache.layers = MemoryLayers::kNone;
  EXPECT_DOUBLE_EQ(TrainingFlops(config, kRow), window);
}

TEST(ForwardFlops, OfBlocksAddUpToThatOfTheWhole) {
  for (const CacheMethod method : {CacheMethod::kFull, CacheMethod::kWindow, CacheMethod::kTensorCache}) {
    const ModelConfig config = Tiny(method);
    const double whole = ForwardFlops(config, {.tokens = 7, .supervised = 7});
    EXPECT_DOUBLE_EQ(ForwardFlops(config, {.tokens = 3, .supervised = 3}) +
                         ForwardFlops(config, {.tokens = 4, .past = 3, .supervised = 4}),
                     whole);
  }
}

}  // namespace
}  // namespace tensorcache
