// Tensor Cache's memory of what the window evicted, with gradients. Slots and timescales are virtual heads of one scan: memory
// m = (g, timescale, slot) reads and writes the queries, keys and values of head g with its own decay and write strength.
#include "methods/tensor_cache/tensor_cache.h"

#include <algorithm>
#include <cmath>

#include "train/methods/tensor_cache_address.h"
#include "train/ops/memory_scan.h"
#include "train/ops/read_norm.h"

namespace tensorcache::train {
namespace {

using Sizes = methods::TensorCacheSizes;

// The router's logits <x, slot key> / (sqrt(D) tau) of unit vectors; x (..., G, N, D), float32 -> (..., G, N, S).
Tensor RouterLogits(const Tensor& x, const Tensor& slot_keys, const MemoryRouterOptions& router) {
  const Tensor keys = UnitLength(slot_keys).transpose(1, 2);  // (G, D, S)
  const double scale = 1 / (std::sqrt(static_cast<double>(x.size(-1))) * router.temperature);
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

// Which slot each token of the block and of the window is written to.
struct Routes {
  Tensor block;  // (B, T, G, S)
  Tensor past;   // (B, G, P, S); undefined without a window
};

Routes RouteByKey(const LayerBlock& in, const MemoryBlock& block) {
  const MemoryRouterOptions& router = in.place.cache.tensor_cache.router;
  const Tensor& slot_keys = in.parameters.Get("slot_keys");
  const bool training = in.context.options.training;
  Routes routes;
  const Tensor logits = RouterLogits(block.k.unsqueeze(3), slot_keys, router).squeeze(3);  // (B, T, G, S)
  routes.block = Choose(logits, training);
  if (block.past_k.defined()) routes.past = Choose(RouterLogits(block.past_k, slot_keys, router), training);
  return routes;
}

// Counting the window's tokens and then the block's, token j is written in the step of the block's query j + lag - P.
Routes RouteByQuery(const LayerBlock& in, const MemoryBlock& block, const Sizes& n) {
  const int64_t T = block.q.size(1);
  const Tensor q = block.q.unflatten(2, {n.G, n.R});  // (B, T, G, R, D); the heads of a group vote
  const Tensor logits = RouterLogits(q, in.parameters.Get("slot_keys"), in.place.cache.tensor_cache.router).mean(3);
  const Tensor choices = Choose(logits, in.context.options.training);  // (B, T, G, S), by query
  // The choices of queries first .. first + count - 1; later ones write nothing in this block.
  const auto from = [&](int64_t first, int64_t count) {
    const int64_t there = std::clamp<int64_t>(T - first, 0, count);
    const Tensor known = choices.narrow(1, std::min(first, T), there);
    return there == count ? known : at::constant_pad_nd(known, {0, 0, 0, 0, 0, count - there});
  };
  Routes routes;
  routes.block = from(block.lag, T);
  if (block.past_k.defined()) {
    const int64_t P = block.past_k.size(2);
    routes.past = from(block.lag - P, P).transpose(1, 2);
  }
  return routes;
}

// g = log(1 + w (lambda - 1)) and b = eta w of every memory, for routes w (..., G, S) -> (..., G, timescales, S).
Tensor RoutedLogDecay(const Tensor& w, const Tensor& log_lambda) {
  return at::log1p(w.unsqueeze(-2) * at::expm1(log_lambda).unsqueeze(-1));
}
Tensor RoutedStrength(const Tensor& w, const Tensor& eta) { return w.unsqueeze(-2) * eta.unsqueeze(-1); }

// Copies of head g for each of its Z memories: (B, T, G, D) -> (B, T, G Z, D), and of the window, (B, G, P, D).
Tensor ForEachMemory(const Tensor& x, const Sizes& n) {
  return x.unsqueeze(3).expand({-1, -1, -1, n.memories(), -1}).flatten(2, 3);
}
Tensor PastForEachMemory(const Tensor& x, const Sizes& n) {
  return x.unsqueeze(2).expand({-1, -1, n.memories(), -1, -1}).flatten(1, 2);
}
Tensor QueriesForEachMemory(const Tensor& q, const Sizes& n) {  // (B, T, G R, D) -> (B, T, G Z R, D)
  return q.unflatten(2, {n.G, n.R}).unsqueeze(3).expand({-1, -1, -1, n.memories(), -1, -1}).flatten(2, 4);
}

// The weights pi (B, T, G, 1, S, R, 1) with which queries mix the slots' reads: a softmax over the top k.
Tensor ReadWeights(const LayerBlock& in, const Tensor& q, const Sizes& n) {
  const MemoryRouterOptions& router = in.place.cache.tensor_cache.router;
  Tensor logits = RouterLogits(q.unflatten(2, {n.G, n.R}), in.parameters.Get("slot_keys"), router);  // (B, T, G, R, S)
  if (router.top_k < router.slots) {
    const Tensor chosen = std::get<1>(logits.topk(router.top_k, -1));
    const Tensor hidden = at::ones_like(logits, at::kBool).scatter(-1, chosen, false);
    logits = logits.masked_fill(hidden, -INFINITY);
  }
  return at::softmax(logits, -1).transpose(3, 4).unsqueeze(3).unsqueeze(-1);
}

// Reads of all memories (B, T, M R, Dv) -> (B, T, H, D): mixes slots, normalises, mixes timescales.
Tensor Combine(const LayerBlock& in, Tensor reads, const Tensor& q, const Sizes& n) {
  const TensorCacheConfig& tc = in.place.cache.tensor_cache;
  reads = reads.unflatten(2, {n.G, n.timescales, n.slots, n.R});  // (B, T, G, timescales, S, R, Dv)
  reads = n.slots > 1 ? (reads * ReadWeights(in, q, n).to(reads.scalar_type())).sum(4) : reads.squeeze(4);
  if (tc.read.normalize) {
    reads = reads.narrow(-1, 0, n.D) / reads.narrow(-1, n.D, 1).abs().clamp_min(tc.read.floor);
  }
  if (n.timescales > 1) {
    const Tensor slow_weight = in.parameters.Get("alpha").sigmoid().to(reads.scalar_type());
    reads = reads.select(3, 0) + slow_weight * reads.select(3, 1);
  } else {
    reads = reads.squeeze(3);
  }
  reads = reads.flatten(2, 3);
  return tc.write.value_scale == 1 ? reads : reads * tc.write.value_scale;
}

Tensor WithOnes(const Tensor& v) {
  std::vector<int64_t> shape = v.sizes().vec();
  shape.back() = 1;
  return at::cat({v, at::ones(shape, v.options())}, -1);
}

// Decays and strengths of all memories, per token where tokens are routed or have their own.
void SetWrites(const LayerBlock& in, const MemoryBlock& block, const MemoryRates& rates, const Sizes& n,
               MemoryScanInputs& scan) {
  // (G, timescales) or (B, T, G, timescales) to what the scan wants: (M) or (B, T, M), of the past (B, M, P).
  const auto of_memories = [](const Tensor& x) { return x.dim() == 2 ? x.flatten() : x.flatten(2); };
  const auto of_past = [](const Tensor& x) { return x.flatten(2).transpose(1, 2).contiguous(); };
  if (n.slots == 1) {
    scan.log_decay = of_memories(rates.log_decay);
    scan.write_strength = of_memories(rates.strength);
    if (rates.past_log_decay.defined()) scan.past_log_decay = of_past(rates.past_log_decay);
    if (rates.past_strength.defined()) scan.past_write_strength = of_past(rates.past_strength);
    return;
  }
  const Routes routes = in.place.cache.tensor_cache.router.by == RouteBy::kKey ? RouteByKey(in, block)  //
                                                                               : RouteByQuery(in, block, n);
  scan.log_decay = RoutedLogDecay(routes.block, rates.log_decay).flatten(2);
  scan.write_strength = RoutedStrength(routes.block, rates.strength).flatten(2);
  if (routes.past.defined()) {
    const Tensor w = routes.past.transpose(1, 2);  // (B, P, G, S)
    const auto or_all = [](const Tensor& past, const Tensor& all) { return past.defined() ? past : all; };
    scan.past_log_decay = of_past(RoutedLogDecay(w, or_all(rates.past_log_decay, rates.log_decay)));
    scan.past_write_strength = of_past(RoutedStrength(w, or_all(rates.past_strength, rates.strength)));
  }
}

// State: memory (B, M, Dk, Dv) float32, M = G x timescales x slots; what the convolutions keep, and the gates of the window's
// tokens.
class TensorCache : public TrainMethod {
 public:
  bool NeedsPlainHeads(const methods::LayerPlace& place) const override {
    return place.cache.tensor_cache.address.by == MemoryAddress::kContent &&
           methods::MethodOf(place.cache).HasMemory(place);
  }

  Tensor Remember(const LayerBlock& in, MethodState& state) const override {
    const TensorCacheConfig& tc = in.place.cache.tensor_cache;
    const Sizes n(in.place);
    const bool chunked = in.context.options.training && methods::WritesInChunks(tc);
    const int64_t lag = chunked ? 0 : n.lag;
    const MemoryBlock block = MakeMemoryBlock(in, n, lag, state);
    Tensor& memory = state["memory"];
    MemoryScanInputs scan{.q = block.q,
                          .k = block.k,
                          .v = block.v,
                          .past_k = block.past_k,
                          .past_v = block.past_v,
                          .initial = memory,
                          .lag = block.lag,
                          .rule = tc.write.rule};
    if (chunked) {
      scan.mode = tc.write.when == MemoryWrite::kChunkStart ? ScanMode::kChunkStart : ScanMode::kChunkMean;
      scan.chunk = tc.write.chunk;
    }
    if (n.Dv > n.D) {
      scan.v = WithOnes(scan.v);
      if (scan.past_v.defined()) scan.past_v = WithOnes(scan.past_v);
    }
    if (n.memories() > 1) {
      scan.q = QueriesForEachMemory(scan.q, n);
      scan.k = ForEachMemory(scan.k, n);
      scan.v = ForEachMemory(scan.v, n);
      if (scan.past_k.defined()) {
        scan.past_k = PastForEachMemory(scan.past_k, n);
        scan.past_v = PastForEachMemory(scan.past_v, n);
      }
    }
    SetWrites(in, block, MakeMemoryRates(in, n, lag, state), n, scan);
    const MemoryScanOutputs out = MemoryScan(scan, in.context.options.backend);
    memory = out.final_state;
    Tensor reads = methods::ReadsAreFinal(tc, n) ? out.reads : Combine(in, out.reads, block.q, n);
    if (tc.read.norm == ReadNormKind::kNone) return reads;
    return ReadNorm(reads, in.parameters.Get("read_norm.weight"), in.parameters.Get("read_norm.floor"),
                    in.context.options.backend);
  }

  // W_o local + gate W_tc reads
  Tensor Output(const LayerBlock& in, const Tensor& local, const Tensor& reads) const override {
    const Tensor gate = Gate(in), flat = reads.flatten(2);
    const Tensor& weight = in.parameters.Get("o_proj.weight");
    const Tensor remembered = gate.dim() > 1 ? Linear(flat * gate.to(flat.scalar_type()), weight)  // per token
                                             : Linear(flat, gate * weight);
    return OutProjection(in.parameters, local) + remembered;
  }

  LayerMetrics Metrics(const LayerBlock& in, const MethodState& state) const override {
    const at::NoGradGuard no_grad;
    MethodState none;
    const MemoryRates rates = MakeMemoryRates(in, Sizes(in.place), /*lag=*/0, none);
    // Means over tokens of what depends on them.
    const auto of_head = [](const Tensor& x) { return Values(x.dim() == 2 ? x : x.mean({0, 1})); };
    return {.learned = {{"gate", {Gate(in).mean().item<double>()}},
                        {"lambda", of_head(rates.log_decay.exp())},
                        {"eta", of_head(rates.strength)}},
            .memory_norm = RootMeanSquareNorm(state.at("memory"))};
  }

 private:
  // (1), or (B, T, 1) per token, or (B, T, H D) per token and channel
  static Tensor Gate(const LayerBlock& in) {
    const Tensor &weight = in.parameters.Get("gate_proj.weight"), &logit = in.parameters.Get("gate");
    if (!weight.defined()) return logit.sigmoid();
    if (weight.dim() == 2) return (Linear(in.x, weight) + logit.to(in.x.scalar_type())).sigmoid();
    return (at::matmul(in.x.to(at::kFloat), weight).unsqueeze(-1) + logit).sigmoid();
  }
};

}  // namespace

const TrainMethod& TensorCacheTrainMethod() {
  static const TensorCache method;
  return method;
}

}  // namespace tensorcache::train
