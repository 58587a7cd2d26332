// The memory of one key/value head at work: a decode step, and a block.
#include <algorithm>
#include <cmath>

#include "core/scalar_math.h"
#include "methods/head.h"
#include "methods/rows_math.h"
#include "methods/tensor_cache/address.h"
#include "methods/tensor_cache/router.h"
#include "methods/tensor_cache/tensor_cache.h"
#include "tensorcache/kernels/memory_scan.h"

namespace tensorcache::methods {
namespace {

constexpr size_t kMemory = 0;  // of the arrays

// The learned numbers of a layer, as the kernels want them.
struct Learned {
  std::vector<float> log_lambda;  // (G, timescales)
  std::vector<float> eta;         // (G, timescales)
  float slow_weight = 0;          // sigmoid(alpha)
  Router router;
};

class TensorCacheLayer : public Layer {
 public:
  TensorCacheLayer(const TwoLevelCacheConfig& config, int64_t layer, Learned learned)
      : tc_(config.cache.tensor_cache),
        n_(PlaceOf(config, layer)),
        address_(config, n_.lag),
        learned_(std::move(learned)) {}

  bool has_memory() const override { return true; }
  std::vector<int64_t> ExtraRope(int64_t position, int64_t tokens) const override {
    return address_.TurnedBack(position, tokens);
  }
  Status Step(const HeadBlock& in, const EvictedPair& evicted, Arena& arena) const override;
  Status Scan(const HeadBlock& in, const PastWindow& past, Arena& arena) const override;

 private:
  float* StateOf(const HeadBlock& in, int64_t z) const { return in.arrays[kMemory] + z * n_.D * n_.Dv; }
  size_t TimescaleOf(const HeadBlock& in, int64_t z) const {
    return static_cast<size_t>(in.head * n_.timescales + z / n_.slots);
  }
  EvictedPair WrittenPair(const HeadBlock& in, const EvictedPair& evicted, Arena& arena) const;
  MemoryScanForwardArgs<float> ScanArgs(const HeadBlock& in, const PastWindow& past, Arena& arena) const;
  std::vector<int64_t> Routes(const HeadBlock& in, const MemoryScanForwardArgs<float>& args, Arena& arena) const;
  void Combine(const HeadBlock& in, const float* all, const float* weights, Arena& arena) const;

  TensorCacheConfig tc_;
  TensorCacheSizes n_;
  Address address_;
  Learned learned_;
};

// From the reads of all memories, (memories, R, T, Dv), to those of the head: mixes slots, normalises, mixes timescales.
// `weights` is null with one slot.
void TensorCacheLayer::Combine(const HeadBlock& in, const float* all, const float* weights, Arena& arena) const {
  float* mixed = arena.Take(n_.Dv);
  for (int64_t row = 0; row < in.R * in.T; ++row) {
    float* read = in.reads.At(0, row / in.T, row % in.T);
    for (int64_t scale = 0; scale < n_.timescales; ++scale) {
      std::fill(mixed, mixed + n_.Dv, 0.0f);
      for (int64_t s = 0; s < n_.slots; ++s) {
        const float weight = weights == nullptr ? 1 : weights[row * n_.slots + s];
        if (weight == 0) continue;
        const float* from = all + ((scale * n_.slots + s) * in.R * in.T + row) * n_.Dv;
        for (int64_t i = 0; i < n_.Dv; ++i) mixed[i] += weight * from[i];
      }
      float factor = (scale == 0 ? 1 : learned_.slow_weight) * static_cast<float>(tc_.write.value_scale);
      if (tc_.read.normalize) factor /= std::max(std::abs(mixed[n_.D]), static_cast<float>(tc_.read.floor));
      for (int64_t i = 0; i < n_.D; ++i) read[i] = (scale == 0 ? 0 : read[i]) + factor * mixed[i];
    }
  }
}

// ----- a step --------------------------------------------------------------------------------------------------------

// The pair that this step writes, as the memory sees it; null: none.
EvictedPair TensorCacheLayer::WrittenPair(const HeadBlock& in, const EvictedPair& evicted, Arena& arena) const {
  EvictedPair pair = evicted;
  if (n_.lag == 0) {  // on arrival
    pair = {.k = address_.BlockKeys(in, arena).data, .v = in.v.data};
  } else if (pair.k != nullptr && address_.copies_keys()) {
    pair.k = address_.PastKeys(in, 1, {.data = evicted.k}, arena);
  }
  if (pair.k != nullptr && n_.Dv > n_.D) pair.v = WithOnes({.data = pair.v}, 1, n_.D, arena);
  return pair;
}

Status TensorCacheLayer::Step(const HeadBlock& in, const EvictedPair& evicted, Arena& arena) const {
  const Rows<const float> q = address_.Queries(in, arena);
  const EvictedPair pair = WrittenPair(in, evicted, arena);
  const Router& router = learned_.router;
  const float* weights = n_.slots > 1 ? router.ReadWeights(in.head, q, in.R, in.T, arena) : nullptr;
  int64_t written = pair.k == nullptr ? -1 : 0;
  if (n_.slots > 1 && written == 0) {
    written =
        router.by_key() ? router.RouteByKey(in.head, pair.k, arena) : router.RouteByQuery(in.head, q, in.R, 0, arena);
  }
  const bool is_final = ReadsAreFinal(tc_, n_);
  float* all = is_final ? nullptr : arena.Take(n_.memories() * in.R * n_.Dv);
  Status diverged;
  for (int64_t z = 0; z < n_.memories(); ++z) {
    const int64_t slot = z % n_.slots;
    const auto reads_slot = [&] {
      for (int64_t r = 0; r < in.R; ++r) {
        if (weights[r * n_.slots + slot] > 0) return true;
      }
      return false;
    };
    const bool reads = n_.slots == 1 || reads_slot();
    if (!reads && slot != written) continue;  // nobody looks at it
    MemoryStepArgs step{.H = in.R, .Dk = n_.D, .Dv = n_.Dv, .rule = tc_.write.rule};
    if (slot == written) {
      step.evicted = {.k = {.data = pair.k},
                      .v = {.data = pair.v},
                      .log_decay = {.data = &learned_.log_lambda[TimescaleOf(in, z)]},
                      .write_strength = {.data = &learned_.eta[TimescaleOf(in, z)]}};
    }
    step.state = {.data = StateOf(in, z), .token = n_.Dv};
    if (reads) {
      step.q = q;
      step.reads = is_final ? in.reads : Rows<float>{.data = all + z * in.R * n_.Dv, .head = n_.Dv};
    }
    const Status status = MemoryStep(step, 0, 1);
    if (diverged.ok()) diverged = status;
  }
  if (!is_final) Combine(in, all, weights, arena);
  return diverged;
}

// ----- a block -------------------------------------------------------------------------------------------------------

// Per token of the window and then of the block: the slot it is written to, if it is written in this block.
std::vector<int64_t> TensorCacheLayer::Routes(const HeadBlock& in, const MemoryScanForwardArgs<float>& args,
                                              Arena& arena) const {
  const MemoryScanShape& shape = args.shape;
  const Router& router = learned_.router;
  std::vector<int64_t> routes(static_cast<size_t>(shape.past + in.T), -1);
  for (int64_t j = 0; j < shape.past + in.T - shape.lag; ++j) {
    const float* k = j < shape.past ? args.past.k.At(0, 0, (args.past.start + j) % args.past.capacity)
                                    : args.writes.k.At(0, 0, j - shape.past);
    routes[static_cast<size_t>(j)] =
        router.by_key() ? router.RouteByKey(in.head, k, arena)
                        : router.RouteByQuery(in.head, args.q, in.R, j + shape.lag - shape.past, arena);
  }
  return routes;
}

// Decays and strengths of every token for slot `slot`: those that are not written to it leave it as it is. Those of the past
// lie as its keys do, token j in row (start + j) % capacity.
void SetRoutedWrites(const std::vector<int64_t>& routes, int64_t slot, float log_lambda, float eta,
                     MemoryScanForwardArgs<float>& args, Arena& arena) {
  const int64_t T = args.shape.T, P = args.shape.past;
  const auto set = [&](MemoryWrites<const float>& writes, int64_t rows, int64_t tokens, const int64_t* routes_of,
                       auto row_of) {
    float* decay = arena.Take(rows);
    float* strength = arena.Take(rows);
    for (int64_t j = 0; j < tokens; ++j) {
      const bool here = routes_of[j] == slot;
      decay[row_of(j)] = here ? log_lambda : 0;
      strength[row_of(j)] = here ? eta : 0;
    }
    writes.log_decay = {.data = decay, .token = 1};
    writes.write_strength = {.data = strength, .token = 1};
  };
  set(args.past, std::max<int64_t>(args.past.capacity, 1), P, routes.data(),
      [&](int64_t j) { return (args.past.start + j) % args.past.capacity; });
  set(args.writes, T, T, routes.data() + P, [](int64_t j) { return j; });
}

// What is the same for all memories of the head. The past is in the order of its tokens (start 0) wherever something of it
// is a copy, since then everything is.
MemoryScanForwardArgs<float> TensorCacheLayer::ScanArgs(const HeadBlock& in, const PastWindow& past,
                                                        Arena& arena) const {
  const int64_t P = n_.lag > 0 ? past.tokens : 0;
  const bool with_one = n_.Dv > n_.D;
  MemoryScanForwardArgs<float> args{
      .shape = {.H = in.R, .T = in.T, .Dk = n_.D, .Dv = n_.Dv, .lag = n_.lag, .past = P, .rule = tc_.write.rule}};
  args.q = address_.Queries(in, arena);
  args.writes.k = address_.BlockKeys(in, arena);
  args.writes.v = in.v;
  if (with_one) args.writes.v = {.data = WithOnes(in.v, in.T, n_.D, arena), .token = n_.Dv};
  args.past.k = past.ring.k;
  args.past.v = past.ring.v;
  args.past.capacity = past.ring.capacity;
  args.past.start = past.ring.start;
  if (P > 0 && (with_one || address_.copies_keys())) {
    const Rows<const float> k = {.data = InOrder(past.ring.k, past, n_.D, arena), .token = n_.D};
    const Rows<const float> v = {.data = InOrder(past.ring.v, past, n_.D, arena), .token = n_.D};
    args.past.k = {.data = address_.PastKeys(in, P, k, arena), .token = n_.D};
    args.past.v = with_one ? Rows<const float>{.data = WithOnes(v, P, n_.D, arena), .token = n_.Dv} : v;
    args.past.capacity = P;
    args.past.start = 0;
  }
  return args;
}

Status TensorCacheLayer::Scan(const HeadBlock& in, const PastWindow& past, Arena& arena) const {
  MemoryScanForwardArgs<float> args = ScanArgs(in, past, arena);
  std::vector<int64_t> routes;
  if (n_.slots > 1) routes = Routes(in, args, arena);
  const bool is_final = ReadsAreFinal(tc_, n_);
  const int64_t reads_size = in.R * in.T * n_.Dv;
  float* all = is_final ? nullptr : arena.Take(n_.memories() * reads_size);
  float* scratch = arena.Take(MemoryScanScratchFloats(args.shape));
  for (int64_t z = 0; z < n_.memories(); ++z) {
    const float *log_lambda = &learned_.log_lambda[TimescaleOf(in, z)], *eta = &learned_.eta[TimescaleOf(in, z)];
    if (n_.slots > 1) {
      SetRoutedWrites(routes, z % n_.slots, *log_lambda, *eta, args, arena);
    } else {
      args.writes.log_decay = args.past.log_decay = {.data = log_lambda};
      args.writes.write_strength = args.past.write_strength = {.data = eta};
    }
    args.initial = {.data = StateOf(in, z), .token = n_.Dv};
    args.final_state = {.data = StateOf(in, z), .token = n_.Dv};
    args.reads = is_final ? in.reads : Rows<float>{.data = all + z * reads_size, .head = in.T * n_.Dv, .token = n_.Dv};
    TC_RETURN_IF_ERROR(MemoryScanForward(args, 0, 1, scratch));
  }
  if (!is_final) {
    Combine(in, all, n_.slots > 1 ? learned_.router.ReadWeights(in.head, args.q, in.R, in.T, arena) : nullptr, arena);
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<const Layer>> MakeTensorCacheLayer(const Method& method, const TwoLevelCacheConfig& config,
                                                          int64_t layer, const LearnedNumbers& numbers) {
  const TensorCacheConfig& tc = config.cache.tensor_cache;
  const LayerPlace place = PlaceOf(config, layer);
  const auto map = [&](const char* name, auto f) -> Result<std::vector<float>> {
    TC_ASSIGN_OR_RETURN(const std::vector<double> values, NumbersOf(TensorOf(method, place, name), numbers));
    std::vector<float> mapped;
    for (const double value : values) {
      if (!std::isfinite(value)) return InvalidArgument(std::string(name) + " has a number that is not finite");
      mapped.push_back(static_cast<float>(f(value)));
    }
    return mapped;
  };
  Learned learned;
  TC_ASSIGN_OR_RETURN(learned.log_lambda, map("lambda_logit", LogSigmoid));
  TC_ASSIGN_OR_RETURN(learned.eta, map("eta_logit", Sigmoid<double>));
  if (tc.timescales.slow) {
    TC_ASSIGN_OR_RETURN(const std::vector<float> alpha, map("alpha", Sigmoid<double>));
    learned.slow_weight = alpha[0];
  }
  if (tc.router.slots > 1) {
    TC_ASSIGN_OR_RETURN(std::vector<float> keys, map("slot_keys", [](double x) { return x; }));
    learned.router = Router(tc.router, config.head_dim, std::move(keys));
  }
  return std::unique_ptr<const Layer>(std::make_unique<TensorCacheLayer>(config, layer, std::move(learned)));
}

}  // namespace tensorcache::methods
