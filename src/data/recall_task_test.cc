#include "data/recall_task.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/config.h"

namespace tensorcache::data {
namespace {

std::unique_ptr<BatchSource> Source(const RecallConfig& config, uint64_t seed = 1) {
  auto source = MakeRecallSource(config, seed);
  EXPECT_TRUE(source.ok()) << source.status().message();
  return std::move(source).value();
}

Batch Fill(const BatchSource& source, Split split, int64_t step, int64_t first_row, int64_t rows) {
  Batch batch;
  const Status status = source.Fill(split, step, first_row, rows, &batch);
  EXPECT_TRUE(status.ok()) << status.message();
  return batch;
}

struct Episode {
  std::vector<int32_t> keys, values;  // stored
  int32_t queried = 0;                // which of them
};

bool IsIn(int32_t token, int64_t first, int64_t count) { return token >= first && token < first + count; }

// Reads a row as the format promises it, checking every token and target.
std::vector<Episode> ParseRow(const RecallConfig& config, const Batch& batch, int64_t row) {
  const int32_t* input = batch.inputs.data() + row * batch.length;
  const int32_t* target = batch.targets.data() + row * batch.length;
  int64_t at = 0;
  const auto fillers = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i, ++at) {
      EXPECT_TRUE(IsIn(input[at], config.FirstFiller(), config.fillers)) << at;
      EXPECT_EQ(target[at], -1);
    }
  };
  std::vector<Episode> episodes;
  fillers(config.lead);
  for (int64_t e = 0; e < config.episodes; ++e) {
    Episode episode;
    for (int64_t s = 0; s < config.stores; ++s, at += 3) {
      EXPECT_EQ(input[at], kStoreToken);
      EXPECT_TRUE(IsIn(input[at + 1], config.FirstKey(), config.keys));
      EXPECT_TRUE(IsIn(input[at + 2], config.FirstValue(), config.values));
      for (int i = 0; i < 3; ++i) EXPECT_EQ(target[at + i], -1);
      episode.keys.push_back(input[at + 1]);
      episode.values.push_back(input[at + 2]);
    }
    EXPECT_EQ(std::set<int32_t>(episode.keys.begin(), episode.keys.end()).size(), episode.keys.size());
    EXPECT_EQ(input[at], kGapToken);
    EXPECT_EQ(target[at++], -1);
    fillers(config.gap);
    EXPECT_EQ(input[at], kQueryToken);
    EXPECT_EQ(input[at + 2], kAnswerToken);
    const auto found = std::ranges::find(episode.keys, input[at + 1]);
    if (found == episode.keys.end()) {
      ADD_FAILURE() << "a key that was not stored is queried";
      return episodes;
    }
    episode.queried = static_cast<int32_t>(found - episode.keys.begin());
    const int32_t answer = episode.values[static_cast<size_t>(episode.queried)];
    EXPECT_EQ(input[at + 3], answer);
    EXPECT_EQ(target[at], -1);
    EXPECT_EQ(target[at + 1], -1);
    EXPECT_EQ(target[at + 2], answer);
    EXPECT_EQ(target[at + 3], -1);
    at += 4;
    episodes.push_back(episode);
  }
  fillers(config.tail);
  EXPECT_EQ(at, batch.length);
  return episodes;
}

TEST(RecallTask, LengthsGiveThePapersFullKvStates) {
  // 2 kB per token: 4 layers of width 128, keys and values in two bytes.
  const auto kilobytes = [](const RecallConfig& config) { return 2 * config.Length(); };
  EXPECT_EQ(kilobytes({.gap = 24}), 398);
  EXPECT_EQ(kilobytes({.gap = 36}), 542);
  EXPECT_EQ(kilobytes({.gap = 48}), 686);
  EXPECT_EQ(kilobytes({.gap = 12}), 254);
  EXPECT_EQ(kilobytes({.gap = 192}), 2414);
  EXPECT_EQ(kilobytes({.gap = 128, .episodes = 1}), 286);
  EXPECT_EQ(kilobytes({.gap = 256, .episodes = 1}), 542);
  EXPECT_EQ(kilobytes({.gap = 512, .episodes = 1}), 1054);
  EXPECT_EQ(kilobytes({.gap = 1024, .episodes = 1}), 2078);
  EXPECT_EQ(kilobytes({.gap = 24, .stores = 2}), 434);
  EXPECT_EQ(kilobytes({.gap = 24, .lead = 7, .tail = 0}), 398);
  EXPECT_EQ(RecallConfig{}.VocabSize(), 52);
}

TEST(RecallTask, EveryRowHasTheLayout) {
  const std::vector<RecallConfig> configs = {
      {},
      {.gap = 0, .episodes = 1, .lead = 0, .tail = 0},
      {.gap = 100, .episodes = 2},
      {.gap = 24, .stores = 2},
      {.gap = 5, .episodes = 3, .stores = 7, .keys = 7, .values = 3, .fillers = 2, .lead = 4, .tail = 1},
      {.keys = 1, .values = 1, .fillers = 1}};
  for (const RecallConfig& config : configs) {
    const auto source = Source(config);
    EXPECT_EQ(source->length(), config.Length());
    EXPECT_EQ(source->vocab_size(), config.VocabSize());
    for (const Split split : {Split::kTrain, Split::kValid}) {
      const Batch batch = Fill(*source, split, 3, 0, 16);
      ASSERT_EQ(batch.rows, 16);
      ASSERT_EQ(batch.length, config.Length());
      ASSERT_EQ(std::ssize(batch.inputs), 16 * config.Length());
      ASSERT_EQ(std::ssize(batch.targets), 16 * config.Length());
      EXPECT_EQ(batch.fresh, std::vector<uint8_t>(16, 1));
      for (int64_t r = 0; r < 16; ++r) EXPECT_EQ(std::ssize(ParseRow(config, batch, r)), config.episodes);
    }
  }
}

// Pearson's statistic of `counts` against equal ones, in standard deviations from its mean of n - 1.
double ChiSquareDeviations(const std::vector<int64_t>& counts) {
  double total = 0;
  for (const int64_t count : counts) total += static_cast<double>(count);
  const double expected = total / static_cast<double>(counts.size());
  double statistic = 0;
  for (const int64_t count : counts) {
    statistic += (static_cast<double>(count) - expected) * (static_cast<double>(count) - expected) / expected;
  }
  const double freedom = static_cast<double>(counts.size()) - 1;
  return (statistic - freedom) / std::sqrt(2 * freedom);
}

TEST(RecallTask, ChoicesAreUniformAndIndependent) {
  const RecallConfig config{.gap = 4, .stores = 3, .keys = 6, .values = 5, .fillers = 7, .lead = 2};
  const auto source = Source(config, 12);
  std::vector<int64_t> key_triples(6 * 6 * 6), values(5), key_value(6 * 5), queried(3), fillers(7), answers(5 * 5);
  size_t last_answer = 0;
  for (int64_t step = 0; step < 200; ++step) {
    const Batch batch = Fill(*source, Split::kTrain, step, 0, 32);
    for (int64_t r = 0; r < batch.rows; ++r) {
      for (const Episode& episode : ParseRow(config, batch, r)) {
        const auto key = [&](size_t s) { return static_cast<size_t>(episode.keys[s] - config.FirstKey()); };
        const auto value = [&](size_t s) { return static_cast<size_t>(episode.values[s] - config.FirstValue()); };
        ++key_triples[(key(0) * 6 + key(1)) * 6 + key(2)];
        for (size_t s = 0; s < 3; ++s) {
          ++values[value(s)];
          ++key_value[key(s) * 5 + value(s)];
        }
        ++queried[static_cast<size_t>(episode.queried)];
        const size_t answer = value(static_cast<size_t>(episode.queried));
        ++answers[last_answer * 5 + answer];
        last_answer = answer;
      }
      for (int64_t t = 0; t < batch.length; ++t) {
        const int64_t token = batch.inputs[static_cast<size_t>(r * batch.length + t)];
        if (token >= config.FirstFiller()) ++fillers[static_cast<size_t>(token - config.FirstFiller())];
      }
    }
  }
  // Triples with a repeated key never occur; the other 120 are equally likely.
  std::erase(key_triples, 0);
  EXPECT_EQ(key_triples.size(), 120u);
  for (const auto& counts : {key_triples, values, key_value, queried, fillers, answers}) {
    EXPECT_LT(std::abs(ChiSquareDeviations(counts)), 5.0);
  }
}

TEST(RecallTask, RowsDependOnNothingButSeedSplitStepAndRow) {
  const auto source = Source({}, 5), same = Source({}, 5);
  const Batch whole = Fill(*source, Split::kTrain, 17, 0, 12);
  const int64_t T = whole.length;
  // Any order, any cut, another object.
  Fill(*same, Split::kValid, 3, 1, 2);
  for (const auto& [first, rows] : std::vector<std::pair<int64_t, int64_t>>{{11, 1}, {0, 5}, {5, 6}, {4, 0}}) {
    const Batch part = Fill(*same, Split::kTrain, 17, first, rows);
    EXPECT_TRUE(std::equal(part.inputs.begin(), part.inputs.end(), whole.inputs.begin() + first * T));
    EXPECT_TRUE(std::equal(part.targets.begin(), part.targets.end(), whole.targets.begin() + first * T));
  }
}

TEST(RecallTask, SeedsSplitsStepsAndRowsDiffer) {
  std::set<std::vector<int32_t>> seen;
  for (const uint64_t seed : {1, 2}) {
    const auto source = Source({}, seed);
    for (const Split split : {Split::kTrain, Split::kValid}) {
      for (const int64_t step : {0, 1, 2, 1 << 20}) {
        for (const int64_t row : {0, 1, 2, 1 << 20}) seen.insert(Fill(*source, split, step, row, 1).inputs);
      }
    }
  }
  EXPECT_EQ(seen.size(), 2u * 2 * 4 * 4);
}

// A resumed run has to see the rows it would have seen, so the rows of a seed never change.
TEST(RecallTask, KnownRow) {
  const RecallConfig config{.gap = 2, .episodes = 1, .stores = 2, .lead = 0, .tail = 1};
  const Batch batch = Fill(*Source(config, 42), Split::kTrain, 3, 4, 1);
  EXPECT_EQ(batch.inputs, (std::vector<int32_t>{0, 10, 30, 0, 4, 25, 1, 40, 46, 2, 4, 3, 25, 46}));
}

TEST(RecallTask, RefusesConfigsThatCannotWork) {
  const auto error = [](const RecallConfig& config) {
    const auto source = MakeRecallSource(config, 0);
    return source.ok() ? "ok" : source.status().message();
  };
  EXPECT_EQ(error({.gap = -1}), "data.recall.gap is -1; it must be 0 to 16777216");
  EXPECT_EQ(error({.stores = 17}), "data.recall.stores is 17, of 16 keys; it must be 1 to keys");
  EXPECT_EQ(error({.stores = 0}), "data.recall.stores is 0, of 16 keys; it must be 1 to keys");
  EXPECT_NE(error({.episodes = 0}), "ok");
  EXPECT_NE(error({.values = 0}), "ok");
  EXPECT_NE(error({.fillers = 0}), "ok");
  EXPECT_NE(error({.tail = -7}), "ok");
  EXPECT_NE(error({.gap = 1 << 24, .episodes = 1 << 24}), "ok");
  EXPECT_NE(error({.keys = INT64_MAX}), "ok");
}

TEST(RecallTask, RefusesRequestsOutOfRange) {
  const auto source = Source({});
  Batch batch;
  EXPECT_FALSE(source->Fill(Split::kTrain, -1, 0, 1, &batch).ok());
  EXPECT_FALSE(source->Fill(Split::kTrain, 0, -1, 1, &batch).ok());
  EXPECT_FALSE(source->Fill(Split::kTrain, 0, 0, -1, &batch).ok());
  EXPECT_FALSE(source->Fill(Split::kTrain, 0, INT64_MAX, INT64_MAX, &batch).ok());
  EXPECT_FALSE(source->Fill(Split::kTrain, INT64_MAX, 0, 1, &batch).ok());
  EXPECT_TRUE(source->Fill(Split::kTrain, 0, 0, 0, &batch).ok());
  EXPECT_EQ(batch.rows, 0);
}

TEST(RecallTask, ConfigReadsAndWritesJson) {
  RecallConfig config;
  ASSERT_TRUE(ApplyOverride("gap=36", &config).ok());
  EXPECT_EQ(config.gap, 36);
  EXPECT_EQ(ToJson(config)["lead"], 7);
  EXPECT_FALSE(ApplyOverride("gaps=36", &config).ok());
}

TEST(RecallTaskTest, MixedGapsFillTheSequenceAndCoverTheirRange) {
  const RecallConfig config{.gap = 64, .min_gap = 4, .episodes = 2, .stores = 2, .keys = 5, .lead = 3, .tail = 2};
  const auto source = Source(config);
  const Batch batch = Fill(*source, Split::kTrain, 0, 0, 200);
  ASSERT_EQ(batch.length, 3 + 2 * (64 + 11) + 2);
  std::map<int64_t, int> gaps;
  for (int64_t row = 0; row < batch.rows; ++row) {
    const int32_t* input = batch.inputs.data() + row * batch.length;
    const int32_t* target = batch.targets.data() + row * batch.length;
    int64_t answers = 0;
    for (int64_t at = 0; at < batch.length; ++at) {
      EXPECT_EQ(target[at] >= 0, input[at] == kAnswerToken) << at;
      if (input[at] != kAnswerToken) continue;
      ++answers;
      int64_t gap = at - 2;  // QUERY k ANSWER
      while (input[gap - 1] != kGapToken) --gap;
      ++gaps[at - 2 - gap];
      // The pairs before GAP: the queried key's value is the answer.
      const int32_t* store = input + gap - 1 - 6;
      ASSERT_EQ(store[0], kStoreToken);
      ASSERT_EQ(store[3], kStoreToken);
      EXPECT_EQ(target[at], store[1] == input[at - 1] ? store[2] : store[5]) << at;
      EXPECT_EQ(input[at + 1], target[at]);
    }
    EXPECT_GE(answers, 2);
  }
  EXPECT_EQ(gaps.begin()->first, 4);
  EXPECT_EQ(gaps.rbegin()->first, 64);
  EXPECT_GT(gaps[4] + gaps[5], gaps[40] + gaps[41]);  // uniform in the logarithm
  EXPECT_FALSE(MakeRecallSource({.gap = 4, .min_gap = 5}, 1).ok());
}

}  // namespace
}  // namespace tensorcache::data
