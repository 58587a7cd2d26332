// A needle in a haystack (needle_text.h), a byte a token. Only the answer has targets: a row asks what its needle said, and
// nothing else is learned.
//
// With min_length = 0 a row is one text of exactly `length` tokens. With min_length > 0 a row has texts one behind the other: each
// draws its length from min_length to what is left of the row, uniform in its logarithm (and has no haystack where its sentences
// alone are longer), and noise fills what is left when no text fits. A model learns from the short ones first.
//
// Training rows of the first `passkey_steps` steps are passkeys without a haystack, one behind the other: question and needle are
// so near that a model learns to bind within some hundred steps, which from the whole mixture takes it many times as long.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/batch.h"
#include "data/corpus.h"
#include "data/needle_text.h"
#include "tensorcache/status.h"

namespace tensorcache::data {

struct NeedleConfig {
  NeedleTask task = NeedleTask::kAll;
  int64_t length = 512;
  int64_t min_length = 0;
  int64_t passkey_steps = 0;
  double depth = -1;

  template <class V>
  void Fields(V& v) {
    v("task", task,
      "passkey, RULER's niah_single_1, 2 or 3, or all of them, each equally often; 2 and 3 read data.text.path");
    v("length", length, "tokens of a sequence");
    v("min_length", min_length, "0: every sequence is one text; more: texts of this length and longer, as many as fit");
    v("passkey_steps", passkey_steps, "steps at the start of training that have passkeys without a haystack alone");
    v("depth", depth,
      "where the needle is: 0, before the haystack, to 1, behind it; negative: anywhere, each row elsewhere");
  }

  std::vector<NeedleTask> Tasks() const;
  bool HasEssays() const;
  // Targets of a row: their mean over rows, those of the first steps aside.
  double AnswersPerRow() const;
};

Status ValidateNeedleConfig(const NeedleConfig& config);

// Rows of `length` tokens, all fresh. `essays` is what haystacks are cut from, in bytes; it may be empty if no task has essays. Rows
// that differ in their depth alone have the same haystack and the same needle.
Result<std::unique_ptr<BatchSource>> MakeNeedleSource(const NeedleConfig& config, const Corpus& essays, uint64_t seed);

}  // namespace tensorcache::data
