#include "experiments/needle_streaming.h"

#include <fmt/format.h>

#include <algorithm>

#include "experiments/task_streaming.h"
#include "runtime/evaluate.h"
#include "tensorcache/session.h"

namespace tensorcache::experiments {
namespace {

Result<data::Batch> TextAt(const data::Corpus& essays, const NeedleQuestion& question, double depth) {
  const data::NeedleConfig config{.task = question.task, .length = question.length, .depth = depth};
  TC_ASSIGN_OR_RETURN(const auto source, data::MakeNeedleSource(config, essays, question.seed));
  data::Batch text;
  TC_RETURN_IF_ERROR(source->Fill(data::Split::kValid, 0, question.row, 1, &text));
  return text;
}

// The first token that is asked what follows it.
size_t FirstAsked(const data::Batch& text) {
  const auto asked = std::ranges::find_if(text.targets, [](int32_t target) { return target >= 0; });
  return static_cast<size_t>(asked - text.targets.begin());
}

// Up to, but without, token `end`, from where the session is.
Status ReadUpTo(size_t end, const data::Batch& text, Session* session) {
  const auto read = static_cast<size_t>(session->position());
  if (end <= read) return OkStatus();
  return session->Prefill(std::span(text.inputs).subspan(read, end - read));
}

// The session has read the front of the text, and answers.
Result<NeedleAnswer> Ask(const data::Batch& text, Session session) {
  const size_t asked = FirstAsked(text), end = text.inputs.size();
  TC_RETURN_IF_ERROR(ReadUpTo(asked, text, &session));
  const auto vocab = static_cast<size_t>(session.model().config().vocab_size);
  std::vector<float> logits((end - asked) * vocab);
  TC_RETURN_IF_ERROR(session.PrefillLogits(std::span(text.inputs).subspan(asked), logits));
  NeedleAnswer answer{.state_bytes = session.state_bytes().total()};
  for (size_t t = asked; t < end; ++t) {
    if (text.targets[t] < 0) continue;
    const auto row = std::span<const float>(logits).subspan((t - asked) * vocab, vocab);
    ++answer.tokens;
    answer.right += std::ranges::max_element(row) - row.begin() == text.targets[t];
    answer.nll += NegativeLogProbability(row, text.targets[t]);
  }
  return answer;
}

}  // namespace

Result<std::vector<NeedleAnswer>> AskAtDepths(const std::shared_ptr<const Model>& model, const data::Corpus& essays,
                                              const NeedleQuestion& question, std::span<const double> depths) {
  if (depths.empty() || !std::ranges::is_sorted(depths)) {
    return InvalidArgument("give depths of the needle, in ascending order");
  }
  const SessionOptions options{.rope_ntk_factor = RopeNtkFactorFor(model->config(), question.length)};
  TC_ASSIGN_OR_RETURN(Session shared, Session::Create(model, options));
  TC_ASSIGN_OR_RETURN(const data::Batch deepest, TextAt(essays, question, depths.back()));
  std::vector<NeedleAnswer> answers;
  for (const double depth : depths) {
    TC_ASSIGN_OR_RETURN(const data::Batch text, TextAt(essays, question, depth));
    const auto differs = std::ranges::mismatch(text.inputs, deepest.inputs).in1 - text.inputs.begin();
    TC_RETURN_IF_ERROR(ReadUpTo(std::min(static_cast<size_t>(differs), FirstAsked(text)), deepest, &shared));
    TC_ASSIGN_OR_RETURN(Session own, shared.Fork());
    TC_ASSIGN_OR_RETURN(const NeedleAnswer answer, Ask(text, std::move(own)));
    answers.push_back(answer);
  }
  return answers;
}

}  // namespace tensorcache::experiments
