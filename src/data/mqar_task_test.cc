#include "data/mqar_task.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/config.h"

namespace tensorcache::data {
namespace {

std::unique_ptr<BatchSource> Source(const MqarConfig& config, uint64_t seed = 1) {
  auto source = MakeMqarSource(config, seed);
  EXPECT_TRUE(source.ok()) << source.status().message();
  return std::move(source).value();
}

Batch Fill(const BatchSource& source, Split split, int64_t step, int64_t first_row, int64_t rows) {
  Batch batch;
  const Status status = source.Fill(split, step, first_row, rows, &batch);
  EXPECT_TRUE(status.ok()) << status.message();
  return batch;
}

struct Pair {
  int32_t key = 0, value = 0;
  int64_t slot = 0;  // it is asked in, from 0
};

// Reads a task of `pairs` pairs and `length` tokens as the definition promises it, checking every token and target.
std::vector<Pair> ParseTask(const MqarConfig& config, const int32_t* input, const int32_t* target, int64_t length,
                            int64_t pairs) {
  std::vector<Pair> found;
  std::map<int32_t, size_t> by_key;
  std::set<int32_t> values;
  for (int64_t i = 0; i < pairs; ++i) {
    const int32_t key = input[2 * i], value = input[2 * i + 1];
    EXPECT_TRUE(key >= 1 && key < config.vocab / 2) << key;
    EXPECT_TRUE(value >= config.vocab / 2 && value < config.vocab) << value;
    EXPECT_TRUE(by_key.emplace(key, found.size()).second) << "key " << key << " is there twice";
    EXPECT_TRUE(values.insert(value).second) << "value " << value << " is there twice";
    EXPECT_EQ(target[2 * i], -1);
    EXPECT_EQ(target[2 * i + 1], -1);
    found.push_back({.key = key, .value = value, .slot = -1});
  }
  for (int64_t at = 2 * pairs; at < length; ++at) {
    EXPECT_TRUE(input[at] >= 0 && input[at] < config.vocab);
    if (target[at] < 0) {
      EXPECT_EQ(target[at], -1);
      EXPECT_TRUE(config.random_non_queries || input[at] == 0) << at;
      continue;
    }
    EXPECT_EQ((at - 2 * pairs) % 2, 0) << at;
    const auto pair = by_key.find(input[at]);
    if (pair == by_key.end()) {
      ADD_FAILURE() << "a key that was not stored is asked for at " << at;
      continue;
    }
    EXPECT_EQ(found[pair->second].slot, -1) << "key " << input[at] << " is asked for twice";
    EXPECT_EQ(target[at], found[pair->second].value);
    found[pair->second].slot = (at - 2 * pairs) / 2;
  }
  for (const Pair& pair : found) EXPECT_GE(pair.slot, 0) << "key " << pair.key << " is not asked for";
  return found;
}

// Of a row that is one task.
std::vector<Pair> ParseRow(const MqarConfig& config, const Batch& batch, int64_t row) {
  const int64_t at = row * batch.length;
  return ParseTask(config, batch.inputs.data() + at, batch.targets.data() + at, batch.length, config.pairs);
}

TEST(MqarTask, EveryRowIsATask) {
  const std::vector<MqarConfig> configs = {{},
                                           {.length = 64, .pairs = 4},
                                           {.length = 1024, .pairs = 256},
                                           {.length = 4096, .pairs = 256, .random_non_queries = false},
                                           {.vocab = 12, .length = 16, .pairs = 2, .random_non_queries = false},
                                           {.vocab = 34, .length = 64, .pairs = 16},  // all keys, all slots
                                           {.vocab = 35, .length = 67, .pairs = 16, .power_a = 1},
                                           {.vocab = 4, .length = 4, .pairs = 1},
                                           {.vocab = 5, .length = 7, .pairs = 1, .power_a = 0}};
  for (const MqarConfig& config : configs) {
    const auto source = Source(config, 99);
    EXPECT_EQ(source->length(), config.length);
    EXPECT_EQ(source->vocab_size(), config.vocab);
    for (const Split split : {Split::kTrain, Split::kValid}) {
      const Batch batch = Fill(*source, split, 7, 3, 8);
      ASSERT_EQ(batch.rows, 8);
      ASSERT_EQ(batch.length, config.length);
      ASSERT_EQ(std::ssize(batch.inputs), 8 * config.length);
      ASSERT_EQ(std::ssize(batch.targets), 8 * config.length);
      EXPECT_EQ(batch.fresh, std::vector<uint8_t>(8, 1));
      for (int64_t r = 0; r < 8; ++r) EXPECT_EQ(std::ssize(ParseRow(config, batch, r)), config.pairs);
    }
  }
}

// Pearson's statistic against these probabilities, in standard deviations from its mean.
double ChiSquareDeviations(const std::vector<int64_t>& counts, const std::vector<double>& probabilities) {
  double total = 0, statistic = 0;
  for (const int64_t count : counts) total += static_cast<double>(count);
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = total * probabilities[i], off = static_cast<double>(counts[i]) - expected;
    statistic += off * off / expected;
  }
  const double freedom = static_cast<double>(counts.size()) - 1;
  return (statistic - freedom) / std::sqrt(2 * freedom);
}

std::vector<double> Equal(size_t n) { return std::vector<double>(n, 1.0 / static_cast<double>(n)); }

TEST(MqarTask, KeysValuesAndFillersAreUniform) {
  const MqarConfig config{.vocab = 20, .length = 24, .pairs = 3};
  const auto source = Source(config, 12);
  std::vector<int64_t> keys(9 * 9 * 9), values(10), key_value(9 * 10), fillers(20);
  for (int64_t step = 0; step < 300; ++step) {
    const Batch batch = Fill(*source, Split::kTrain, step, 0, 32);
    for (int64_t r = 0; r < batch.rows; ++r) {
      const std::vector<Pair> pairs = ParseRow(config, batch, r);
      const auto key = [&](size_t i) { return static_cast<size_t>(pairs[i].key - 1); };
      ++keys[(key(0) * 9 + key(1)) * 9 + key(2)];
      for (size_t i = 0; i < 3; ++i) {
        const auto value = static_cast<size_t>(pairs[i].value - 10);
        ++values[value];
        ++key_value[key(i) * 10 + value];
      }
      for (int64_t t = 6; t < batch.length; ++t) {
        const auto at = static_cast<size_t>(r * batch.length + t);
        if (batch.targets[at] < 0) ++fillers[static_cast<size_t>(batch.inputs[at])];
      }
    }
  }
  std::erase(keys, 0);  // triples with a key twice never occur
  EXPECT_EQ(keys.size(), 9u * 8 * 7);
  for (const auto& counts : {keys, values, key_value, fillers}) {
    EXPECT_LT(std::abs(ChiSquareDeviations(counts, Equal(counts.size()))), 5.0);
  }
}

// The first pair's slot has the probabilities of a single draw, the second's those of a draw without it.
TEST(MqarTask, SlotsFollowThePowerLawWithoutReplacement) {
  for (const double power_a : {0.01, 1.0}) {
    const MqarConfig config{.vocab = 64, .length = 4 + 2 * 7, .pairs = 2, .power_a = power_a};
    const auto source = Source(config, 5);
    std::vector<int64_t> counts(7 * 7);
    for (int64_t step = 0; step < 400; ++step) {
      const Batch batch = Fill(*source, Split::kTrain, step, 0, 64);
      for (int64_t r = 0; r < batch.rows; ++r) {
        const std::vector<Pair> pairs = ParseRow(config, batch, r);
        ++counts[static_cast<size_t>(pairs[0].slot * 7 + pairs[1].slot)];
      }
    }
    std::array<double, 7> weights{};
    double all = 0;
    for (size_t s = 0; s < 7; ++s) all += weights[s] = std::pow(static_cast<double>(s + 1), power_a - 1);
    std::vector<int64_t> seen;
    std::vector<double> expected;
    for (size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(counts[i * 7 + i], 0);
      for (size_t j = 0; j < 7; ++j) {
        if (i == j) continue;
        seen.push_back(counts[i * 7 + j]);
        expected.push_back(weights[i] / all * weights[j] / (all - weights[i]));
      }
    }
    EXPECT_LT(std::abs(ChiSquareDeviations(seen, expected)), 5.0) << power_a;
  }
}

TEST(MqarTask, AMixtureHasZoologysTasks) {
  const MqarConfig config{.min_pairs = 4};
  EXPECT_EQ(config.PairChoices(), (std::vector<int64_t>{4, 8, 16, 32, 64}));
  std::vector<std::pair<int64_t, int64_t>> tasks;
  for (const int64_t pairs : config.PairChoices()) tasks.emplace_back(config.TaskLength(pairs), pairs);
  EXPECT_EQ(tasks, (std::vector<std::pair<int64_t, int64_t>>{{64, 4}, {128, 8}, {256, 16}, {256, 32}, {256, 64}}));
  EXPECT_DOUBLE_EQ(config.AnswersPerRow(), (4 * 4 + 2 * 8 + 16 + 32 + 64) / 5.0);
}

// Whether a row may be tasks of `pairs` pairs: every answer is that of a pair at the front of its task, and there is
// one for each.
bool AnswersFit(const MqarConfig& config, const int32_t* input, const int32_t* target, int64_t pairs) {
  const int64_t length = config.TaskLength(pairs);
  for (int64_t task = 0; task < config.TasksPerRow(pairs); ++task, input += length, target += length) {
    std::set<std::pair<int32_t, int32_t>> stored, asked;
    for (int64_t i = 0; i < pairs; ++i) stored.emplace(input[2 * i], input[2 * i + 1]);
    for (int64_t at = 0; at < length; ++at) {
      if (target[at] >= 0) asked.emplace(input[at], target[at]);
    }
    if (stored != asked) return false;
  }
  return true;
}

TEST(MqarTask, RowsOfAMixtureAreTasksBehindEachOther) {
  const std::vector<MqarConfig> configs = {
      {.min_pairs = 4},
      {.vocab = 256, .length = 100, .pairs = 20, .min_pairs = 3, .task_tokens = 7, .random_non_queries = false},
      {.vocab = 64, .length = 32, .pairs = 8, .min_pairs = 8, .task_tokens = 4}};
  for (const MqarConfig& config : configs) {
    const auto source = Source(config, 3);
    std::map<int64_t, int64_t> rows_with;  // so many pairs
    double answers = 0;
    constexpr int64_t kRows = 400;
    const Batch batch = Fill(*source, Split::kTrain, 0, 0, kRows);
    for (int64_t row = 0; row < kRows; ++row) {
      const int32_t* input = batch.inputs.data() + row * batch.length;
      const int32_t* target = batch.targets.data() + row * batch.length;
      const int64_t all = std::count_if(target, target + batch.length, [](int32_t t) { return t >= 0; });
      answers += static_cast<double>(all);
      const std::vector<int64_t> choices = config.PairChoices();
      const auto pairs =
          std::ranges::find_if(choices, [&](int64_t choice) { return AnswersFit(config, input, target, choice); });
      ASSERT_NE(pairs, choices.end());
      ++rows_with[*pairs];
      const int64_t length = config.TaskLength(*pairs), tasks = config.TasksPerRow(*pairs);
      std::set<int32_t> keys;
      for (int64_t task = 0; task < tasks; ++task) {
        for (const Pair& pair : ParseTask(config, input + task * length, target + task * length, length, *pairs)) {
          EXPECT_TRUE(keys.insert(pair.key).second) << "key " << pair.key << " has two values";
        }
      }
      for (int64_t at = tasks * length; at < batch.length; ++at) EXPECT_EQ(target[at], -1);
    }
    const auto choices = std::ssize(config.PairChoices());
    ASSERT_EQ(std::ssize(rows_with), choices);
    std::vector<int64_t> counts;
    for (const auto& [pairs, rows] : rows_with) counts.push_back(rows);
    if (choices > 1) {
      EXPECT_LT(std::abs(ChiSquareDeviations(counts, Equal(counts.size()))), 5.0);
    }
    // Five deviations of a mean of rows that have up to length / 4 answers.
    EXPECT_NEAR(answers / kRows, config.AnswersPerRow(), 5 * static_cast<double>(config.length) / 8 / std::sqrt(kRows));
  }
}

TEST(MqarTask, RowsDependOnNothingButSeedSplitStepAndRow) {
  const MqarConfig config{.min_pairs = 4};
  const auto source = Source(config, 5), same = Source(config, 5);
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

TEST(MqarTask, SeedsSplitsStepsAndRowsDiffer) {
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
TEST(MqarTask, KnownRow) {
  const Batch batch = Fill(*Source({.vocab = 20, .length = 14, .pairs = 2}, 42), Split::kTrain, 3, 4, 1);
  EXPECT_EQ(batch.inputs, (std::vector<int32_t>{6, 11, 9, 13, 6, 7, 12, 0, 9, 1, 6, 9, 6, 15}));
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{-1, -1, -1, -1, -1, -1, -1, -1, 13, -1, 11, -1, -1, -1}));
}

TEST(MqarTask, RefusesConfigsThatCannotWork) {
  const auto error = [](const MqarConfig& config) {
    const auto source = MakeMqarSource(config, 0);
    return source.ok() ? "ok" : source.status().message();
  };
  EXPECT_EQ(error({.pairs = 65}), "data.mqar.pairs is 65; it must be 1 to 64");
  EXPECT_EQ(error({.pairs = 0}), "data.mqar.pairs is 0; it must be 1 to 64");
  EXPECT_EQ(error({.length = 3, .pairs = 1}), "data.mqar.length is 3; it must be 4 to 16777216");
  EXPECT_EQ(error({.min_pairs = 65}), "data.mqar.min_pairs is 65; it must be 0 to 64");
  EXPECT_EQ(error({.min_pairs = -1}), "data.mqar.min_pairs is -1; it must be 0 to 64");
  EXPECT_EQ(error({.task_tokens = 3}), "data.mqar.task_tokens is 3; it must be 4 to 16777216");
  EXPECT_EQ(error({.vocab = 3}), "data.mqar.vocab is 3; it must be 4 to 1048576");
  EXPECT_EQ(error({.vocab = 129}), "data.mqar.vocab is 129, with 63 keys; a sequence has up to 64. Use at least 130");
  EXPECT_EQ(error({.vocab = 130}), "ok");
  EXPECT_EQ(error({.power_a = -0.5}), "data.mqar.power_a is -0.5; it must be 0 to 10");
  EXPECT_NE(error({.power_a = NAN}), "ok");
  EXPECT_NE(error({.vocab = INT64_MAX}), "ok");
  EXPECT_NE(error({.length = INT64_MAX}), "ok");
  EXPECT_NE(error({.task_tokens = INT64_MAX}), "ok");
}

TEST(MqarTask, RefusesRequestsOutOfRange) {
  const auto source = Source({});
  Batch batch;
  EXPECT_FALSE(source->Fill(Split::kTrain, -1, 0, 1, &batch).ok());
  EXPECT_FALSE(source->Fill(Split::kTrain, 0, -1, 1, &batch).ok());
  EXPECT_FALSE(source->Fill(Split::kTrain, 0, 0, -1, &batch).ok());
  EXPECT_TRUE(source->Fill(Split::kTrain, 0, 0, 0, &batch).ok());
  EXPECT_EQ(batch.rows, 0);
}

TEST(MqarTask, ConfigReadsAndWritesJson) {
  MqarConfig config;
  ASSERT_TRUE(ApplyOverride("min_pairs=4", &config).ok());
  EXPECT_EQ(config.min_pairs, 4);
  EXPECT_EQ(ToJson(config)["vocab"], 8192);
  EXPECT_FALSE(ApplyOverride("pair=36", &config).ok());
}

}  // namespace
}  // namespace tensorcache::data
