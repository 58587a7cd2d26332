#include "data/recall_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "core/rng.h"
#include "data/row_request.h"

namespace tensorcache::data {
namespace {

// Writes one sequence from front to back.
class SequenceWriter {
 public:
  SequenceWriter(const RecallConfig& config, Rng rng, std::span<int32_t> inputs, std::span<int32_t> targets)
      : config_(config), rng_(rng), inputs_(inputs), targets_(targets) {}

  void Write() {
    Fillers(config_.lead);
    if (config_.min_gap > 0) {
      MixedEpisodes();
    } else {
      for (int64_t e = 0; e < config_.episodes; ++e) Episode(config_.gap);
    }
    Fillers(config_.tail);
    TC_CHECK(at_ == inputs_.size());
  }

 private:
  void Put(int64_t token) { inputs_[at_++] = static_cast<int32_t>(token); }
  int64_t Draw(int64_t n) { return static_cast<int64_t>(rng_.Below(static_cast<uint64_t>(n))); }

  void Fillers(int64_t count) {
    for (int64_t i = 0; i < count; ++i) Put(config_.FirstFiller() + Draw(config_.fillers));
  }

  // Up to where the tail begins.
  void MixedEpisodes() {
    const int64_t overhead = config_.EpisodeLength() - config_.gap;
    const auto left = [&] { return std::ssize(inputs_) - config_.tail - static_cast<int64_t>(at_) - overhead; };
    while (left() >= config_.min_gap) {
      const double low = std::log(static_cast<double>(config_.min_gap)),
                   high = std::log(static_cast<double>(std::min(config_.gap, left())) + 1);
      Episode(std::min(static_cast<int64_t>(std::exp(low + (high - low) * rng_.UniformDouble())), left()));
    }
    Fillers(left() + overhead);
  }

  void Episode(int64_t gap) {
    keys_.clear();
    values_.clear();
    for (int64_t s = 0; s < config_.stores; ++s) {
      keys_.push_back(config_.FirstKey() + UnusedKey());
      values_.push_back(config_.FirstValue() + Draw(config_.values));
      Put(kStoreToken);
      Put(keys_.back());
      Put(values_.back());
    }
    Put(kGapToken);
    Fillers(gap);
    const auto queried = static_cast<size_t>(Draw(config_.stores));
    Put(kQueryToken);
    Put(keys_[queried]);
    targets_[at_] = static_cast<int32_t>(values_[queried]);
    Put(kAnswerToken);
    Put(values_[queried]);
  }

  // Uniform over the keys that this episode has not stored yet: the n-th of those in order.
  int64_t UnusedKey() {
    int64_t key = Draw(config_.keys - static_cast<int64_t>(keys_.size()));
    used_.assign(keys_.begin(), keys_.end());
    std::ranges::sort(used_);
    for (const int64_t used : used_) key += config_.FirstKey() + key >= used;
    return key;
  }

  const RecallConfig& config_;
  Rng rng_;
  std::span<int32_t> inputs_, targets_;  // (T)
  size_t at_ = 0;
  std::vector<int64_t> keys_, values_, used_;
};

class RecallSource : public BatchSource {
 public:
  RecallSource(const RecallConfig& config, uint64_t seed) : config_(config), seed_(seed) {}

  int64_t vocab_size() const override { return config_.VocabSize(); }
  int64_t length() const override { return config_.Length(); }

  Status Fill(Split split, int64_t step, int64_t first_row, int64_t rows, Batch* batch) const override {
    TC_RETURN_IF_ERROR(PrepareBatch(step, first_row, rows, length(), batch));
    const auto T = static_cast<size_t>(length());
    for (int64_t r = 0; r < rows; ++r) {
      const size_t begin = static_cast<size_t>(r) * T;
      SequenceWriter(config_, Rng(seed_, DataStream(StreamPurpose::kRow, split, step, first_row + r)),
                     std::span(batch->inputs).subspan(begin, T), std::span(batch->targets).subspan(begin, T))
          .Write();
    }
    return OkStatus();
  }

 private:
  RecallConfig config_;
  uint64_t seed_;
};

Status CheckRange(std::string_view name, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return OkStatus();
  return InvalidArgument(fmt::format("data.recall.{} is {}; it must be {} to {}", name, value, min, max));
}

}  // namespace

Status ValidateRecallConfig(const RecallConfig& config) {
  constexpr int64_t kMaxLength = int64_t{1} << 24;
  constexpr int64_t kMaxKinds = int64_t{1} << 20;
  TC_RETURN_IF_ERROR(CheckRange("gap", config.gap, 0, kMaxLength));
  TC_RETURN_IF_ERROR(CheckRange("min_gap", config.min_gap, 0, config.gap));
  TC_RETURN_IF_ERROR(CheckRange("episodes", config.episodes, 1, kMaxLength));
  TC_RETURN_IF_ERROR(CheckRange("keys", config.keys, 1, kMaxKinds));
  TC_RETURN_IF_ERROR(CheckRange("values", config.values, 1, kMaxKinds));
  TC_RETURN_IF_ERROR(CheckRange("fillers", config.fillers, 1, kMaxKinds));
  TC_RETURN_IF_ERROR(CheckRange("lead", config.lead, 0, kMaxLength));
  TC_RETURN_IF_ERROR(CheckRange("tail", config.tail, 0, kMaxLength));
  if (config.stores < 1 || config.stores > config.keys) {
    return InvalidArgument(
        fmt::format("data.recall.stores is {}, of {} keys; it must be 1 to keys", config.stores, config.keys));
  }
  if (config.Length() > kMaxLength) {
    return InvalidArgument(
        fmt::format("data.recall makes sequences of {} tokens, the most is {}; use a smaller gap or "
                    "fewer episodes",
                    config.Length(), kMaxLength));
  }
  return OkStatus();
}

Result<std::unique_ptr<BatchSource>> MakeRecallSource(const RecallConfig& config, uint64_t seed) {
  TC_RETURN_IF_ERROR(ValidateRecallConfig(config));
  return std::unique_ptr<BatchSource>(std::make_unique<RecallSource>(config, seed));
}

}  // namespace tensorcache::data
