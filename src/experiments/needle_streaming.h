// Needles in haystacks of any length, read as a stream: each text in one session, which is asked at its end.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/corpus.h"
#include "data/needle_task.h"
#include "tensorcache/model.h"
#include "tensorcache/status.h"

namespace tensorcache::experiments {

// The answer to one question: what the model takes for most likely at each of its tokens, after the right ones before it. All of
// them are right exactly if a model that goes on from its own tokens, greedily, gives the whole answer.
struct NeedleAnswer {
  int64_t tokens = 0;
  int64_t right = 0;
  double nll = 0;  // sum over tokens, nats
  int64_t state_bytes = 0;

  bool Whole() const { return right == tokens; }
};

struct NeedleQuestion {
  data::NeedleTask task = data::NeedleTask::kPasskey;
  int64_t length = 0;  // tokens, answer included
  int64_t row = 0;     // of the validation rows: which needle, in which haystack
  uint64_t seed = 0;
};

// The same needle in the same haystack at each of the depths, which ascend. What texts have in common, the haystack up to the
// shallower needle, is read once: a session forks where the needle comes.
Result<std::vector<NeedleAnswer>> AskAtDepths(const std::shared_ptr<const Model>& model, const data::Corpus& essays,
                                              const NeedleQuestion& question, std::span<const double> depths);

}  // namespace tensorcache::experiments
