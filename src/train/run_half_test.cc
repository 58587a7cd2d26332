// What the train half exports, the run half computes: the same logits, for every cache method and every option, however the
// text is cut, on any number of threads, in any company, after saving, restoring and forking.
#include <gtest/gtest.h>

#include <functional>

#include "core/file.h"
#include "tensorcache/session.h"
#include "testing/temp_folder.h"
#include "train/checkpoint.h"
#include "train/model_testing.h"

namespace tensorcache::train {
namespace {

using RunModel = std::shared_ptr<const tensorcache::Model>;
using Logits = std::vector<float>;  // (tokens, V)

constexpr int64_t kTokens = 61;

class RunHalf : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    const at::NoGradGuard no_grad;
    config_ = ConfigOf(GetParam());
    const Model model = RandomModel(config_);
    const Tensor tokens = RandomTokens(config_, 1, kTokens, 3);
    const Tensor logits = model.Logits(model.Hidden(tokens, {})).contiguous();
    want_.assign(logits.const_data_ptr<float>(), logits.const_data_ptr<float>() + logits.numel());
    tokens_.assign(tokens.const_data_ptr<int64_t>(), tokens.const_data_ptr<int64_t>() + kTokens);
    const Status saved = SaveModel(model, folder_.path());
    ASSERT_TRUE(saved.ok()) << saved.message();
  }

  RunModel Load(ModelOptions options = {.threads = 1}) const {
    Result<RunModel> model = tensorcache::Model::Load(folder_.path(), options);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return std::move(model).value();
  }
  static Session Start(const RunModel& model) {
    Result<Session> session = Session::Create(model);
    EXPECT_TRUE(session.ok()) << session.status().message();
    return std::move(session).value();
  }
  std::span<const int32_t> Tokens(int64_t first, int64_t count) const {
    return std::span(tokens_).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  }

  // Appends the logits after each of the tokens.
  void Feed(Session& session, int64_t first, int64_t count, Logits* logits) const {
    Logits block(static_cast<size_t>(count * config_.vocab_size));
    const Status status = session.PrefillLogits(Tokens(first, count), block);
    ASSERT_TRUE(status.ok()) << status.message();
    ExpectClose(Logits(session.logits().begin(), session.logits().end()),
                Logits(block.end() - config_.vocab_size, block.end()), Rounding());
    logits->insert(logits->end(), block.begin(), block.end());
  }
  Logits RunInBlocks(const RunModel& model, const std::vector<int64_t>& blocks) const {
    Session session = Start(model);
    Logits logits;
    int64_t first = 0;
    for (const int64_t length : blocks) {
      Feed(session, first, length, &logits);
      first += length;
    }
    EXPECT_EQ(first, kTokens);
    EXPECT_EQ(session.position(), kTokens);
    return logits;
  }

  static void ExpectClose(const Logits& got, const Logits& want, double tolerance) {
    ASSERT_EQ(got.size(), want.size());
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double distance = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
      if (!(distance <= worst)) worst = distance;
    }
    EXPECT_LE(worst, tolerance);
  }

  // Of logits of order 1. Reads that are divided by their weights' sum are so by numbers near zero, too.
  double Rounding() const { return config_.cache.tensor_cache.read.normalize ? 1e-4 : 1e-5; }

  // |a - b|
  static double Norm(const Logits& a, const Logits& b) {
    EXPECT_EQ(a.size(), b.size());
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    return std::sqrt(sum);
  }

  const testing::TempFolder folder_;
  ModelConfig config_;
  std::vector<int32_t> tokens_;
  Logits want_;
};

TEST_P(RunHalf, AnySplitGivesTheTrainHalfsLogits) {
  const RunModel model = Load();
  const std::vector<std::vector<int64_t>> splits = {
      {kTokens}, std::vector<int64_t>(kTokens, 1), {1, 2, 17, 3, 1, 1, 9, 7, 20}, {40, 21}, {5, 1, 1, 1, 33, 1, 19}};
  for (const std::vector<int64_t>& split : splits) {
    SCOPED_TRACE("blocks of " + std::to_string(split[0]) + ", ...");
    ExpectClose(RunInBlocks(model, split), want_, Rounding());
  }
  ExpectClose(RunInBlocks(Load({.threads = 1, .prefill_block = 7}), {kTokens}), want_, Rounding());
}

TEST_P(RunHalf, ABf16RingChangesLittleAndNothingByItsSplit) {
  const RunModel model = Load({.ring = RingType::kBf16, .threads = 1});
  const Logits whole = RunInBlocks(model, {kTokens});
  const double change = Norm(whole, want_);
  EXPECT_GT(change, 0);
  EXPECT_LE(change, 0.03 * Norm(want_, Logits(want_.size())));  // 8 bits: errors of 2^-9, carried on by the layers
  // A sum that another split rounds differently may fall on the other side of a bf16 boundary, rarely. If blocks saw their own
  // keys unrounded, the splits would differ by as much as bf16 changes.
  EXPECT_LE(Norm(RunInBlocks(model, std::vector<int64_t>(kTokens, 1)), whole), 0.15 * change);
  EXPECT_LE(Norm(RunInBlocks(model, {1, 2, 17, 3, 1, 1, 9, 7, 20}), whole), 0.15 * change);
}

TEST_P(RunHalf, ThreadsChangeNothing) {
  const std::vector<int64_t> split = {40, 1, 1, 19};
  const Logits one = RunInBlocks(Load({.threads = 1}), split);
  for (const int threads : {2, 5}) EXPECT_EQ(RunInBlocks(Load({.threads = threads}), split), one) << threads;
}

TEST_P(RunHalf, CompanyChangesNothing) {
  const RunModel model = Load();
  // Sessions that have read 0, 7, 14, .. tokens go on together.
  std::vector<Session> together, alone;
  for (int64_t i = 0; i < 5; ++i) {
    together.push_back(Start(model));
    ASSERT_TRUE(together.back().Prefill(Tokens(0, 7 * i)).ok());
    alone.push_back(std::move(together.back().Fork()).value());
  }
  std::vector<Session*> batch;
  for (Session& session : together) batch.push_back(&session);
  for (int64_t step = 0; step < 12; ++step) {
    std::vector<int32_t> next;
    for (int64_t i = 0; i < 5; ++i) next.push_back(tokens_[static_cast<size_t>(7 * i + step)]);
    const Status status = Session::DecodeBatch(batch, next);
    ASSERT_TRUE(status.ok()) << status.message();
    for (size_t i = 0; i < 5; ++i) {
      ASSERT_TRUE(alone[i].Decode(next[i]).ok());
      EXPECT_TRUE(std::equal(alone[i].logits().begin(), alone[i].logits().end(), together[i].logits().begin()))
          << "session " << i << ", step " << step;
    }
  }
}

TEST_P(RunHalf, SavedRestoredAndForkedSessionsGoOnBitForBit) {
  const RunModel model = Load();
  const std::string path = folder_.Path("session");
  size_t bytes = 0;
  for (const int64_t before : {0, 3, 25}) {
    Session session = Start(model);
    ASSERT_TRUE(session.Prefill(Tokens(0, before)).ok());
    const Status saved = session.Save(path);
    ASSERT_TRUE(saved.ok()) << saved.message();
    Session fork = std::move(session.Fork()).value();
    Logits original, restored, forked;
    Feed(session, before, 20, &original);
    Feed(session, before + 20, 1, &original);

    Result<Session> again = Session::Restore(Load(), path);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(again->position(), before);
    EXPECT_TRUE(std::equal(fork.recent().begin(), fork.recent().end(), again->recent().begin(), again->recent().end()));
    Feed(*again, before, 20, &restored);
    Feed(*again, before + 20, 1, &restored);
    Feed(fork, before, 20, &forked);
    Feed(fork, before + 20, 1, &forked);
    EXPECT_EQ(restored, original);
    EXPECT_EQ(forked, original);

    const size_t size = ReadWholeFile(path, 1 << 24)->size();
    if (bytes != 0 && !methods::MethodOf(config_.cache).KeepsEverything()) {
      EXPECT_EQ(size, bytes);
    }
    bytes = size;
  }
}

TEST_P(RunHalf, ScoresAreThoseOfTheLogits) {
  const RunModel model = Load({.threads = 2, .prefill_block = 16});
  Session session = Start(model);
  std::vector<float> nll(kTokens);
  ASSERT_TRUE(session.Score(Tokens(0, 40), std::span(nll).first(40)).ok());
  ASSERT_TRUE(session.Score(Tokens(40, kTokens - 40), std::span(nll).subspan(40)).ok());
  EXPECT_TRUE(std::isnan(nll[0]));
  const int64_t V = config_.vocab_size;
  for (int64_t t = 1; t < kTokens; ++t) {
    double sum = 0;
    for (int64_t i = 0; i < V; ++i) sum += std::exp(static_cast<double>(want_[static_cast<size_t>((t - 1) * V + i)]));
    const auto target = static_cast<size_t>((t - 1) * V + tokens_[static_cast<size_t>(t)]);
    EXPECT_NEAR(nll[static_cast<size_t>(t)], std::log(sum) - static_cast<double>(want_[target]), 2e-4) << t;
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, RunHalf, ::testing::ValuesIn(AllCases()),
                         [](const auto& info) { return info.param.name; });

// A weight that is not a number: the first logits tell, and the session is of no use until it is cleared.
TEST(RunHalfFailures, NumbersThatAreNoneAreNoticed) {
  const at::NoGradGuard no_grad;
  ModelConfig config = SmallConfig();
  config.tie_word_embeddings = false;
  const Model model = RandomModel(config);
  model.parameters().embedding.select(0, 5).fill_(NAN);  // token 5
  const testing::TempFolder folder;
  ASSERT_TRUE(SaveModel(model, folder.path()).ok());
  const RunModel run = std::move(tensorcache::Model::Load(folder.path(), {.threads = 2})).value();
  Session bad = std::move(Session::Create(run)).value(), good = std::move(bad.Fork()).value();
  Session* const both[] = {&good, &bad};
  const std::vector<int32_t> tokens = {4, 5};
  for (int attempt = 0; attempt < 2; ++attempt) {
    const Status status = attempt == 0 ? bad.Prefill(tokens) : Session::DecodeBatch(both, tokens);
    ASSERT_EQ(status.code(), StatusCode::kDiverged) << status.message();
    EXPECT_FALSE(bad.Decode(4).ok());
    EXPECT_FALSE(bad.Save(folder.Path("state")).ok());
    bad.Clear();
  }
  EXPECT_EQ(good.position(), 1);
  EXPECT_TRUE(good.Decode(4).ok()) << "its company is none of its business";
}

// A memory whose output starts at zero adds exactly nothing: training starts from window attention.
TEST(RunHalfStart, AZeroOutputStartsAsTheWindow) {
  const at::NoGradGuard no_grad;
  ModelConfig config = SmallConfig();
  config.cache.method = CacheMethod::kTensorCache;
  for (int i = 0; i < 4; ++i) {
    const bool plain = i % 2 == 0, zero = i < 2;
    config.cache.tensor_cache.read.zero_output = zero;
    config.cache.tensor_cache.address = {.by = plain ? MemoryAddress::kContent : MemoryAddress::kRope,
                                         .normalize_queries = plain,
                                         .normalize_keys = plain};
    const testing::TempFolder folder;
    ASSERT_TRUE(SaveModel(RandomModel(config), folder.path()).ok());
    CacheConfig window = config.cache;
    window.method = CacheMethod::kWindow;
    std::vector<std::vector<float>> logits;
    for (const std::optional<CacheConfig>& cache : {std::optional<CacheConfig>(), std::optional(window)}) {
      const RunModel run = std::move(tensorcache::Model::Load(folder.path(), {.threads = 1, .cache = cache})).value();
      Session session = std::move(Session::Create(run)).value();
      for (int32_t token = 0; token < 40; ++token) ASSERT_TRUE(session.Decode(token % 11).ok());
      logits.emplace_back(session.logits().begin(), session.logits().end());
    }
    EXPECT_EQ(logits[0] == logits[1], zero);
  }
}

}  // namespace
}  // namespace tensorcache::train
