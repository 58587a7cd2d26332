#include "methods/tensor_cache/address.h"

#include <algorithm>
#include <cmath>

#include "methods/rows_math.h"
#include "tensorcache/kernels/short_conv.h"

namespace tensorcache::methods {
namespace {

bool ByContent(const MemoryAddressOptions& options) { return options.by == MemoryAddress::kContent; }

// y = softmax(sign x) of n numbers.
void Softmax(const float* x, int64_t n, float sign, float* y) {
  float most = sign * x[0], sum = 0;
  for (int64_t i = 1; i < n; ++i) most = std::max(most, sign * x[i]);
  for (int64_t i = 0; i < n; ++i) sum += y[i] = std::exp(sign * x[i] - most);
  for (int64_t i = 0; i < n; ++i) y[i] /= sum;
}

// The `kept` rows before the first token that is not written yet, of kept and then new ones.
void MoveOn(const float* rows, int64_t written, int64_t kept, int64_t D, float* to) {
  if (kept > 0) std::copy_n(rows + written * D, kept * D, to);
}

}  // namespace

Address::Address(const TwoLevelCacheConfig& config, const TensorCacheSizes& sizes, AddressWeights weights)
    : options_(config.cache.tensor_cache.address),
      n_(sizes),
      weights_(std::move(weights)),
      pairing_(config.rope.pairing),
      in_place_(!ByContent(options_) && !options_.normalize_keys && sizes.kept_keys == 0 && sizes.taps == 0 &&
                sizes.Dk == sizes.D && sizes.Dv == sizes.D),
      through_bf16_(config.ring == RingType::kBf16 && sizes.lag > 0),
      window_(config.cache.window) {}

// [softmax(x), softmax(-x)]: (heads, tokens, D) -> (heads, tokens, 2 D) dense.
float* Address::Features(const Rows<const float>& rows, int64_t heads, int64_t tokens, Arena& arena) const {
  float* out = arena.Take(heads * tokens * n_.Dk);
  for (int64_t i = 0; i < heads * tokens; ++i) {
    const float* x = rows.At(0, i / tokens, i % tokens);
    Softmax(x, n_.D, 1, out + i * n_.Dk);
    Softmax(x, n_.D, -1, out + i * n_.Dk + n_.D);
  }
  return out;
}

Rows<const float> Address::Queries(const HeadBlock& in, const KeptRows& kept, Arena& arena) const {
  const int64_t T = in.T, R = in.R, D = n_.D;
  Rows<const float> q = ByContent(options_) ? in.plain_q : Rows<const float>{.data = in.q, .head = T * D, .token = D};
  if (n_.taps > 0 || options_.normalize_queries) {
    float* out = arena.Take(R * T * D);
    ShortConvForwardArgs<float> conv{
        .shape = {.H = R, .T = T, .D = D, .taps = n_.taps, .unit = options_.normalize_queries},
        .x = q,
        .weight = n_.taps > 0 ? weights_.conv_q.data() + in.head * R * n_.taps * D : nullptr,
        .y = {.data = out, .head = T * D, .token = D}};
    if (n_.kept > 0) conv.past = {.data = kept.q, .head = n_.kept * D, .token = D};
    ShortConvForward(conv, 0, R);
    float* rows = arena.Take((n_.kept + T) * D);
    for (int64_t r = 0; r < R && n_.kept > 0; ++r) {
      float* of_head = kept.q + r * n_.kept * D;
      std::copy_n(of_head, n_.kept * D, rows);
      for (int64_t t = std::max<int64_t>(0, T - n_.kept); t < T; ++t)
        CopyRow(q.At(0, r, t), D, rows + (n_.kept + t) * D);
      MoveOn(rows, T, n_.kept, D, of_head);
    }
    q = {.data = out, .head = T * D, .token = D};
  }
  if (n_.Dk == D) return q;
  return {.data = Features(q, R, T, arena), .head = T * n_.Dk, .token = n_.Dk};
}

WindowRows Address::Block(const HeadBlock& in) const {
  const bool turn_back = ByContent(options_) && through_bf16_;
  const Rows<const float> rotated = {.data = in.k, .token = n_.D};
  return {.tokens = in.T,
          .k = ByContent(options_) && !turn_back ? in.plain_k : rotated,
          .v = in.v,
          .back = turn_back ? in.rope : RopeRows()};
}

// Convolved, and with a one behind each if there is a normaliser. `rows` has n_.kept rows before the first token.
const float* Address::Values(int64_t head, const float* rows, int64_t tokens, Arena& arena) const {
  const int64_t D = n_.D, Dv = n_.Dv;
  if (n_.taps == 0 && Dv == D) return rows;
  float* out = arena.Take(tokens * Dv);
  if (n_.taps > 0) {
    ShortConvForward({.shape = {.T = tokens, .D = D, .taps = n_.taps},
                      .x = {.data = rows + n_.kept * D, .token = D},
                      .weight = weights_.conv_v.data() + head * n_.taps * D,
                      .past = {.data = n_.kept > 0 ? rows : nullptr, .token = D},
                      .y = {.data = out, .token = Dv}},
                     0, 1);
  } else {
    for (int64_t i = 0; i < tokens; ++i) CopyRow(rows + i * D, D, out + i * Dv);
  }
  for (int64_t i = 0; i < tokens && Dv > D; ++i) out[i * Dv + D] = 1;
  return out;
}

WrittenRows Address::Written(int64_t head, std::span<const WindowRows> parts, int64_t written, const KeptRows& kept,
                             Arena& arena) const {
  const int64_t D = n_.D;
  int64_t tokens = 0;
  for (const WindowRows& part : parts) tokens += part.tokens;
  // What is kept, and the tokens behind it.
  float* k = arena.Take((n_.kept_keys + tokens) * D);
  float* v = arena.Take((n_.kept + tokens) * D);
  if (n_.kept_keys > 0) std::copy_n(kept.k, n_.kept_keys * D, k);
  if (n_.kept > 0) std::copy_n(kept.v, n_.kept * D, v);
  float *next_k = k + n_.kept_keys * D, *next_v = v + n_.kept * D;
  for (const WindowRows& part : parts) {
    Rotate({.rows = part.k, .T = part.tokens, .D = D, .rope = part.back, .pairing = pairing_, .inverse = true}, next_k);
    for (int64_t i = 0; i < part.tokens; ++i) CopyRow(part.v.At(0, 0, i), D, next_v + i * D);
    next_k += part.tokens * D;
    next_v += part.tokens * D;
  }
  MoveOn(k, written, n_.kept_keys, D, kept.k);
  MoveOn(v, written, n_.kept, D, kept.v);
  // Shifted keys start one row earlier, which is where the convolution's own past ends.
  const float* keys = k + n_.kept * D;
  if (n_.taps > 0 || options_.normalize_keys) {
    float* out = arena.Take(tokens * D);
    ShortConvForward({.shape = {.T = tokens, .D = D, .taps = n_.taps, .unit = options_.normalize_keys},
                      .x = {.data = keys, .token = D},
                      .weight = n_.taps > 0 ? weights_.conv_k.data() + head * n_.taps * D : nullptr,
                      .past = {.data = n_.kept > 0 ? k : nullptr, .token = D},
                      .y = {.data = out, .token = D}},
                     0, 1);
    keys = out;
  }
  if (n_.Dk > D) keys = Features({.data = keys, .token = D}, 1, tokens, arena);
  return {.k = keys, .v = Values(head, v, tokens, arena)};
}

std::vector<int64_t> Address::TurnedBack(int64_t position, int64_t tokens) const {
  if (!ByContent(options_)) return {};
  const int64_t past = std::min(position, window_);
  std::vector<int64_t> positions(static_cast<size_t>(tokens == 1 ? std::min<int64_t>(past, 1) : past));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = position - past + static_cast<int64_t>(i);
  return positions;
}

RopeRows Address::BackFrom(const HeadBlock& in, int64_t first) const {
  if (!ByContent(options_) || in.extra_rope.cos == nullptr) return {};
  return {.cos = in.extra_rope.cos + first * n_.D / 2, .sin = in.extra_rope.sin + first * n_.D / 2};
}

}  // namespace tensorcache::methods
