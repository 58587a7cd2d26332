// Synthetic associative recall: a value stored under a key has to be recalled after a gap of noise. A sequence is
//
//   lead fillers, then `episodes` times
//     STORE k v  (`stores` times, with distinct keys)   GAP f_1 .. f_gap   QUERY k ANSWER v
//   tail fillers
//
// where the queried k is one of the episode's keys. Only the v behind ANSWER has a target. All choices are uniform and
// independent, so a key may have had another value in an earlier episode, and chance is 1 / values.
//
// With min_gap > 0 gaps differ: each episode's is drawn from min_gap to gap, uniform in its logarithm, and as many episodes
// as fit fill a sequence of the same length, fillers the rest. A model learns from the short ones first, and has to find a
// pair wherever it was stored.
//
// Tokens: 0 STORE, 1 GAP, 2 QUERY, 3 ANSWER, then the keys, the values, the fillers: 4 to 19, 20 to 35, 36 to 51 by
// default.
#pragma once

#include <cstdint>
#include <memory>

#include "data/batch.h"
#include "tensorcache/status.h"

namespace tensorcache::data {

struct RecallConfig {
  int64_t gap = 24;
  int64_t min_gap = 0;
  int64_t episodes = 6;
  int64_t stores = 1;
  int64_t keys = 16;
  int64_t values = 16;
  int64_t fillers = 16;
  int64_t lead =
      7;  // at the front, so that episodes of 32 tokens do not line up with chunks of 32: see write chunk_start
  int64_t tail = 0;

  template <class V>
  void Fields(V& v) {
    v("gap", gap, "filler tokens between what is stored and the query");
    v("min_gap", min_gap, "0: every gap is the same; more: gaps from this one up, and as many episodes as fit");
    v("episodes", episodes, "store, gap, query and answer, that many times a sequence");
    v("stores", stores, "pairs stored per episode, one of which is queried");
    v("keys", keys, "different keys");
    v("values", values, "different values; guessing is right once in that many");
    v("fillers", fillers, "different filler tokens");
    v("lead", lead, "filler tokens before the first episode");
    v("tail", tail, "filler tokens after the last episode");
  }

  int64_t EpisodeLength() const { return gap + 5 + 3 * stores; }
  int64_t Length() const { return lead + episodes * EpisodeLength() + tail; }
  int64_t VocabSize() const { return 4 + keys + values + fillers; }
  int64_t FirstKey() const { return 4; }
  int64_t FirstValue() const { return 4 + keys; }
  int64_t FirstFiller() const { return 4 + keys + values; }
};

inline constexpr int32_t kStoreToken = 0;
inline constexpr int32_t kGapToken = 1;
inline constexpr int32_t kQueryToken = 2;
inline constexpr int32_t kAnswerToken = 3;

Status ValidateRecallConfig(const RecallConfig& config);

// Rows of T = Length() tokens, all fresh. To evaluate at another gap, make another source with that gap: the tokens mean
// the same.
Result<std::unique_ptr<BatchSource>> MakeRecallSource(const RecallConfig& config, uint64_t seed);

}  // namespace tensorcache::data
