#include "runtime/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/check.h"
#include "core/rng.h"
#include "methods/method.h"
#include "tensorcache/session.h"

namespace tensorcache {
namespace {

// Tokens that are scored in one call.
constexpr int64_t kPiece = 4096;

class MeanOf {
 public:
  void Add(double value) {
    sum_ += value;
    ++count_;
  }
  int64_t count() const { return count_; }
  double value() const { return sum_ / static_cast<double>(count_); }  // 0 / 0 of none

 private:
  double sum_ = 0;
  int64_t count_ = 0;
};

std::vector<int64_t> BinsOf(int64_t context, const std::vector<int64_t>& edges) {
  std::vector<int64_t> bins;
  for (const int64_t edge : edges) {
    if (edge < context) bins.push_back(edge);
  }
  bins.push_back(context);
  return bins;
}

// The scores of one stream, token by token.
class StreamMeans {
 public:
  StreamMeans(int64_t context, const std::vector<int64_t>& edges)
      : context_(context), edges_(edges), bins_(edges.size()) {}

  // The token that was predicted from `read` others.
  void Add(int64_t read, double nll) {
    all_.Add(nll);
    if (2 * read > context_) last_half_.Add(nll);
    while (read > edges_[bin_]) ++bin_;
    bins_[bin_].Add(nll);
  }

  void Finish(StreamScore& score) const {
    score.counted = all_.count();
    score.nll = all_.value();
    score.last_half = last_half_.value();
    for (const MeanOf& bin : bins_) score.bins.push_back(bin.value());
  }

 private:
  int64_t context_;
  const std::vector<int64_t>& edges_;
  MeanOf all_, last_half_;
  std::vector<MeanOf> bins_;
  size_t bin_ = 0;
};

// The last `most` of `tail` followed by the first `n` of `tokens`.
std::vector<int32_t> Before(std::span<const int32_t> tail, std::span<const int32_t> tokens, size_t n, int64_t most) {
  const size_t from_tokens = std::min(n, static_cast<size_t>(most));
  const size_t from_tail = std::min(tail.size(), static_cast<size_t>(most) - from_tokens);
  std::vector<int32_t> before(tail.end() - static_cast<std::ptrdiff_t>(from_tail), tail.end());
  const auto part = tokens.subspan(n - from_tokens, from_tokens);
  before.insert(before.end(), part.begin(), part.end());
  return before;
}

Status ScoreStream(Session& session, const EvaluationText& text, const EvaluationOptions& options,
                   const ContextScore& context, StreamScore& score) {
  StreamMeans means(context.context, context.bins);
  std::vector<int32_t> tokens;
  std::vector<float> nll;
  std::vector<int32_t> tail;
  int32_t previous = -1;
  for (int64_t at = 0, end = context.context + 1; at < end; at += kPiece) {
    const int64_t n = std::min(kPiece, end - at);
    tokens.resize(static_cast<size_t>(n));
    nll.resize(static_cast<size_t>(n));
    TC_RETURN_IF_ERROR(text.read(score.start + at, tokens));
    TC_RETURN_IF_ERROR(session.Score(tokens, nll));
    const size_t first = at == 0 ? 1 : 0;  // the first token of all was not predicted
    for (size_t i = first; i < tokens.size(); ++i) {
      if (options.counts && !options.counts(Before(tail, tokens, i, options.counted_by))) continue;
      means.Add(at + static_cast<int64_t>(i), nll[i]);
    }
    tail = Before(tail, tokens, tokens.size(), options.counted_by);
    if (text.count_bytes && !options.counts) {
      if (first == 1) previous = tokens[0];
      TC_ASSIGN_OR_RETURN(const int64_t bytes, text.count_bytes(previous, std::span(tokens).subspan(first)));
      score.bytes += bytes;
    }
    previous = tokens.back();
    if (options.progress) options.progress(context.context, n);
  }
  means.Finish(score);
  if (score.counted > 0 && !std::isfinite(score.nll)) {
    return Diverged(
        fmt::format("the scores of the {} tokens from {} on left the finite numbers", context.context, score.start));
  }
  return OkStatus();
}

template <class F>
std::vector<double> OfStreams(const ContextScore& score, F number) {
  std::vector<double> numbers;
  for (const StreamScore& stream : score.streams) {
    if (const double value = number(stream); !std::isnan(value)) numbers.push_back(value);
  }
  return numbers;
}

}  // namespace

EvaluationText TextOf(std::span<const int32_t> tokens) {
  return {.tokens = static_cast<int64_t>(tokens.size()), .read = [tokens](int64_t first, std::span<int32_t> out) {
            std::ranges::copy(tokens.subspan(static_cast<size_t>(first), out.size()), out.begin());
            return OkStatus();
          }};
}

Status CheckEvaluation(const EvaluationText& text, const EvaluationOptions& options) {
  if (options.starts < 1) {
    return InvalidArgument(fmt::format("{} start positions make no evaluation; take 1 or more", options.starts));
  }
  if (options.contexts.empty()) return InvalidArgument("no context length is given");
  for (const int64_t context : options.contexts) {
    if (context < 1) return InvalidArgument(fmt::format("a context needs 1 token or more, not {}", context));
    if (context >= text.tokens) {
      return InvalidArgument(fmt::format("a context of {} needs a text of {} tokens or more; this one has {}", context,
                                         context + 1, text.tokens));
    }
  }
  for (size_t i = 0; i < options.bins.size(); ++i) {
    if (options.bins[i] > (i > 0 ? options.bins[i - 1] : 0)) continue;
    return InvalidArgument(
        fmt::format("the edge {} of the bins is out of order; they must be positive and ascend", options.bins[i]));
  }
  return OkStatus();
}

Status CheckContexts(const ModelConfig& config, const std::vector<int64_t>& contexts) {
  if (config.position_embedding != PositionKind::kLearned) return OkStatus();
  for (const int64_t context : contexts) {
    if (context < config.max_position_embeddings) continue;  // a context of L is L + 1 tokens
    return InvalidArgument(
        fmt::format("a context of {} is too long for learned positions of {} tokens; take {} at most", context,
                    config.max_position_embeddings, config.max_position_embeddings - 1));
  }
  return OkStatus();
}

int64_t EvaluationStart(uint64_t seed, int64_t number, int64_t context, int64_t tokens) {
  TC_CHECK(tokens > context);
  return static_cast<int64_t>(Rng(seed, static_cast<uint64_t>(number)).Below(static_cast<uint64_t>(tokens - context)));
}

double RopeNtkFactorFor(const ModelConfig& config, int64_t context) {
  const bool rotary = config.position_embedding == PositionKind::kRope;
  if (!methods::MethodOf(config.cache).KeepsEverything() || !rotary) return config.rope_ntk_factor;
  const double times = static_cast<double>(context) / static_cast<double>(config.max_position_embeddings);
  return std::max(config.rope_ntk_factor, times);
}

Result<std::vector<ContextScore>> Evaluate(const std::shared_ptr<const Model>& model, const EvaluationText& text,
                                           const EvaluationOptions& options) {
  TC_RETURN_IF_ERROR(CheckEvaluation(text, options));
  TC_RETURN_IF_ERROR(CheckContexts(model->config(), options.contexts));
  std::vector<ContextScore> scores;
  for (const int64_t length : options.contexts) {
    ContextScore context{.context = length,
                         .bins = BinsOf(length, options.bins),
                         .rope_ntk_factor = options.scale_full ? RopeNtkFactorFor(model->config(), length)
                                                               : model->config().rope_ntk_factor};
    TC_ASSIGN_OR_RETURN(Session session, Session::Create(model, {.rope_ntk_factor = context.rope_ntk_factor}));
    for (int64_t i = 0; i < options.starts; ++i) {
      StreamScore score{.start = EvaluationStart(options.seed, i, length, text.tokens)};
      session.Clear();
      TC_RETURN_IF_ERROR(ScoreStream(session, text, options, context, score));
      context.streams.push_back(std::move(score));
    }
    if (context.Nll().empty()) {
      return InvalidArgument(
          fmt::format("there is nothing to count in {} starts of {} tokens; take longer contexts, more starts, or what "
                      "occurs there",
                      options.starts, length));
    }
    context.state_bytes = session.state_bytes().total();
    scores.push_back(std::move(context));
  }
  return scores;
}

std::vector<double> ContextScore::Nll() const {
  return OfStreams(*this, [](const StreamScore& stream) { return stream.nll; });
}
std::vector<double> ContextScore::LastHalf() const {
  return OfStreams(*this, [](const StreamScore& stream) { return stream.last_half; });
}
std::vector<double> ContextScore::BitsPerByte() const {
  return OfStreams(*this, [&](const StreamScore& stream) {
    const double bits = stream.nll * static_cast<double>(context) / std::numbers::ln2;
    return stream.bytes > 0 ? bits / static_cast<double>(stream.bytes) : 0;
  });
}
std::vector<double> ContextScore::Bin(size_t bin) const {
  return OfStreams(*this, [&](const StreamScore& stream) { return stream.bins[bin]; });
}

}  // namespace tensorcache
