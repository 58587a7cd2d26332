// Multi-query associative recall (MQAR), as Zoology defines it (Arora et al. 2023, arXiv:2312.04927): many pairs at
// the front, each key asked for exactly once later. A task of P pairs is
//
//   k_1 v_1 .. k_P v_P   then slots of two tokens: a query k_i and a filler, or two fillers
//
// The target stands on the query itself: the model answers k_i with v_i, and does not see the answer. Keys are drawn
// without replacement from the tokens 1 to V/2 - 1, values from V/2 to V - 1. Slot s = 1, 2, .. is asked in with a
// probability in proportion to s^(power_a - 1), without replacement, in the order of the pairs: at 0.01 most queries
// come soon behind the pairs and some late, as words come again in text; 1 is uniform. Fillers are any token, keys
// and values included, or with random_non_queries = false the token 0, which is nothing else.
//
// With min_pairs > 0 rows differ, as the tasks of Zoology's training mixture do, and have one length all the same:
// each row draws P from min_pairs, 2 min_pairs, 4 min_pairs, .. up to `pairs`, all equally likely, and has tasks of P
// pairs one behind the other, of min(task_tokens P, length) tokens each; fillers end the row. With the defaults and
// min_pairs = 4 those are Zoology's five, (length, pairs) = (64, 4), (128, 8), (256, 16), (256, 32), (256, 64).
// Nothing marks where a task begins, and the state goes on from one to the next, but no key stands for two values in
// a row.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/batch.h"
#include "tensorcache/status.h"

namespace tensorcache::data {

struct MqarConfig {
  int64_t vocab = 8192;
  int64_t length = 256;
  int64_t pairs = 64;
  int64_t min_pairs = 0;
  int64_t task_tokens = 16;
  double power_a = 0.01;
  bool random_non_queries = true;

  template <class V>
  void Fields(V& v) {
    v("vocab", vocab, "V, tokens: the first half are keys, the second half values");
    v("length", length, "tokens of a sequence");
    v("pairs", pairs, "pairs at the front, each asked for once; at most a quarter of the length");
    v("min_pairs", min_pairs,
      "0: every sequence is one task of `pairs`; more: this many, twice as many, ... up to `pairs`");
    v("task_tokens", task_tokens,
      "with min_pairs: a task has so many tokens a pair, and as many tasks as fit are a sequence");
    v("power_a", power_a, "distance of a query behind the pairs: s^(power_a - 1) for slot s; 1: uniform");
    v("random_non_queries", random_non_queries, "fillers are random tokens; false: the token 0");
  }

  // The numbers of pairs that a row may have.
  std::vector<int64_t> PairChoices() const;
  // Tokens of a task, and tasks of a row, with so many pairs.
  int64_t TaskLength(int64_t task_pairs) const;
  int64_t TasksPerRow(int64_t task_pairs) const { return length / TaskLength(task_pairs); }
  // Targets of a row: their mean over rows.
  double AnswersPerRow() const;
};

Status ValidateMqarConfig(const MqarConfig& config);

// Rows of `length` tokens, all fresh. To evaluate with other lengths and pairs, make another source: with the same
// vocab the tokens mean the same.
Result<std::unique_ptr<BatchSource>> MakeMqarSource(const MqarConfig& config, uint64_t seed);

}  // namespace tensorcache::data
