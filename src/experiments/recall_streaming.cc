#include "experiments/recall_streaming.h"

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
  static Result<Streams> Create(const std::shared_ptr<const Model>& model, const RecallStreamOptions& options) {
    SessionOptions session_options;
    if (options.scale_full) {
      session_options.rope_ntk_factor = RopeNtkFactorFor(model->config(), options.task.Length());
    }
    Streams streams;
    for (int64_t i = 0; i < std::min(kTogether, options.rows); ++i) {
      TC_ASSIGN_OR_RETURN(Session session, Session::Create(model, session_options));
      streams.sessions_.push_back(std::move(session));
    }
    return streams;
  }

  int64_t count() const { return std::ssize(sessions_); }
  int64_t state_bytes() const { return sessions_[0].state_bytes().total(); }

  // The first batch.rows sessions read a row each.
  Status Read(const data::Batch& batch, RecallScore* score) {
    std::vector<Session*> together;
    for (int64_t row = 0; row < batch.rows; ++row) {
      sessions_[static_cast<size_t>(row)].Clear();
      together.push_back(&sessions_[static_cast<size_t>(row)]);
    }
    std::vector<int32_t> tokens(together.size());
    for (int64_t t = 0; t < batch.length; ++t) {
      for (int64_t row = 0; row < batch.rows; ++row) {
        tokens[static_cast<size_t>(row)] = batch.inputs[static_cast<size_t>(row * batch.length + t)];
      }
      TC_RETURN_IF_ERROR(Session::DecodeBatch(together, tokens));
      for (int64_t row = 0; row < batch.rows; ++row) {
        const int32_t target = batch.targets[static_cast<size_t>(row * batch.length + t)];
        if (target >= 0) Count(sessions_[static_cast<size_t>(row)].logits(), target, score);
      }
    }
    return OkStatus();
  }

 private:
  // Sums; the caller divides.
  static void Count(std::span<const float> logits, int32_t target, RecallScore* score) {
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    score->accuracy += best == target;
    score->nll += NegativeLogProbability(logits, target);
    ++score->answers;
  }

  std::vector<Session> sessions_;
};

}  // namespace

double NegativeLogProbability(std::span<const float> logits, int32_t token) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum) - static_cast<double>(logits[static_cast<size_t>(token)]);
}

Result<RecallScore> StreamRecall(const std::shared_ptr<const Model>& model, const RecallStreamOptions& options) {
  if (options.task.VocabSize() != model->config().vocab_size) {
    return InvalidArgument(fmt::format("the model knows {} tokens, the task has {}", model->config().vocab_size,
                                       options.task.VocabSize()));
  }
  TC_ASSIGN_OR_RETURN(const auto source, data::MakeRecallSource(options.task, options.seed));
  TC_ASSIGN_OR_RETURN(Streams streams, Streams::Create(model, options));
  RecallScore score;
  data::Batch batch;
  for (int64_t row = 0; row < options.rows; row += streams.count()) {
    const int64_t rows = std::min(streams.count(), options.rows - row);
    TC_RETURN_IF_ERROR(source->Fill(data::Split::kValid, 0, row, rows, &batch));
    TC_RETURN_IF_ERROR(streams.Read(batch, &score));
  }
  score.accuracy /= static_cast<double>(score.answers);
  score.nll /= static_cast<double>(score.answers);
  score.state_bytes = streams.state_bytes();
  return score;
}

Result<int64_t> RecallStateBytes(const std::shared_ptr<const Model>& model, const data::RecallConfig& task) {
  TC_ASSIGN_OR_RETURN(Session session, Session::Create(model));
  const std::vector<int32_t> tokens(static_cast<size_t>(task.Length()), 0);
  TC_RETURN_IF_ERROR(session.Prefill(tokens));
  return session.state_bytes().total();
}

}  // namespace tensorcache::experiments
