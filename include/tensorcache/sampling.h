// Choosing the next token from a model's logits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tensorcache/status.h"

namespace tensorcache {

inline constexpr int64_t kMaxRepetitionWindow = 1024;

// The steps in the order in which they are taken; each works on what the one before has left:
//
//   1. repetition penalty  once for each distinct token among the last `repetition_window`, a positive logit is divided
//                          by it, any other multiplied by it
//   2. temperature         the logits are divided by it; 0 takes the largest logit and skips the steps below
//   3. top-k               the k most likely tokens stay
//   4. top-p               the fewest most likely tokens stay whose probabilities, among what top-k left, sum to at
//                          least p; at least one
//   5. min-p               tokens stay that are at least this fraction as likely as the most likely one
//   6. draw                from the softmax over the rest
//
// Temperature comes before the filters, as in Hugging Face's generate(); llama.cpp applies it after them unless told
// otherwise. So a higher one lets top-p and min-p keep more. Of equally likely tokens, the lower number counts as the
// more likely one wherever an order is needed.
struct SamplingOptions {
  double temperature = 1;          // 0 to 100
  int64_t top_k = 0;               // 0: off
  double top_p = 1;                // 0 to 1; 1: off
  double min_p = 0;                // 0 to 1; 0: off
  double repetition_penalty = 1;   // 0.01 to 100; 1: off
  int64_t repetition_window = 64;  // 0 to kMaxRepetitionWindow
  uint64_t seed = 0;
};

Status ValidateSamplingOptions(const SamplingOptions& options);

// Options with scratch memory that calls reuse, about 22 bytes a token of the vocabulary. Not thread-safe.
class Sampler {
 public:
  static Result<Sampler> Create(const SamplingOptions& options);
  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;
  ~Sampler();

  // The token for `position` of the text. `recent` is the text so far, or its end: only the last `repetition_window`
  // tokens are looked at. A pure function of the options and the arguments: the random number is that of (seed,
  // position), so there is no state to save, and a session that was restored or forked goes on as the original would.
  //
  // A token with logit -inf is never chosen. NaN, +inf and nothing but -inf are errors (kDiverged), and so is a token
  // in `recent` that has no logit (kInvalidArgument).
  Result<int32_t> Sample(std::span<const float> logits, std::span<const int32_t> recent, uint64_t position);

  const SamplingOptions& options() const { return options_; }

 private:
  class Candidates;
  explicit Sampler(const SamplingOptions& options);

  SamplingOptions options_;
  std::vector<float> penalised_;
  std::unique_ptr<Candidates> candidates_;
};

}  // namespace tensorcache
