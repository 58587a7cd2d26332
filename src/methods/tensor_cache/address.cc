#include "methods/tensor_cache/address.h"

#include <algorithm>

#include "methods/rows_math.h"

namespace tensorcache::methods {

Address::Address(const TwoLevelCacheConfig& config, int64_t lag)
    : options_(config.cache.tensor_cache.address),
      pairing_(config.rope.pairing),
      through_bf16_(config.ring == RingType::kBf16 && lag > 0),
      window_(config.cache.window),
      D_(config.head_dim) {}

Rows<const float> Address::Queries(const HeadBlock& in, Arena& arena) const {
  const Rows<const float> q =
      options_.rope ? Rows<const float>{.data = in.q, .head = in.T * D_, .token = D_} : in.plain_q;
  if (!options_.normalize_queries) return q;
  float* unit = arena.Take(in.R * in.T * D_);
  for (int64_t r = 0; r < in.R; ++r) {
    for (int64_t t = 0; t < in.T; ++t) UnitLength(q.At(0, r, t), D_, unit + (r * in.T + t) * D_);
  }
  return {.data = unit, .head = in.T * D_, .token = D_};
}

// A copy of `tokens` rows of keys: turned back by `back` if given, of unit length if asked for.
float* Address::Keys(const Rows<const float>& keys, int64_t tokens, RopeRows back, Arena& arena) const {
  float* out = Rotated({.rows = keys, .T = tokens, .D = D_, .rope = back, .pairing = pairing_, .inverse = true}, arena);
  if (options_.normalize_keys) {
    for (int64_t i = 0; i < tokens; ++i) UnitLength(out + i * D_, D_, out + i * D_);
  }
  return out;
}

Rows<const float> Address::BlockKeys(const HeadBlock& in, Arena& arena) const {
  const Rows<const float> rotated = {.data = in.k, .token = D_};
  const bool turn_back = !options_.rope && through_bf16_;
  const Rows<const float> keys = options_.rope || turn_back ? rotated : in.plain_k;
  if (!turn_back && !options_.normalize_keys) return keys;
  return {.data = Keys(keys, in.T, turn_back ? in.rope : RopeRows(), arena), .token = D_};
}

const float* Address::PastKeys(const HeadBlock& in, int64_t tokens, const Rows<const float>& keys, Arena& arena) const {
  return Keys(keys, tokens, options_.rope ? RopeRows() : in.extra_rope, arena);
}

// All of the window; of a single step, the token it evicts.
std::vector<int64_t> Address::TurnedBack(int64_t position, int64_t tokens) const {
  if (options_.rope) return {};
  const int64_t past = std::min(position, window_);
  std::vector<int64_t> positions(static_cast<size_t>(tokens == 1 ? std::min<int64_t>(past, 1) : past));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = position - past + static_cast<int64_t>(i);
  return positions;
}

const float* WithOnes(const Rows<const float>& rows, int64_t tokens, int64_t D, Arena& arena) {
  float* out = arena.Take(tokens * (D + 1));
  for (int64_t i = 0; i < tokens; ++i) {
    CopyRow(rows.At(0, 0, i), D, out + i * (D + 1));
    out[i * (D + 1) + D] = 1;
  }
  return out;
}

const float* InOrder(const Rows<const float>& rows, const PastWindow& past, int64_t D, Arena& arena) {
  float* out = arena.Take(past.tokens * D);
  for (int64_t i = 0; i < past.tokens; ++i) {
    CopyRow(rows.At(0, 0, (past.ring.start + i) % past.ring.capacity), D, out + i * D);
  }
  return out;
}

}  // namespace tensorcache::methods
