#include "data/needle_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "core/check.h"
#include "core/config.h"
#include "core/rng.h"
#include "data/row_request.h"

namespace tensorcache::data {
namespace {

constexpr int64_t kBytes = 256;

// A text of a row.
struct PlannedText {
  NeedleTask task;
  int64_t length;
};

// Texts one behind the other, up to a row's length.
std::vector<PlannedText> DrawMixture(const NeedleConfig& config, std::span<const NeedleTask> tasks, Rng* rng) {
  const auto draw = [&] { return tasks[rng->Below(tasks.size())]; };
  if (config.min_length == 0) return {{draw(), config.length}};
  std::vector<PlannedText> plan;
  for (int64_t left = config.length; left >= config.min_length;) {
    const NeedleTask task = draw();
    const int64_t least = MostSentenceBytes(task);
    if (least > left) break;
    const double low = std::log(static_cast<double>(config.min_length)), high = std::log(static_cast<double>(left) + 1);
    const auto length = static_cast<int64_t>(std::exp(low + (high - low) * rng->UniformDouble()));
    plan.push_back({task, std::clamp(length, least, left)});
    left -= plan.back().length;
  }
  return plan;
}

std::vector<PlannedText> ShortPasskeys(int64_t length) {
  const int64_t each = MostSentenceBytes(NeedleTask::kPasskey);
  return std::vector<PlannedText>(static_cast<size_t>(length / each), {NeedleTask::kPasskey, each});
}

// Writes one row from front to back.
class RowWriter {
 public:
  RowWriter(const NeedleConfig& config, const TokenRange& essays, Rng rng, std::span<int32_t> inputs,
            std::span<int32_t> targets)
      : config_(config), essays_(essays), rng_(rng), inputs_(inputs), targets_(targets) {}

  Status Write(bool first_steps) {
    const auto plan = first_steps ? ShortPasskeys(config_.length) : DrawMixture(config_, config_.Tasks(), &rng_);
    for (const PlannedText& text : plan) TC_RETURN_IF_ERROR(Text(text));
    Put(MakeNoise(std::ssize(inputs_) - static_cast<int64_t>(at_)).text);
    return OkStatus();
  }

 private:
  void Put(std::string_view text) {
    for (const char c : text) inputs_[at_++] = static_cast<uint8_t>(c);
  }

  // The depth is drawn last: it changes nothing else.
  Status Text(const PlannedText& text) {
    const NeedleSentences sentences = SentencesOf(text.task, DrawNeedle(text.task, &rng_));
    TC_ASSIGN_OR_RETURN(const Haystack haystack, MakeHaystack(text.task, text.length - sentences.size()));
    const double depth = config_.depth < 0 ? rng_.UniformDouble() : config_.depth;
    const auto border = static_cast<size_t>(haystack.BorderNear(depth));
    Put(sentences.intro);
    Put(std::string_view(haystack.text).substr(0, border));
    Put(sentences.needle);
    Put(std::string_view(&haystack.separator, 1));
    Put(std::string_view(haystack.text).substr(border));
    inputs_[at_ - 1] = '\n';  // the question has a line of its own
    Put(sentences.question);
    for (const char c : sentences.answer) {
      targets_[at_ - 1] = static_cast<uint8_t>(c);
      inputs_[at_++] = static_cast<uint8_t>(c);
    }
    return OkStatus();
  }

  Result<Haystack> MakeHaystack(NeedleTask task, int64_t bytes) {
    if (!HasEssays(task)) return MakeNoise(bytes);
    const auto start = static_cast<int64_t>(rng_.Below(static_cast<uint64_t>(essays_.size())));
    return MakeEssay([this](int64_t first, std::span<int32_t> out) { return essays_.Read(first, out); }, essays_.size(),
                     start, bytes);
  }

  const NeedleConfig& config_;
  const TokenRange& essays_;
  Rng rng_;
  std::span<int32_t> inputs_, targets_;  // (T)
  size_t at_ = 0;
};

class NeedleSource : public BatchSource {
 public:
  NeedleSource(const NeedleConfig& config, Corpus essays, uint64_t seed)
      : config_(config), essays_(std::move(essays)), seed_(seed) {}

  int64_t vocab_size() const override { return kBytes; }
  int64_t length() const override { return config_.length; }

  Status Fill(Split split, int64_t step, int64_t first_row, int64_t rows, Batch* batch) const override {
    TC_RETURN_IF_ERROR(PrepareBatch(step, first_row, rows, length(), batch));
    const TokenRange& essays = split == Split::kTrain ? essays_.train : essays_.valid;
    if (config_.HasEssays() && essays.size() == 0) {
      return InvalidArgument(fmt::format("no {} text for data.kind needle; set data.text.{}",
                                         split == Split::kTrain ? "training" : "validation",
                                         split == Split::kTrain ? "path" : "valid_path or data.text.valid_fraction"));
    }
    const auto T = static_cast<size_t>(length());
    for (int64_t r = 0; r < rows; ++r) {
      const size_t begin = static_cast<size_t>(r) * T;
      TC_RETURN_IF_ERROR(
          RowWriter(config_, essays, Rng(seed_, DataStream(StreamPurpose::kRow, split, step, first_row + r)),
                    std::span(batch->inputs).subspan(begin, T), std::span(batch->targets).subspan(begin, T))
              .Write(split == Split::kTrain && step < config_.passkey_steps));
    }
    return OkStatus();
  }

 private:
  NeedleConfig config_;
  Corpus essays_;
  uint64_t seed_;
};

}  // namespace

std::vector<NeedleTask> NeedleConfig::Tasks() const {
  if (task != NeedleTask::kAll) return {task};
  return {kNeedleTasks.begin(), kNeedleTasks.end()};
}

bool NeedleConfig::HasEssays() const {
  const std::vector<NeedleTask> tasks = Tasks();
  return std::ranges::any_of(tasks, data::HasEssays);
}

double NeedleConfig::AnswersPerRow() const {
  const std::vector<NeedleTask> tasks = Tasks();
  // What is random in a row's plan has no short formula: the mean of many.
  constexpr int64_t kRows = 1024;
  int64_t sum = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    Rng rng(0, static_cast<uint64_t>(row));
    for (const PlannedText& text : DrawMixture(*this, tasks, &rng)) sum += AnswerBytes(text.task);
  }
  return static_cast<double>(sum) / kRows;
}

Status ValidateNeedleConfig(const NeedleConfig& config) {
  constexpr int64_t kMaxLength = int64_t{1} << 24;
  int64_t least = 0;
  for (const NeedleTask task : config.Tasks()) least = std::max(least, MostSentenceBytes(task));
  if (config.length < least || config.length > kMaxLength) {
    return InvalidArgument(fmt::format("data.needle.length is {}; with task {} it must be {} to {}", config.length,
                                       NameOf(config.task), least, kMaxLength));
  }
  if (config.min_length < 0 || config.min_length > config.length) {
    return InvalidArgument(
        fmt::format("data.needle.min_length is {}; it must be 0 to the length, {}", config.min_length, config.length));
  }
  if (config.passkey_steps < 0) {
    return InvalidArgument(fmt::format("data.needle.passkey_steps is {}; it must be 0 or more", config.passkey_steps));
  }
  if (std::isfinite(config.depth) && config.depth <= 1) return OkStatus();
  return InvalidArgument(fmt::format("data.needle.depth is {}; it must be at most 1", config.depth));
}

Result<std::unique_ptr<BatchSource>> MakeNeedleSource(const NeedleConfig& config, const Corpus& essays, uint64_t seed) {
  TC_RETURN_IF_ERROR(ValidateNeedleConfig(config));
  if (config.HasEssays() && essays.train.size() == 0) {
    return InvalidArgument("data.kind needle hides needles in text, but there is none; set data.text.path");
  }
  return std::unique_ptr<BatchSource>(std::make_unique<NeedleSource>(config, essays, seed));
}

}  // namespace tensorcache::data
