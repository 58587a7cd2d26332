#include "experiments/task_streaming.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/evaluate.h"
#include "tensorcache/session.h"

namespace tensorcache::experiments {
namespace {

// Sequences that stream side by side: the weights are read once for all.
constexpr int64_t kTogether = 32;

// Many sequences that advance together.
class Streams {
 public:
  static Result<Streams> Create(const std::shared_ptr<const Model>& model, int64_t length,
                                const TaskStreamOptions& options) {
    SessionOptions session_options;
    if (options.scale_full) session_options.rope_ntk_factor = RopeNtkFactorFor(model->config(), length);
    Streams streams(model->config().vocab_size, options.prefill);
    for (int64_t i = 0; i < std::min(kTogether, options.rows); ++i) {
      TC_ASSIGN_OR_RETURN(Session session, Session::Create(model, session_options));
      streams.sessions_.push_back(std::move(session));
    }
    return streams;
  }

  int64_t count() const { return std::ssize(sessions_); }
  int64_t state_bytes() const { return sessions_[0].state_bytes().total(); }

  // The first batch.rows sessions read a row each.
  Status Read(const data::Batch& batch, TaskScore* score) {
    std::vector<Session*> together;
    for (int64_t row = 0; row < batch.rows; ++row) {
      sessions_[static_cast<size_t>(row)].Clear();
      together.push_back(&sessions_[static_cast<size_t>(row)]);
    }
    const int64_t first = prefill_ ? FirstTarget(batch) : 0;
    for (size_t row = 0; row < together.size() && first > 0; ++row) {
      const size_t begin = row * static_cast<size_t>(batch.length);
      TC_RETURN_IF_ERROR(together[row]->Prefill(std::span(batch.inputs).subspan(begin, static_cast<size_t>(first))));
    }
    std::vector<int32_t> tokens(together.size());
    for (int64_t t = first; t < batch.length; ++t) {
      for (size_t row = 0; row < together.size(); ++row) tokens[row] = batch.inputs[At(batch, row, t)];
      TC_RETURN_IF_ERROR(Session::DecodeBatch(together, tokens));
      TC_RETURN_IF_ERROR(Answer(batch, t, score));
    }
    return OkStatus();
  }

 private:
  Streams(int64_t vocab_size, bool prefill) : vocab_size_(static_cast<size_t>(vocab_size)), prefill_(prefill) {}

  static size_t At(const data::Batch& batch, size_t row, int64_t t) {
    return row * static_cast<size_t>(batch.length) + static_cast<size_t>(t);
  }

  // Of any row; `length` if there is none.
  static int64_t FirstTarget(const data::Batch& batch) {
    int64_t first = batch.length;
    for (size_t row = 0; row < static_cast<size_t>(batch.rows); ++row) {
      int64_t t = 0;
      while (t < first && batch.targets[At(batch, row, t)] < 0) ++t;
      first = t;
    }
    return first;
  }

  // Those that have a target at t; the output matrix, which with a large vocabulary is most of the model, is read
  // once for all.
  Status Answer(const data::Batch& batch, int64_t t, TaskScore* score) {
    std::vector<const Session*> asked;
    std::vector<int32_t> targets;
    for (size_t row = 0; row < static_cast<size_t>(batch.rows); ++row) {
      const int32_t target = batch.targets[At(batch, row, t)];
      if (target < 0) continue;
      asked.push_back(&sessions_[row]);
      targets.push_back(target);
    }
    logits_.resize(asked.size() * vocab_size_);
    TC_RETURN_IF_ERROR(Session::BatchLogits(asked, logits_));
    for (size_t i = 0; i < asked.size(); ++i) {
      Count(std::span(logits_).subspan(i * vocab_size_, vocab_size_), targets[i], score);
    }
    return OkStatus();
  }

  // Sums; the caller divides.
  static void Count(std::span<const float> logits, int32_t target, TaskScore* score) {
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    score->accuracy += best == target;
    score->nll += NegativeLogProbability(logits, target);
    ++score->answers;
  }

  size_t vocab_size_;
  bool prefill_;
  std::vector<Session> sessions_;
  std::vector<float> logits_;
};

}  // namespace

double NegativeLogProbability(std::span<const float> logits, int32_t token) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum) - static_cast<double>(logits[static_cast<size_t>(token)]);
}

Result<TaskScore> StreamTask(const std::shared_ptr<const Model>& model, const data::BatchSource& source,
                             const TaskStreamOptions& options) {
  if (source.vocab_size() != model->config().vocab_size) {
    return InvalidArgument(
        fmt::format("the model knows {} tokens, the task has {}", model->config().vocab_size, source.vocab_size()));
  }
  if (options.rows < 1) return InvalidArgument(fmt::format("a score of {} rows; give at least one", options.rows));
  TC_ASSIGN_OR_RETURN(Streams streams, Streams::Create(model, source.length(), options));
  TaskScore score;
  data::Batch batch;
  for (int64_t row = 0; row < options.rows; row += streams.count()) {
    const int64_t rows = std::min(streams.count(), options.rows - row);
    TC_RETURN_IF_ERROR(source.Fill(data::Split::kValid, 0, row, rows, &batch));
    TC_RETURN_IF_ERROR(streams.Read(batch, &score));
  }
  if (score.answers == 0) return InvalidArgument("the rows have no target");
  score.accuracy /= static_cast<double>(score.answers);
  score.nll /= static_cast<double>(score.answers);
  score.state_bytes = streams.state_bytes();
  return score;
}

Result<int64_t> StateBytesAfter(const std::shared_ptr<const Model>& model, int64_t tokens) {
  TC_ASSIGN_OR_RETURN(Session session, Session::Create(model));
  TC_RETURN_IF_ERROR(session.Prefill(std::vector<int32_t>(static_cast<size_t>(tokens), 0)));
  return session.state_bytes().total();
}

}  // namespace tensorcache::experiments
