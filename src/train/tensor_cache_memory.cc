// Tensor Cache's memory. Slots and timescales are virtual heads of one scan: memory m = (g, timescale, slot) reads and
// writes the queries, keys and values of head g with its own decay and write strength.
#include <cmath>

#include "train/memory.h"
#include "train/ops/memory_scan.h"

namespace tensorcache::train {
namespace {

struct Sizes {
  int64_t B, T, G, R, D;  // R query heads a key/value head
  int64_t timescales, slots;
  int64_t Z() const { return timescales * slots; }
};

Tensor UnitLength(const Tensor& x) {
  const Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  return (wide * (wide.square().sum(-1, true) + 1e-12).rsqrt()).to(x.scalar_type());
}

// The router's logits <x, slot key> / (sqrt(D) tau) of unit vectors; x (..., G, N, D), float32 -> (..., G, N, S).
Tensor RouterLogits(const Tensor& x, const Tensor& slot_keys, const TensorCacheConfig& tc) {
  const Tensor keys = UnitLength(slot_keys).transpose(1, 2);  // (G, D, S)
  const double scale = 1 / (std::sqrt(static_cast<double>(x.size(-1))) * tc.router_temperature);
  return at::matmul(UnitLength(x.to(slot_keys.scalar_type())), keys) * scale;
}

// One-hot choices (..., S). In training the choice is drawn (Gumbel), and gradients pass as through the soft choice.
Tensor Choose(const Tensor& logits, bool training) {
  const auto one_hot = [&](const Tensor& x) { return at::zeros_like(logits).scatter(-1, x.argmax(-1, true), 1.0); };
  if (!training) return one_hot(logits);
  const Tensor uniform = at::rand_like(logits).clamp_min(1e-20);
  const Tensor soft = at::softmax(logits - (-uniform.log()).clamp_min(1e-20).log(), -1);
  return one_hot(soft.detach()) + soft - soft.detach();
}

// Which slot each token of the block and of the ring is written to.
struct Routes {
  Tensor block;  // (B, T, G, S)
  Tensor past;   // (B, G, P, S); undefined without a ring
};

Routes RouteByKey(const AttentionParameters& p, const MemoryBlock& block, const ForwardContext& context) {
  const TensorCacheConfig& tc = context.config.cache.tensor_cache;
  Routes routes;
  const Tensor logits = RouterLogits(block.k.unsqueeze(3), p.slot_keys, tc).squeeze(3);  // (B, T, G, S)
  routes.block = Choose(logits, context.options.training);
  if (block.past_k.defined()) {
    routes.past = Choose(RouterLogits(block.past_k, p.slot_keys, tc), context.options.training);
  }
  return routes;
}

// Counting the ring's tokens and then the block's, token j is written in the step of the block's query j + lag - P.
Routes RouteByQuery(const AttentionParameters& p, const MemoryBlock& block, const Sizes& n, int64_t lag,
                    const ForwardContext& context) {
  const Tensor q = block.q.unflatten(2, {n.G, n.R});  // (B, T, G, R, D); the heads of a group vote
  const Tensor logits = RouterLogits(q, p.slot_keys, context.config.cache.tensor_cache).mean(3);
  const Tensor choices = Choose(logits, context.options.training);  // (B, T, G, S), by query
  // The choices of queries first .. first + count - 1; later ones write nothing in this block.
  const auto from = [&](int64_t first, int64_t count) {
    const int64_t there = std::clamp<int64_t>(n.T - first, 0, count);
    const Tensor known = choices.narrow(1, std::min(first, n.T), there);
    return there == count ? known : at::constant_pad_nd(known, {0, 0, 0, 0, 0, count - there});
  };
  Routes routes;
  routes.block = from(lag, n.T);
  if (block.past_k.defined()) {
    const int64_t P = block.past_k.size(2);
    routes.past = from(lag - P, P).transpose(1, 2);
  }
  return routes;
}

// g = log(1 + w (lambda - 1)) and b = eta w of every memory, for routes w (..., G, S) -> (..., G, timescales, S).
Tensor RoutedLogDecay(const Tensor& w, const Tensor& log_lambda) {
  return at::log1p(w.unsqueeze(-2) * at::expm1(log_lambda).unsqueeze(-1));
}
Tensor RoutedStrength(const Tensor& w, const Tensor& eta) { return w.unsqueeze(-2) * eta.unsqueeze(-1); }

// Copies of head g for each of its Z memories: (B, T, G, D) -> (B, T, G Z, D), and of the ring, (B, G, P, D).
Tensor ForEachMemory(const Tensor& x, const Sizes& n) {
  return x.unsqueeze(3).expand({-1, -1, -1, n.Z(), -1}).flatten(2, 3);
}
Tensor PastForEachMemory(const Tensor& x, const Sizes& n) {
  return x.unsqueeze(2).expand({-1, -1, n.Z(), -1, -1}).flatten(1, 2);
}
Tensor QueriesForEachMemory(const Tensor& q, const Sizes& n) {  // (B, T, G R, D) -> (B, T, G Z R, D)
  return q.unflatten(2, {n.G, n.R}).unsqueeze(3).expand({-1, -1, -1, n.Z(), -1, -1}).flatten(2, 4);
}

// The weights pi (B, T, G, 1, S, R, 1) with which queries mix the slots' reads: a softmax over the top k.
Tensor ReadWeights(const AttentionParameters& p, const Tensor& q, const Sizes& n, const TensorCacheConfig& tc) {
  Tensor logits = RouterLogits(q.unflatten(2, {n.G, n.R}), p.slot_keys, tc);  // (B, T, G, R, S)
  if (tc.top_k < tc.slots) {
    const Tensor chosen = std::get<1>(logits.topk(tc.top_k, -1));
    const Tensor hidden = at::ones_like(logits, at::kBool).scatter(-1, chosen, false);
    logits = logits.masked_fill(hidden, -INFINITY);
  }
  return at::softmax(logits, -1).transpose(3, 4).unsqueeze(3).unsqueeze(-1);
}

// Reads of all memories (B, T, M R, Dv) -> (B, T, H, D): mixes slots, normalises, mixes timescales.
Tensor Combine(const AttentionParameters& p, Tensor reads, const Tensor& q, const Sizes& n,
               const TensorCacheConfig& tc) {
  reads = reads.unflatten(2, {n.G, n.timescales, n.slots, n.R});  // (B, T, G, timescales, S, R, Dv)
  reads = n.slots > 1 ? (reads * ReadWeights(p, q, n, tc).to(reads.scalar_type())).sum(4) : reads.squeeze(4);
  if (tc.normalize_reads) {
    reads = reads.narrow(-1, 0, n.D) / reads.narrow(-1, n.D, 1).abs().clamp_min(tc.read_floor);
  }
  reads = n.timescales > 1 ? reads.select(3, 0) + p.alpha.sigmoid().to(reads.scalar_type()) * reads.select(3, 1)
                           : reads.squeeze(3);
  reads = reads.flatten(2, 3);
  return tc.value_scale == 1 ? reads : reads * tc.value_scale;
}

Tensor WithOnes(const Tensor& v) {
  std::vector<int64_t> shape = v.sizes().vec();
  shape.back() = 1;
  return at::cat({v, at::ones(shape, v.options())}, -1);
}

}  // namespace

MemoryResult TensorCacheMemory(const AttentionParameters& p, const MemoryBlock& raw, const ForwardContext& context) {
  const TensorCacheConfig& tc = context.config.cache.tensor_cache;
  const bool chunked = context.options.training && (tc.write == MemoryWrite::kChunkStart ||  //
                                                    tc.write == MemoryWrite::kChunkMean);
  const int64_t lag = chunked || tc.write == MemoryWrite::kInsert ? 0 : context.config.cache.window;
  MemoryBlock block = raw;
  if (lag == 0) block.past_k = block.past_v = Tensor();  // the ring's tokens are written already
  const int64_t G = block.k.size(2);
  const Sizes n = {.B = block.k.size(0),
                   .T = block.k.size(1),
                   .G = G,
                   .R = block.q.size(2) / G,
                   .D = block.k.size(3),
                   .timescales = tc.two_timescale ? 2 : 1,
                   .slots = tc.slots};

  if (tc.normalize_queries) block.q = UnitLength(block.q);
  if (tc.normalize_keys) {
    block.k = UnitLength(block.k);
    if (block.past_k.defined()) block.past_k = UnitLength(block.past_k);
  }
  const Tensor log_lambda = at::log_sigmoid(p.lambda_logit), eta = p.eta_logit.sigmoid();  // (G, timescales)
  MemoryScanInputs scan{.q = block.q,
                        .k = block.k,
                        .v = block.v,
                        .past_k = block.past_k,
                        .past_v = block.past_v,
                        .initial = block.initial,
                        .lag = lag,
                        .rule = tc.rule};
  if (chunked) {
    scan.mode = tc.write == MemoryWrite::kChunkStart ? ScanMode::kChunkStart : ScanMode::kChunkMean;
    scan.chunk = tc.chunk;
  }
  if (tc.normalize_reads) {
    scan.v = WithOnes(scan.v);
    if (scan.past_v.defined()) scan.past_v = WithOnes(scan.past_v);
  }
  if (n.Z() > 1) {
    scan.q = QueriesForEachMemory(scan.q, n);
    scan.k = ForEachMemory(scan.k, n);
    scan.v = ForEachMemory(scan.v, n);
    if (scan.past_k.defined()) {
      scan.past_k = PastForEachMemory(scan.past_k, n);
      scan.past_v = PastForEachMemory(scan.past_v, n);
    }
  }
  if (n.slots > 1) {
    const Routes routes =
        tc.route_by == RouteBy::kKey ? RouteByKey(p, block, context) : RouteByQuery(p, block, n, lag, context);
    scan.log_decay = RoutedLogDecay(routes.block, log_lambda).flatten(2);
    scan.write_strength = RoutedStrength(routes.block, eta).flatten(2);
    if (routes.past.defined()) {
      const Tensor w = routes.past.transpose(1, 2);  // (B, P, G, S)
      scan.past_log_decay = RoutedLogDecay(w, log_lambda).flatten(2).transpose(1, 2).contiguous();
      scan.past_write_strength = RoutedStrength(w, eta).flatten(2).transpose(1, 2).contiguous();
    }
  } else {
    scan.log_decay = log_lambda.flatten();
    scan.write_strength = eta.flatten();
  }
  const MemoryScanOutputs out = MemoryScan(scan, context.options.backend);
  const bool plain = n.Z() == 1 && !tc.normalize_reads && tc.value_scale == 1;
  return {.reads = plain ? out.reads : Combine(p, out.reads, block.q, n, tc), .memory = out.final_state};
}

}  // namespace tensorcache::train
