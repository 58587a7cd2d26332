// How well a model predicts a text that streams by: negative log-likelihood (NLL) by length of the context.
//
// For a context of L tokens some start positions are drawn, each uniformly from those with L + 1 tokens left. From each
// start these tokens go through a fresh session, and the NLL is the mean over the L of them that were predicted. Memory
// is constant, but for method full. The starts depend on seed, number, L and the length of the text alone, not on the
// model: the figures of two models on one text are paired, and their differences vary less than the figures.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tensorcache/model.h"
#include "tensorcache/status.h"

namespace tensorcache {

struct EvaluationText {
  int64_t tokens = 0;
  // The tokens from `first` on, as many as `out` holds.
  std::function<Status(int64_t first, std::span<int32_t> out)> read;
  // Bytes of the text of `tokens`, which stand after the token `previous`. May be empty: no bytes are counted.
  std::function<Result<int64_t>(int32_t previous, std::span<const int32_t> tokens)> count_bytes;
};

// Of tokens that outlive it.
EvaluationText TextOf(std::span<const int32_t> tokens);

struct EvaluationOptions {
  std::vector<int64_t> contexts;  // L
  int64_t starts = 4;
  uint64_t seed = 0;
  // Method full beyond the trained length L0: scale its rotary embedding for L / L0, as the paper does (NTK-aware).
  bool scale_full = true;
  // Ascending. A token that is predicted from n tokens falls into the first bin with n <= edge; L closes the last one.
  std::vector<int64_t> bins;
  // Whether the token that follows `before`, the last `counted_by` tokens or fewer, counts. Empty: all do. Bytes are not
  // counted then.
  std::function<bool(std::span<const int32_t> before)> counts;
  int64_t counted_by = 32;
  std::function<void(int64_t context, int64_t tokens)> progress;  // after so many more tokens; may be empty
};

// What was predicted from one start.
struct StreamScore {
  int64_t start = 0;
  int64_t bytes = 0;         // of the predicted tokens' text; 0 if nobody counted
  int64_t counted = 0;       // predictions
  double nll = 0;            // their mean, nats per token; no number, as those below, if there are none
  double last_half = 0;      // the same over the tokens predicted from more than L / 2 others
  std::vector<double> bins;  // the same for each bin
};

struct ContextScore {
  int64_t context = 0;               // L
  std::vector<int64_t> bins;         // upper edges; the last is L
  int64_t state_bytes = 0;           // of a session at the end
  double rope_ntk_factor = 1;        // scaling of the rotary embedding
  std::vector<StreamScore> streams;  // one a start

  // One number a stream; streams in which nothing counts are left out.
  std::vector<double> Nll() const;
  std::vector<double> LastHalf() const;
  std::vector<double> BitsPerByte() const;  // zeros if nobody counted bytes
  std::vector<double> Bin(size_t bin) const;
};

// Scaling of the rotary embedding with which a model of method full reads `context` tokens, as the paper does: none within
// the trained length (NTK-aware). Its own for the other methods.
double RopeNtkFactorFor(const ModelConfig& config, int64_t context);

// kInvalidArgument for options that cannot be, and for a text that is too short for a context.
Status CheckEvaluation(const EvaluationText& text, const EvaluationOptions& options);

// kInvalidArgument if a model cannot read that far: learned positions end.
Status CheckContexts(const ModelConfig& config, const std::vector<int64_t>& contexts);

// Start number `number` of a context in a text of `tokens` tokens, more than the context.
int64_t EvaluationStart(uint64_t seed, int64_t number, int64_t context, int64_t tokens);

// One entry a context, in their order.
Result<std::vector<ContextScore>> Evaluate(const std::shared_ptr<const Model>& model, const EvaluationText& text,
                                           const EvaluationOptions& options);

}  // namespace tensorcache
