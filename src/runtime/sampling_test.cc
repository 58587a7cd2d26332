#include "tensorcache/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>

#include "core/rng.h"

namespace tensorcache {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
using Logits = std::vector<float>;
using Tokens = std::vector<int32_t>;

// The probability of each token, by the book: sorts everything.
std::vector<double> Probabilities(const Logits& logits, const SamplingOptions& options, const Tokens& recent) {
  std::vector<double> x(logits.begin(), logits.end());
  const auto window = std::min(recent.size(), static_cast<size_t>(options.repetition_window));
  for (const int32_t token : std::set<int32_t>(recent.end() - static_cast<ptrdiff_t>(window), recent.end())) {
    x[token] = x[token] > 0 ? x[token] / options.repetition_penalty : x[token] * options.repetition_penalty;
    x[token] = static_cast<float>(x[token]);
  }
  const double best = *std::max_element(x.begin(), x.end());
  for (double& value : x) value = std::exp((value - best) / options.temperature);

  // From here on only the first entries of `order` are kept.
  Tokens order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; });
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(options.top_k)));
  double total = 0;
  for (const int32_t token : order) total += x[token];
  if (options.top_p < 1) {
    size_t count = 0;
    for (double sum = 0; count == 0 || sum < options.top_p * total; ++count) sum += x[order[count]];
    order.resize(count);
  }
  while (x[order.back()] < options.min_p) order.pop_back();

  std::vector<double> probabilities(x.size(), 0.0);
  total = 0;
  for (const int32_t token : order) total += x[token];
  for (const int32_t token : order) probabilities[token] = x[token] / total;
  return probabilities;
}

int32_t DrawFrom(const std::vector<double>& probabilities, uint64_t seed, uint64_t position) {
  const double uniform = Rng(seed, position).UniformDouble();
  double sum = 0;
  int32_t last = -1;
  for (size_t i = 0; i < probabilities.size(); ++i) {
    if (probabilities[i] == 0) continue;
    sum += probabilities[i];
    last = static_cast<int32_t>(i);
    if (sum > uniform) break;
  }
  return last;
}

int32_t SampleOne(const SamplingOptions& options, const Logits& logits, const Tokens& recent = {},
                  uint64_t position = 0) {
  return Sampler::Create(options).value().Sample(logits, recent, position).value();
}

// Every token that comes up at `draws` positions.
std::set<int32_t> Support(const SamplingOptions& options, const Logits& logits, const Tokens& recent = {},
                          int draws = 2000) {
  Sampler sampler = Sampler::Create(options).value();
  std::set<int32_t> support;
  for (int i = 0; i < draws; ++i) support.insert(sampler.Sample(logits, recent, i).value());
  return support;
}

Logits NormalLogits(Rng& rng, int64_t vocab, double deviation) {
  Logits logits(static_cast<size_t>(vocab));
  for (float& x : logits) x = static_cast<float>(rng.Normal() * deviation);
  return logits;
}

// The same token as the reference at every position. If the two kept different tokens, all probabilities would differ,
// and the same random number would soon point to another token.
void ExpectLikeReference(const SamplingOptions& options, const Logits& logits, const Tokens& recent, int draws) {
  SCOPED_TRACE(testing::Message() << "V " << logits.size() << ", temperature " << options.temperature << ", top_k "
                                  << options.top_k << ", top_p " << options.top_p << ", min_p " << options.min_p
                                  << ", penalty " << options.repetition_penalty);
  const std::vector<double> probabilities = Probabilities(logits, options, recent);
  Sampler sampler = Sampler::Create(options).value();
  for (int position = 0; position < draws; ++position) {
    const Result<int32_t> token = sampler.Sample(logits, recent, position);
    ASSERT_TRUE(token.ok()) << token.status().message();
    ASSERT_EQ(*token, DrawFrom(probabilities, options.seed, position)) << "position " << position;
  }
}

TEST(Sampling, GreedyTakesTheFirstLargest) {
  EXPECT_EQ(SampleOne({.temperature = 0}, {1, 3, -2, 3}), 1);
  EXPECT_EQ(SampleOne({.temperature = 0}, {-kInfinity, -7, -kInfinity}), 1);
  EXPECT_EQ(SampleOne({.temperature = 0}, {-1, -0.0f, 0.0f}), 1) << "-0 and 0 are equal";
  EXPECT_EQ(SampleOne({.temperature = 0, .top_k = 2, .top_p = 0.1}, {5}), 0);
  Rng rng(1);
  for (int trial = 0; trial < 100; ++trial) {
    const Logits logits = NormalLogits(rng, 1 + trial, 3);
    const int32_t best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    EXPECT_EQ(SampleOne({.temperature = 0}, logits), best);
    EXPECT_EQ(SampleOne({.top_k = 1}, logits), best);
  }
}

// Each filter alone, all of them, and temperatures, on logits that are all different and on logits with many ties.
TEST(Sampling, IsLikeTheReference) {
  const std::vector<SamplingOptions> cases = {
      {.seed = 1},
      {.temperature = 0.3, .seed = 2},
      {.temperature = 100, .seed = 3},
      {.temperature = 1e-9, .seed = 4},
      {.top_k = 1},
      {.top_k = 7},
      {.temperature = 2, .top_k = 50, .seed = 5},
      {.top_p = 0.9},
      {.temperature = 0.5, .top_p = 0.3},
      {.temperature = 3, .top_p = 0.999},
      {.top_p = 1e-12},
      {.top_p = 0},
      {.min_p = 0.05},
      {.temperature = 4, .min_p = 0.3},
      {.min_p = 1},
      {.repetition_penalty = 1.3},
      {.repetition_penalty = 0.5, .repetition_window = 3},
      {.temperature = 1.5, .top_k = 40, .top_p = 0.8},
      {.temperature = 1.5, .top_k = 40, .min_p = 0.2},
      {.temperature = 1.5, .top_p = 0.7, .min_p = 0.1},
      {.temperature = 0.9, .top_k = 30, .top_p = 0.95, .min_p = 0.02, .repetition_penalty = 1.2},
  };
  Rng rng(2);
  for (int trial = 0; trial < 20; ++trial) {
    Logits logits = NormalLogits(rng, 1 + static_cast<int64_t>(rng.Below(300)), trial % 3 == 0 ? 0.1 : 3);
    if (trial % 2 == 0) {
      for (float& x : logits) x = std::round(x * 2) / 2;
    }
    if (trial % 5 == 0) logits.push_back(-1e9f);
    Tokens recent(20);
    for (int32_t& token : recent) token = static_cast<int32_t>(rng.Below(logits.size()));
    for (const SamplingOptions& options : cases) ExpectLikeReference(options, logits, recent, 50);
  }
}

TEST(Sampling, IsLikeTheReferenceForALargeVocabulary) {
  Rng rng(3);
  for (const double deviation : {3.0, 0.01}) {
    Logits logits = NormalLogits(rng, 50257, deviation);
    logits[77] = logits[78] = -kInfinity;
    Tokens recent(1500);
    for (int32_t& token : recent) token = static_cast<int32_t>(rng.Below(logits.size()));
    ExpectLikeReference({}, logits, recent, 20);
    ExpectLikeReference({.top_k = 40}, logits, recent, 20);
    ExpectLikeReference({.top_k = 30000}, logits, recent, 20);
    ExpectLikeReference({.top_p = 0.95}, logits, recent, 20);
    ExpectLikeReference({.min_p = 0.1}, logits, recent, 20);
    ExpectLikeReference({.top_p = 0.9, .repetition_penalty = 1.5, .repetition_window = 1024}, logits, recent, 20);
  }
}

TEST(Sampling, KeepsTheLowestOfEqualTokens) {
  const Logits equal(8, 1.5f);
  using Set = std::set<int32_t>;
  EXPECT_EQ(Support({}, equal), (Set{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(Support({.top_k = 3}, equal), (Set{0, 1, 2}));
  EXPECT_EQ(Support({.top_k = 100}, equal).size(), 8u);
  EXPECT_EQ(Support({.top_p = 0.5}, equal), (Set{0, 1, 2, 3})) << "exactly half is enough";
  EXPECT_EQ(Support({.top_p = 0.51}, equal), (Set{0, 1, 2, 3, 4}));
  EXPECT_EQ(Support({.top_k = 4, .top_p = 0.5}, equal), (Set{0, 1})) << "half of what top-k left";
  EXPECT_EQ(Support({.top_p = 0}, equal), (Set{0}));
  EXPECT_EQ(Support({.min_p = 1}, equal).size(), 8u);
  EXPECT_EQ(Support({.top_k = 3}, {0, 1, 0, 2, 0, 0}), (Set{0, 1, 3}));
  EXPECT_EQ(Support({.min_p = 1}, {0, 2, 1, 2}), (Set{1, 3}));
}

TEST(Sampling, TemperatureGoesToItsLimits) {
  EXPECT_EQ(Support({.temperature = 1e-9}, {1, 1.00001f, 0}), (std::set<int32_t>{1}));
  for (const double tiny : {1e-9, 1e-300, std::numeric_limits<double>::denorm_min()}) {
    EXPECT_EQ(Support({.temperature = tiny}, {1, 2, 2, 0}), (std::set<int32_t>{1, 2}));
    EXPECT_EQ(Support({.temperature = tiny, .top_k = 3, .top_p = 0.4}, {1, 2, 2, 0}), (std::set<int32_t>{1}));
  }
  EXPECT_EQ(Support({.temperature = 100}, {0, 5, -5}).size(), 3u);
  EXPECT_EQ(Support({}, {3e38f, -3e38f, 3e38f}), (std::set<int32_t>{0, 2}));
}

// Min-p compares a weight with a number, and so shows how exact the weight is (promised: 1e-14).
TEST(Sampling, WeightsAreExact) {
  for (int i = 1; i < 100; ++i) {
    Logits logits(100, static_cast<float>(-0.057 * i));
    logits[0] = 0;
    const double weight = std::exp(double{logits[1]});
    EXPECT_GT(Support({.min_p = weight * (1 - 1e-14)}, logits, {}, 100).size(), 1u) << logits[1];
    EXPECT_EQ(Support({.min_p = weight * (1 + 1e-14)}, logits, {}, 100).size(), 1u) << logits[1];
  }
}

// A target that no sum reaches because of rounding keeps everything.
TEST(Sampling, TopPJustBelowOne) {
  Rng rng(4);
  for (int trial = 0; trial < 100; ++trial) {
    Logits logits = NormalLogits(rng, 100, 1);
    logits[5] = -kInfinity;
    ExpectLikeReference({.top_p = std::nextafter(1.0, 0.0)}, logits, {}, 20);
  }
}

TEST(Sampling, PenaltyCountsEachRecentTokenOnce) {
  // 4 / 1.5 is above 2 and 4 / 1.5^2 below: a second penalty would show.
  EXPECT_EQ(SampleOne({.temperature = 0, .repetition_penalty = 1.5}, {4, 2}, {0, 0, 0}), 0);
  EXPECT_EQ(SampleOne({.temperature = 0, .repetition_penalty = 2.5}, {4, 2}, {0, 0, 0}), 1);
  EXPECT_EQ(SampleOne({.temperature = 0, .repetition_penalty = 2.5}, {-1, -2}, {0}), 1) << "negative ones fall, too";
  EXPECT_EQ(SampleOne({.temperature = 0, .repetition_penalty = 2.5}, {4, 2}, {}), 0);
  const SamplingOptions short_window{.temperature = 0, .repetition_penalty = 2.5, .repetition_window = 2};
  EXPECT_EQ(SampleOne(short_window, {4, 2, 1}, {0, 2, 2}), 0) << "token 0 has left the window";
  EXPECT_EQ(SampleOne(short_window, {4, 2, 1}, {2, 0, 2}), 1);
  EXPECT_EQ(SampleOne({.temperature = 0, .repetition_penalty = 2.5, .repetition_window = 0}, {4, 2}, {0}), 0);
}

// The upper bound of a chi-square variable that is exceeded once in 10^6 (z = 4.75; Wilson and Hilferty's cube).
double ChiSquareBound(double degrees) {
  const double a = 2 / (9 * degrees);
  return degrees * std::pow(1 - a + 4.75 * std::sqrt(a), 3);
}

TEST(Sampling, DrawsWithTheProbabilitiesOfTheSoftmax) {
  Rng rng(5);
  const Logits logits = NormalLogits(rng, 40, 1);
  constexpr int kDraws = 100000;
  for (const SamplingOptions& options : {SamplingOptions{.seed = 1},
                                         {.temperature = 0.7, .seed = 2},
                                         {.top_k = 10, .seed = 3},
                                         {.temperature = 1.3, .top_p = 0.8, .min_p = 0.2, .seed = 4}}) {
    const std::vector<double> probabilities = Probabilities(logits, options, {});
    Sampler sampler = Sampler::Create(options).value();
    std::vector<int> counts(logits.size());
    for (int i = 0; i < kDraws; ++i) ++counts.at(sampler.Sample(logits, {}, i).value());
    double chi_square = 0;
    int cells = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      const double expected = probabilities[i] * kDraws;
      if (expected == 0) {
        EXPECT_EQ(counts[i], 0) << "token " << i;
        continue;
      }
      ASSERT_GT(expected, 10) << "too few for the approximation";
      chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
      ++cells;
    }
    ASSERT_GE(cells, 5);
    EXPECT_LT(chi_square, ChiSquareBound(cells - 1)) << "seed " << options.seed;
  }
}

TEST(Sampling, DependsOnNothingButItsArguments) {
  Rng rng(6);
  const Logits small = NormalLogits(rng, 50, 2), large = NormalLogits(rng, 3000, 2);
  const SamplingOptions options{.top_k = 500, .top_p = 0.95, .repetition_penalty = 1.1, .seed = 9};
  Sampler used = Sampler::Create(options).value();
  Tokens tokens;
  for (uint64_t position = 0; position < 100; ++position) {
    tokens.push_back(used.Sample(small, tokens, position).value());
    ASSERT_TRUE(used.Sample(large, {}, position).ok());
    ASSERT_FALSE(used.Sample({}, {}, position).ok());
  }
  for (size_t position = tokens.size(); position-- > 0;) {
    const Tokens before(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(position));
    EXPECT_EQ(SampleOne(options, small, before, position), tokens[position]);
  }
  EXPECT_GT(Support(options, small, {}, 100).size(), 3u) << "positions differ";
  int differences = 0;
  for (uint64_t position = 0; position < 100; ++position) {
    differences += SampleOne({.seed = 1}, large, {}, position) != SampleOne({.seed = 2}, large, {}, position);
  }
  EXPECT_GT(differences, 90) << "seeds differ";
}

TEST(Sampling, MinusInfinityIsNeverDrawn) {
  Logits logits(20, 0.0f);
  for (size_t i = 0; i < logits.size(); i += 2) logits[i] = -kInfinity;
  for (const SamplingOptions& options : {SamplingOptions{.temperature = 100}, {.top_k = 15}, {.top_p = 0.999}}) {
    const std::set<int32_t> support = Support(options, logits);
    EXPECT_EQ(support.size(), 10u);
    for (const int32_t token : support) EXPECT_EQ(token % 2, 1);
  }
}

TEST(Sampling, RefusesLogitsThatAreNotNumbers) {
  for (const double temperature : {0.0, 1.0}) {
    Sampler sampler = Sampler::Create({.temperature = temperature}).value();
    for (const float bad : {kNan, -kNan, kInfinity}) {
      for (const size_t at : {0, 1, 36}) {
        Logits logits(37, 1.0f);
        logits[at] = bad;
        const Status status = sampler.Sample(logits, {}, 0).status();
        EXPECT_EQ(status.code(), StatusCode::kDiverged);
        EXPECT_NE(status.message().find("token " + std::to_string(at) + " is"), std::string::npos) << status.message();
      }
    }
    EXPECT_EQ(sampler.Sample(Logits(5, -kInfinity), {}, 0).status().code(), StatusCode::kDiverged);
    EXPECT_EQ(sampler.Sample({}, {}, 0).status().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(sampler.Sample(Logits{1, 2}, {}, 0).ok()) << "still usable";
  }
}

TEST(Sampling, RefusesRecentTokensOutsideTheVocabulary) {
  Sampler sampler = Sampler::Create({.repetition_penalty = 1.1, .repetition_window = 2}).value();
  const Logits logits = {1, 2, 3};
  for (const int32_t bad : {-1, 3, std::numeric_limits<int32_t>::min()}) {
    const Status status = sampler.Sample(logits, Tokens{0, bad}, 0).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(std::to_string(bad)), std::string::npos) << status.message();
    EXPECT_TRUE(sampler.Sample(logits, Tokens{bad, 0, 1}, 0).ok()) << "outside the window";
  }
}

TEST(Sampling, AMovedFromSamplerSaysSo) {
  Sampler sampler = Sampler::Create({}).value();
  const Sampler other = std::move(sampler);
  // NOLINTNEXTLINE(bugprone-use-after-move): that is the test
  EXPECT_EQ(sampler.Sample(Logits{1, 2, 3}, {}, 0).status().code(), StatusCode::kInvalidArgument);
}

TEST(SamplingOptions, AreValidatedByName) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto expect_refused = [](const SamplingOptions& options, const std::string& name) {
    const Status status = Sampler::Create(options).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_TRUE(status.message().starts_with(name + " is ")) << status.message();
  };
  for (const double bad : {-0.1, 100.1, nan, double{kInfinity}}) expect_refused({.temperature = bad}, "temperature");
  for (const double bad : {-0.1, 1.1, nan}) expect_refused({.top_p = bad}, "top_p");
  for (const double bad : {-0.1, 1.1, nan}) expect_refused({.min_p = bad}, "min_p");
  for (const double bad : {0.0, -1.0, 101.0, nan}) expect_refused({.repetition_penalty = bad}, "repetition_penalty");
  for (const int64_t bad : {-1, 1025}) expect_refused({.repetition_window = bad}, "repetition_window");
  expect_refused({.top_k = -1}, "top_k");
  EXPECT_TRUE(ValidateSamplingOptions({}).ok());
  EXPECT_TRUE(ValidateSamplingOptions({.temperature = 100, .top_p = 0, .min_p = 1, .repetition_window = 1024}).ok());
}

}  // namespace
}  // namespace tensorcache
