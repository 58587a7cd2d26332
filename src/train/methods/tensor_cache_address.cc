#include "train/methods/tensor_cache_address.h"

#include <algorithm>

#include "train/ops/cost.h"
#include "train/ops/rope.h"
#include "train/ops/short_conv.h"

namespace tensorcache::train {
namespace {

using Sizes = methods::TensorCacheSizes;

// The `count` rows before row `end` of what was kept, (B, heads, count, D) or undefined for zeros, and `rows` (B, N, heads, D)
// behind it.
Tensor Kept(const Tensor& kept, const Tensor& rows, int64_t end, int64_t count) {
  const int64_t fresh = std::min(end, count);
  const Tensor last = rows.narrow(1, end - fresh, fresh).transpose(1, 2);
  if (fresh == count) return last.contiguous();
  const Tensor before =
      kept.defined() ? kept : at::zeros({rows.size(0), rows.size(2), count, rows.size(3)}, rows.options());
  return at::cat({before.narrow(2, fresh, count - fresh), last}, 2);
}

// Rows that lie one token later: row i is what row i - 1 was, row 0 the last that was kept.
Tensor Shifted(const Tensor& kept, const Tensor& rows) {
  Tensor first = at::zeros_like(rows.narrow(1, 0, 1));
  if (kept.defined()) first = kept.narrow(2, kept.size(2) - 1, 1).transpose(1, 2);
  return at::cat({first, rows.narrow(1, 0, rows.size(1) - 1)}, 1);
}

Tensor Features(const Tensor& x) {
  const Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  return at::cat({at::softmax(wide, -1), at::softmax(-wide, -1)}, -1).to(x.scalar_type());
}

}  // namespace

Tensor UnitLength(const Tensor& x) {
  const Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  return (wide * (wide.square().sum(-1, true) + 1e-12).rsqrt()).to(x.scalar_type());
}

MemoryBlock MakeMemoryBlock(const LayerBlock& in, const Sizes& n, int64_t lag, MethodState& state) {
  const MemoryAddressOptions& address = in.place.cache.tensor_cache.address;
  const bool by_content = address.by == MemoryAddress::kContent;
  const Backend backend = in.context.options.backend;
  const AttentionParameters& p = in.parameters;
  const Heads& heads = in.heads;
  // Convolved, of unit length, mapped; `past` is what the convolution keeps.
  const auto map = [&](const Tensor& x, const char* weight, const Tensor& past, bool unit) {
    if (n.taps == 0 && !unit) return x;
    return ShortConv({.x = x, .weight = p.Get(weight), .past = past, .unit = unit}, backend);
  };
  const auto features = [&](const Tensor& x) { return n.Dk > n.D ? Features(x) : x; };

  MemoryBlock block{.lag = lag};
  const Tensor q = by_content ? heads.plain_q : heads.q;
  Tensor& kept_q = state["kept_q"];
  block.q = features(map(q, "conv_q", kept_q, address.normalize_queries));
  if (n.kept > 0) kept_q = Kept(kept_q, q, q.size(1), n.kept);

  // The window's tokens, unless they are written already, and then the block's.
  Tensor k = by_content ? heads.plain_k : heads.k, v = by_content ? heads.plain_v : heads.v;
  const int64_t P = lag > 0 && in.past_k.defined() ? in.past_k.size(2) : 0, T = k.size(1);
  if (P > 0) {
    Tensor past_k = in.past_k.transpose(1, 2);
    if (by_content) past_k = Rope(past_k, in.context.PastRope(P), /*inverse=*/true, backend);
    k = at::cat({past_k, k}, 1);
    v = at::cat({in.past_v.transpose(1, 2), v}, 1);
  }
  Tensor &kept_k = state["kept_k"], &kept_v = state["kept_v"];
  const Tensor before_k = kept_k.defined() && n.kept > 0 ? kept_k.narrow(2, 0, n.kept) : Tensor();
  const Tensor keys = features(map(address.shift ? Shifted(kept_k, k) : k, "conv_k", before_k, address.normalize_keys));
  const Tensor values = map(v, "conv_v", kept_v, /*unit=*/false);
  const int64_t written = std::max<int64_t>(0, P + T - lag);
  if (n.kept_keys > 0) kept_k = Kept(kept_k, k, written, n.kept_keys);
  if (n.kept > 0) kept_v = Kept(kept_v, v, written, n.kept);
  if (P == 0) {
    block.k = keys;
    block.v = values;
  } else {
    block.k = keys.narrow(1, P, T);
    block.v = values.narrow(1, P, T);
    block.past_k = keys.narrow(1, 0, P).transpose(1, 2);
    block.past_v = values.narrow(1, 0, P).transpose(1, 2);
  }
  return block;
}

MemoryRates MakeMemoryRates(const LayerBlock& in, const Sizes& n, int64_t lag, MethodState& state) {
  const Tensor &lambda_logit = in.parameters.Get("lambda_logit"), &eta_logit = in.parameters.Get("eta_logit");
  // What a token adds to the logits, (..., G, gates); decays come first.
  const auto log_decay = [&](const Tensor& gates) {
    const Tensor logit = n.decays > 0 ? lambda_logit + gates.narrow(-1, 0, n.decays) : lambda_logit;
    const Tensor log_lambda = at::log_sigmoid(logit);
    return n.least_decay > 0 ? log_lambda - n.least_decay : log_lambda;
  };
  const auto strength = [&](const Tensor& gates) {
    return (n.strengths > 0 ? eta_logit + gates.narrow(-1, n.decays, n.strengths) : eta_logit).sigmoid();
  };
  // Of the block's own tokens: each token's write is paid for once, however its sequence is cut into blocks.
  const ForwardOptions& options = in.context.options;
  const double cost =
      options.training ? options.write_cost * static_cast<double>(in.x.size(0)) / static_cast<double>(in.place.layers)
                       : 0;
  const auto paid_strength = [&](const Tensor& gates) { return WithCost(strength(gates), cost); };
  if (n.gates() == 0) return {.log_decay = log_decay({}), .strength = paid_strength({})};

  const Tensor& weight = in.parameters.Get("rates_proj.weight");
  const Tensor gates = at::linear(in.x.to(weight.scalar_type()), weight).unflatten(2, {n.G, n.gates()});
  MemoryRates rates{.log_decay = log_decay(gates), .strength = paid_strength(gates)};
  if (lag == 0) return rates;
  Tensor& waiting = state["gates"];  // (B, P, G, gates)
  Tensor all = gates;
  if (waiting.defined()) {
    if (n.decays > 0) rates.past_log_decay = log_decay(waiting);
    if (n.strengths > 0) rates.past_strength = strength(waiting);
    all = at::cat({waiting, gates}, 1);
  }
  const int64_t keep = std::min(lag, all.size(1));
  waiting = all.narrow(1, all.size(1) - keep, keep);
  return rates;
}

}  // namespace tensorcache::train
