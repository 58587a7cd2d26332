#include "runtime/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/rng.h"
#include "tensorcache/session.h"

namespace tensorcache {
namespace {

std::shared_ptr<const Model> TinyModel(CacheMethod method, int64_t vocab_size = 50) {
  const ModelConfig config = {.vocab_size = vocab_size,
                              .hidden_size = 32,
                              .intermediate_size = 64,
                              .num_hidden_layers = 2,
                              .num_attention_heads = 2,
                              .num_key_value_heads = 1,
                              .cache = {.method = method, .window = 16}};
  return Model::Random(config, {.threads = 1}).value();
}

std::vector<int32_t> Tokens(int64_t count, uint64_t vocab_size = 50) {
  Rng rng(7);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.Below(vocab_size));
  return tokens;
}

TEST(Evaluate, GivesTheMeansOfWhatASessionScores) {
  const auto model = TinyModel(CacheMethod::kTensorCache);
  const std::vector<int32_t> tokens = Tokens(500);
  const EvaluationOptions options = {.contexts = {100, 7}, .starts = 3, .seed = 5, .bins = {10, 60, 300}};
  const auto scores = Evaluate(model, TextOf(tokens), options).value();
  ASSERT_EQ(scores.size(), 2u);
  EXPECT_EQ(scores[0].bins, (std::vector<int64_t>{10, 60, 100}));
  EXPECT_EQ(scores[1].bins, (std::vector<int64_t>{7}));
  for (const ContextScore& score : scores) {
    ASSERT_EQ(score.streams.size(), 3u);
    EXPECT_EQ(score.state_bytes, Session::Create(model)->state_bytes().total());
    for (const StreamScore& stream : score.streams) {
      Session session = Session::Create(model).value();
      std::vector<float> nll(static_cast<size_t>(score.context) + 1);
      ASSERT_TRUE(session.Score(std::span(tokens).subspan(static_cast<size_t>(stream.start), nll.size()), nll).ok());
      double sum = 0, last = 0;
      std::vector<double> bins(score.bins.size());
      for (size_t i = 1; i < nll.size(); ++i) {
        sum += nll[i];
        if (static_cast<double>(i) > static_cast<double>(score.context) / 2) last += nll[i];
        bins[score.context == 7 || i <= 10 ? 0 : i <= 60 ? 1 : 2] += nll[i];
      }
      // The same floats, summed in double in the same order.
      EXPECT_DOUBLE_EQ(stream.nll, sum / static_cast<double>(score.context));
      EXPECT_DOUBLE_EQ(stream.last_half, last / (score.context == 7 ? 4 : 50));
      EXPECT_DOUBLE_EQ(stream.bins[0], bins[0] / (score.context == 7 ? 7 : 10));
      if (score.context == 100) {
        EXPECT_DOUBLE_EQ(stream.bins[1], bins[1] / 50);
        EXPECT_DOUBLE_EQ(stream.bins[2], bins[2] / 40);
      }
    }
  }
}

TEST(Evaluate, CountsOnlyWhatIsAskedFor) {
  const auto model = TinyModel(CacheMethod::kTensorCache);
  const std::vector<int32_t> tokens = Tokens(5001);
  std::vector<float> nll(tokens.size());
  Session session = Session::Create(model).value();
  for (size_t first = 0; first < tokens.size(); first += 4096) {  // the same blocks, for the same bits
    const size_t n = std::min<size_t>(4096, tokens.size() - first);
    ASSERT_TRUE(session.Score(std::span(tokens).subspan(first, n), std::span(nll).subspan(first, n)).ok());
  }
  // Those after a token below 10 that is the second of its kind in a row, across the border of a piece too.
  size_t longest = 0;
  const auto is_answer = [&](std::span<const int32_t> before) {
    longest = std::max(longest, before.size());
    return before.size() > 1 && before.back() < 10 && before[before.size() - 2] < 10;
  };
  const EvaluationOptions options = {.contexts = {5000}, .starts = 1, .counts = is_answer};
  const StreamScore stream = Evaluate(model, TextOf(tokens), options)->front().streams.front();
  double sum = 0;
  int64_t count = 0;
  for (size_t i = 2; i < tokens.size(); ++i) {
    if (tokens[i - 1] >= 10 || tokens[i - 2] >= 10) continue;
    sum += nll[i];
    ++count;
  }
  EXPECT_EQ(stream.counted, count);
  EXPECT_DOUBLE_EQ(stream.nll, sum / static_cast<double>(count));
  EXPECT_EQ(stream.bytes, 0);
  EXPECT_EQ(longest, static_cast<size_t>(options.counted_by));
  const EvaluationOptions none = {
      .contexts = {100}, .starts = 1, .counts = [](std::span<const int32_t>) { return false; }};
  EXPECT_EQ(Evaluate(model, TextOf(tokens), none).status().code(), StatusCode::kInvalidArgument);
}

TEST(Evaluate, StreamsInPiecesWithoutASeam) {
  const auto model = TinyModel(CacheMethod::kWindow, 10);
  const std::vector<int32_t> tokens = Tokens(9001, 10);
  int64_t reported = 0;
  const EvaluationOptions options = {
      .contexts = {9000}, .starts = 1, .bins = {4000, 4096, 8192}, .progress = [&](int64_t, int64_t n) {
        reported += n;
      }};
  const auto scores = Evaluate(model, TextOf(tokens), options).value();
  EXPECT_EQ(reported, 9001);
  const StreamScore& stream = scores[0].streams[0];
  EXPECT_EQ(stream.start, 0);
  Session session = Session::Create(model).value();
  std::vector<float> nll(tokens.size());
  ASSERT_TRUE(session.Score(tokens, nll).ok());
  double across = 0;
  for (size_t i = 4001; i <= 4096; ++i) across += nll[i] / 96;
  // Other cuts, other roundings: some 100 operations on logits of size 1 between a token and its score.
  EXPECT_NEAR(stream.bins[1], across, 1e-5);
}

TEST(Evaluate, StartsArePairedAndCoverTheText) {
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 200; ++i) {
    const int64_t start = EvaluationStart(3, i, 90, 100);
    EXPECT_GE(start, 0);
    EXPECT_LT(start, 10);
    EXPECT_EQ(start, EvaluationStart(3, i, 90, 100));
    seen.insert(start);
  }
  EXPECT_EQ(seen.size(), 10u);

  const std::vector<int32_t> tokens = Tokens(300);
  const EvaluationOptions options = {.contexts = {50}, .starts = 5, .seed = 1};
  const auto a = Evaluate(TinyModel(CacheMethod::kWindow), TextOf(tokens), options).value();
  const auto b = Evaluate(TinyModel(CacheMethod::kFull), TextOf(tokens), options).value();
  std::set<int64_t> starts;
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(a[0].streams[i].start, b[0].streams[i].start);
    starts.insert(a[0].streams[i].start);
  }
  EXPECT_GT(starts.size(), 1u);
  EXPECT_EQ(b[0].state_bytes, 51 * 2 * 2 * 16 * 4) << "tokens x layers x (k, v) x D x 4";
}

TEST(Evaluate, BitsPerByteCountThePredictedText) {
  const std::vector<int32_t> tokens = Tokens(200);
  EvaluationText text = TextOf(tokens);
  int64_t counted = 0;
  text.count_bytes = [&](int32_t previous, std::span<const int32_t> part) -> Result<int64_t> {
    EXPECT_EQ(previous, tokens[0]);
    counted += static_cast<int64_t>(part.size());
    return 3 * static_cast<int64_t>(part.size());
  };
  const auto scores = Evaluate(TinyModel(CacheMethod::kWindow), text, {.contexts = {199}, .starts = 1}).value();
  EXPECT_EQ(counted, 199);
  EXPECT_EQ(scores[0].streams[0].bytes, 3 * 199);
  EXPECT_DOUBLE_EQ(scores[0].BitsPerByte()[0], scores[0].streams[0].nll / 3 / std::log(2.0));
}

TEST(Evaluate, ImpossibleRequestsAreRefused) {
  const auto model = TinyModel(CacheMethod::kWindow);
  const std::vector<int32_t> tokens = Tokens(100);
  const auto refused = [&](const EvaluationOptions& options, const char* message) {
    const auto result = Evaluate(model, TextOf(tokens), options);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(result.status().message().find(message), std::string::npos) << result.status().message();
  };
  EXPECT_TRUE(Evaluate(model, TextOf(tokens), {.contexts = {99}}).ok());
  refused({.contexts = {100}}, "needs a text of 101 tokens or more; this one has 100");
  refused({.contexts = {0}}, "a context needs 1");
  refused({.contexts = {}}, "no context");
  refused({.contexts = {10}, .starts = 0}, "start positions");
  refused({.contexts = {10}, .bins = {4, 4}}, "out of order");
  refused({.contexts = {10}, .bins = {0}}, "out of order");
  const std::vector<int32_t> foreign = {1, 2, 50};
  EXPECT_FALSE(Evaluate(model, TextOf(foreign), {.contexts = {2}}).ok());
}

TEST(Evaluate, ScalesFullBeyondTheTrainedLength) {
  ModelConfig config = TinyModel(CacheMethod::kFull)->config();
  config.max_position_embeddings = 32;
  const auto model = Model::Random(config, {.threads = 1}).value();
  const std::vector<int32_t> tokens = Tokens(300);
  EvaluationOptions options = {.contexts = {32, 128}, .starts = 1};
  const auto nll_of = [&](const ContextScore& score, double factor) {
    Session session = Session::Create(model, {.rope_ntk_factor = factor}).value();
    std::vector<float> nll(static_cast<size_t>(score.context) + 1);
    const auto start = static_cast<size_t>(score.streams[0].start);
    EXPECT_TRUE(session.Score(std::span(tokens).subspan(start, nll.size()), nll).ok());
    double sum = 0;
    for (size_t i = 1; i < nll.size(); ++i) sum += static_cast<double>(nll[i]);
    return sum / static_cast<double>(score.context);
  };
  const auto scaled = Evaluate(model, TextOf(tokens), options).value();
  EXPECT_EQ(scaled[0].rope_ntk_factor, 1);
  EXPECT_EQ(scaled[1].rope_ntk_factor, 4);
  EXPECT_DOUBLE_EQ(scaled[1].streams[0].nll, nll_of(scaled[1], 4));
  options.scale_full = false;
  const auto plain = Evaluate(model, TextOf(tokens), options).value();
  EXPECT_DOUBLE_EQ(plain[1].streams[0].nll, nll_of(plain[1], 1));
  EXPECT_NE(plain[1].streams[0].nll, scaled[1].streams[0].nll);
  EXPECT_FALSE(Session::Create(model, {.rope_ntk_factor = 0.5}).ok());
}

}  // namespace
}  // namespace tensorcache
