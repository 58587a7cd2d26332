// A cache method that is not in the library's table, as a program of its own would add one.
#include <gtest/gtest.h>

#include "core/config.h"
#include "methods/toy_method_testing.h"
#include "runtime/cache_testing.h"
#include "testing/temp_folder.h"

namespace tensorcache {
namespace {

using namespace cache_testing;  // NOLINT(google-build-using-namespace)

constexpr int64_t kTokens = 30;

class OwnMethod : public ::testing::Test {
 protected:
  const TwoLevelCacheConfig config_ = Config(methods::AddToyMethod());
  const Sequence sequence_{kTokens};
};

TEST_F(OwnMethod, IsKnownByItsName) {
  CacheConfig cache;
  const Status status = ApplyOverride("method=running_mean", &cache);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(cache.method, config_.cache.method);
  EXPECT_EQ(ToJson(cache)["method"], "running_mean");
  EXPECT_TRUE(methods::IsOfMethod("model.layers.3.self_attn.running_mean.gate"));
}

TEST_F(OwnMethod, ReadsWhatItsFormulaSaysHoweverTheTextIsCut) {
  const std::vector<std::vector<int64_t>> splits = {
      {kTokens}, std::vector<int64_t>(kTokens, 1), {1, 2, 17, 3, 7}, {20, 1, 9}};
  TwoLevelCache window = Make(Config(CacheMethod::kWindow));
  Outputs of_window;
  Advance(window, 0, sequence_, 0, kTokens, &of_window);
  for (const std::vector<int64_t>& split : splits) {
    TwoLevelCache cache = Make(config_);
    EXPECT_TRUE(cache.HasMemory(0));
    Outputs out;
    int64_t first = 0;
    for (const int64_t count : split) {
      Advance(cache, 0, sequence_, first, count, &out);
      first += count;
    }
    std::vector<double> mean(static_cast<size_t>(kKvHeads * kDim));
    for (int64_t t = 0; t < kTokens; ++t) {
      for (size_t i = 0; i < mean.size(); ++i) {
        mean[i] = 0.9 * mean[i] + 0.1 * static_cast<double>(sequence_.v[static_cast<size_t>(t) * mean.size() + i]);
      }
      for (int64_t i = 0; i < kHeads * kDim; ++i) {
        const auto at = static_cast<size_t>(t * kHeads * kDim + i);
        const auto shared = static_cast<size_t>(i / kDim / kGroup * kDim + i % kDim);
        EXPECT_NEAR(out.reads[at], mean[shared], 1e-6);
        EXPECT_NEAR(out.local[at], of_window.local[at], 1e-6);
      }
    }
  }
}

TEST_F(OwnMethod, GoesOnFromFilesAndForks) {
  const testing::TempFolder folder;
  TwoLevelCache original = Make(config_), loaded = Make(config_);
  Outputs expected;
  Feed(original, sequence_, 0, 12, &expected);
  EXPECT_EQ(original.state_bytes().memory, static_cast<int64_t>(sizeof(float)) * kLayers * kKvHeads * kDim);
  Status status = original.Save(folder.Path("cache"));
  ASSERT_TRUE(status.ok()) << status.message();
  status = loaded.Load(folder.Path("cache"));
  ASSERT_TRUE(status.ok()) << status.message();
  Result<TwoLevelCache> fork = original.Fork();
  ASSERT_TRUE(fork.ok()) << fork.status().message();
  Outputs of_loaded = expected, of_fork = expected;
  Feed(original, sequence_, 12, kTokens - 12, &expected);
  Feed(loaded, sequence_, 12, kTokens - 12, &of_loaded);
  Feed(*fork, sequence_, 12, kTokens - 12, &of_fork);
  EXPECT_EQ(of_loaded.reads, expected.reads);
  EXPECT_EQ(of_fork.reads, expected.reads);
}

}  // namespace
}  // namespace tensorcache
