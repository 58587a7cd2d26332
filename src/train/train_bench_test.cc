#include "train/train_bench.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tensorcache::train {
namespace {

// A bench that nobody runs for months must still measure every method.
TEST(TrainBench, FusionHasARowOfEveryMethod) {
  const auto rows = BenchFusion("recall", 1);
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  for (const char* method : {"window", "full", "streaming_llm", "infini", "tensor_cache outer", "tensor_cache delta",
                             "tensor_cache wedge", "tensor_cache associative"}) {
    const auto row = std::ranges::find(*rows, method, &FusionRow::method);
    ASSERT_NE(row, rows->end()) << method;
    EXPECT_GT(row->ops_fused_seconds, 0) << method;
    EXPECT_GT(row->ops_composite_seconds, 0) << method;
    EXPECT_GT(row->layer_fused_seconds, 0) << method;
  }
}

}  // namespace
}  // namespace tensorcache::train
