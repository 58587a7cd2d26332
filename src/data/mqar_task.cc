#include "data/mqar_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include "core/rng.h"
#include "data/row_request.h"

namespace tensorcache::data {
namespace {

// Writes one row.
class RowWriter {
 public:
  RowWriter(const MqarConfig& config, std::span<const double> weights, Rng rng, std::span<int32_t> inputs,
            std::span<int32_t> targets)
      : config_(config), weights_(weights), rng_(rng), inputs_(inputs), targets_(targets) {}

  void Write() {
    const std::vector<int64_t> choices = config_.PairChoices();
    const int64_t pairs = choices[static_cast<size_t>(Draw(std::ssize(choices)))];
    const int64_t tasks = config_.TasksPerRow(pairs), length = config_.TaskLength(pairs);
    const int64_t first_value = config_.vocab / 2;
    const std::vector<int32_t> keys = Distinct(1, first_value, tasks * pairs),
                               values = Distinct(first_value, config_.vocab, tasks * pairs);
    if (config_.random_non_queries) {  // what is no filler is overwritten
      for (int32_t& token : inputs_) token = static_cast<int32_t>(Draw(config_.vocab));
    }
    for (int64_t task = 0; task < tasks; ++task) {
      const auto first = static_cast<size_t>(task * pairs), count = static_cast<size_t>(pairs);
      Task(task * length, length, std::span(keys).subspan(first, count), std::span(values).subspan(first, count));
    }
  }

 private:
  int64_t Draw(int64_t n) { return static_cast<int64_t>(rng_.Below(static_cast<uint64_t>(n))); }

  // `count` different tokens from [begin, end), in random order: the first steps of a shuffle.
  std::vector<int32_t> Distinct(int64_t begin, int64_t end, int64_t count) {
    std::vector<int32_t> tokens(static_cast<size_t>(end - begin));
    std::iota(tokens.begin(), tokens.end(), static_cast<int32_t>(begin));
    for (int64_t i = 0; i < count; ++i) {
      std::swap(tokens[static_cast<size_t>(i)], tokens[static_cast<size_t>(i + Draw(end - begin - i))]);
    }
    tokens.resize(static_cast<size_t>(count));
    return tokens;
  }

  void Task(int64_t begin, int64_t length, std::span<const int32_t> keys, std::span<const int32_t> values) {
    const auto P = std::ssize(keys);
    const std::vector<size_t> slots = Slots((length - 2 * P) / 2, P);
    for (size_t i = 0; i < keys.size(); ++i) {
      const size_t pair = static_cast<size_t>(begin) + 2 * i;
      inputs_[pair] = keys[i];
      inputs_[pair + 1] = values[i];
      const size_t query = static_cast<size_t>(begin + 2 * P) + 2 * slots[i];
      inputs_[query] = keys[i];
      targets_[query] = values[i];
    }
  }

  // `count` of n slots, drawn one after the other without replacement: give each a clock that rings at an exponential
  // time with its weight as rate, and take them in the order in which they ring.
  std::vector<size_t> Slots(int64_t n, int64_t count) {
    std::vector<std::pair<double, size_t>> rings(static_cast<size_t>(n));
    for (size_t s = 0; s < rings.size(); ++s) {
      rings[s] = {-std::log1p(-rng_.UniformDouble()) / weights_[s], s};
    }
    std::partial_sort(rings.begin(), rings.begin() + count, rings.end());
    std::vector<size_t> slots;
    for (int64_t i = 0; i < count; ++i) slots.push_back(rings[static_cast<size_t>(i)].second);
    return slots;
  }

  const MqarConfig& config_;
  std::span<const double> weights_;  // of slots
  Rng rng_;
  std::span<int32_t> inputs_, targets_;  // (T)
};

class MqarSource : public BatchSource {
 public:
  MqarSource(const MqarConfig& config, uint64_t seed) : config_(config), seed_(seed) {
    for (int64_t s = 1; s <= config_.length / 2; ++s) {
      weights_.push_back(std::pow(static_cast<double>(s), config_.power_a - 1));
    }
  }

  int64_t vocab_size() const override { return config_.vocab; }
  int64_t length() const override { return config_.length; }

  Status Fill(Split split, int64_t step, int64_t first_row, int64_t rows, Batch* batch) const override {
    TC_RETURN_IF_ERROR(PrepareBatch(step, first_row, rows, length(), batch));
    const auto T = static_cast<size_t>(length());
    for (int64_t r = 0; r < rows; ++r) {
      const size_t begin = static_cast<size_t>(r) * T;
      RowWriter(config_, weights_, Rng(seed_, DataStream(StreamPurpose::kRow, split, step, first_row + r)),
                std::span(batch->inputs).subspan(begin, T), std::span(batch->targets).subspan(begin, T))
          .Write();
    }
    return OkStatus();
  }

 private:
  MqarConfig config_;
  uint64_t seed_;
  std::vector<double> weights_;  // of slots 1, 2, ..
};

Status CheckRange(std::string_view name, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return OkStatus();
  return InvalidArgument(fmt::format("data.mqar.{} is {}; it must be {} to {}", name, value, min, max));
}

}  // namespace

std::vector<int64_t> MqarConfig::PairChoices() const {
  if (min_pairs == 0) return {pairs};
  std::vector<int64_t> choices;
  for (int64_t choice = min_pairs; choice <= pairs; choice *= 2) choices.push_back(choice);
  return choices;
}

int64_t MqarConfig::TaskLength(int64_t task_pairs) const {
  return min_pairs == 0 ? length : std::min(length, task_tokens * task_pairs);
}

double MqarConfig::AnswersPerRow() const {
  const std::vector<int64_t> choices = PairChoices();
  int64_t sum = 0;
  for (const int64_t choice : choices) sum += choice * TasksPerRow(choice);
  return static_cast<double>(sum) / static_cast<double>(choices.size());
}

Status ValidateMqarConfig(const MqarConfig& config) {
  constexpr int64_t kMaxLength = int64_t{1} << 24;
  constexpr int64_t kMaxVocab = int64_t{1} << 20;
  TC_RETURN_IF_ERROR(CheckRange("length", config.length, 4, kMaxLength));
  // A query and a filler for each pair, behind all of them.
  TC_RETURN_IF_ERROR(CheckRange("pairs", config.pairs, 1, config.length / 4));
  TC_RETURN_IF_ERROR(CheckRange("min_pairs", config.min_pairs, 0, config.pairs));
  TC_RETURN_IF_ERROR(CheckRange("task_tokens", config.task_tokens, 4, kMaxLength));
  TC_RETURN_IF_ERROR(CheckRange("vocab", config.vocab, 4, kMaxVocab));
  int64_t keys = 0;
  for (const int64_t choice : config.PairChoices()) keys = std::max(keys, choice * config.TasksPerRow(choice));
  if (keys > config.vocab / 2 - 1) {
    return InvalidArgument(fmt::format("data.mqar.vocab is {}, with {} keys; a sequence has up to {}. Use at least {}",
                                       config.vocab, config.vocab / 2 - 1, keys, 2 * keys + 2));
  }
  if (config.power_a >= 0 && config.power_a <= 10) return OkStatus();
  return InvalidArgument(fmt::format("data.mqar.power_a is {}; it must be 0 to 10", config.power_a));
}

Result<std::unique_ptr<BatchSource>> MakeMqarSource(const MqarConfig& config, uint64_t seed) {
  TC_RETURN_IF_ERROR(ValidateMqarConfig(config));
  return std::unique_ptr<BatchSource>(std::make_unique<MqarSource>(config, seed));
}

}  // namespace tensorcache::data
