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
#include "tensorcache/kernels/read_norm.h"

namespace tensorcache::methods {
namespace {

// The learned numbers of a layer, as the kernels want them.
struct Learned {
  std::vector<float> lambda_logit, eta_logit;  // (G, timescales)
  std::vector<float> log_lambda, eta;          // what they are where no token changes them
  float slow_weight = 0;                       // sigmoid(alpha)
  Router router;
  AddressWeights address;
  std::vector<float> norm_weight;  // (H, D); empty: reads are not normed
  std::vector<float> norm_floor;   // (H); empty: 0
};

// Log-decays and strengths of tokens in the order of their writes, for one timescale; `stride` 0: all the same.
struct Rates {
  const float* log_decay = nullptr;
  const float* strength = nullptr;
  int64_t stride = 0;
};

class TensorCacheLayer : public Layer {
 public:
  TensorCacheLayer(const TwoLevelCacheConfig& config, int64_t layer, Learned learned)
      : tc_(config.cache.tensor_cache),
        n_(PlaceOf(config, layer)),
        address_(config, n_, std::move(learned.address)),
        learned_(std::move(learned)) {}

  bool has_memory() const override { return true; }
  std::vector<int64_t> ExtraRope(int64_t position, int64_t tokens) const override {
    return address_.TurnedBack(position, tokens);
  }
  Status Step(const HeadBlock& in, const EvictedPair& evicted, Arena& arena) const override;
  Status Scan(const HeadBlock& in, const PastWindow& past, Arena& arena) const override;

 private:
  // What the head keeps, by name.
  struct State {
    float* memory = nullptr;  // (timescales, slots, Dk, Dv)
    KeptRows kept;
    float* gates = nullptr;  // (lag, gates)
  };
  State StateOf(const HeadBlock& in) const;
  float* MemoryOf(const State& state, int64_t z) const { return state.memory + z * n_.Dk * n_.Dv; }
  size_t RateOf(const HeadBlock& in, int64_t timescale) const {
    return static_cast<size_t>(in.head * n_.timescales + timescale);
  }
  void SetRate(const HeadBlock& in, int64_t timescale, const float* gates, float* log_decay, float* strength) const;
  std::vector<Rates> RatesOf(const HeadBlock& in, const float* gates, int64_t tokens, Arena& arena) const;
  const float* GatesInOrder(const HeadBlock& in, const State& state, int64_t past, Arena& arena) const;
  void KeepGates(const HeadBlock& in, const State& state) const;
  const float* WrittenGates(const HeadBlock& in, const State& state) const;

  WrittenRows WrittenPair(const HeadBlock& in, const EvictedPair& evicted, const State& state, Arena& arena) const;
  MemoryScanForwardArgs<float> ScanArgs(const HeadBlock& in, const PastWindow& past, const State& state,
                                        Arena& arena) const;
  std::vector<int64_t> Routes(const HeadBlock& in, const MemoryScanForwardArgs<float>& args, Arena& arena) const;
  void Combine(const HeadBlock& in, const float* all, const float* weights, Arena& arena) const;
  void NormReads(const HeadBlock& in) const;

  TensorCacheConfig tc_;
  TensorCacheSizes n_;
  Address address_;
  Learned learned_;
};

// In the order of Method::Arrays.
TensorCacheLayer::State TensorCacheLayer::StateOf(const HeadBlock& in) const {
  size_t next = 0;
  const auto take = [&](int64_t size) { return size > 0 ? in.arrays[next++] : nullptr; };
  State state;
  state.memory = take(1);
  state.kept.q = take(n_.kept);
  state.kept.k = take(n_.kept_keys);
  state.kept.v = take(n_.kept);
  state.gates = take(n_.lag * n_.gates());
  return state;
}

void TensorCacheLayer::NormReads(const HeadBlock& in) const {
  if (learned_.norm_weight.empty()) return;
  const auto first = static_cast<size_t>(in.head * in.R);
  ReadNormForward({.shape = {.H = in.R, .T = in.T, .D = n_.D},
                   .x = {.data = in.reads.data, .head = in.reads.head, .token = in.reads.token},
                   .gamma = &learned_.norm_weight[first * static_cast<size_t>(n_.D)],
                   .c = learned_.norm_floor.empty() ? nullptr : &learned_.norm_floor[first],
                   .y = in.reads},
                  0, in.R);
}

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

// ----- decays and strengths ------------------------------------------------------------------------------------------

// Those of a token whose gates are given.
void TensorCacheLayer::SetRate(const HeadBlock& in, int64_t timescale, const float* gates, float* log_decay,
                               float* strength) const {
  const size_t at = RateOf(in, timescale);
  *log_decay = n_.decays == 0 ? learned_.log_lambda[at]
                              : static_cast<float>(LogDecay(learned_.lambda_logit[at] + gates[timescale], n_));
  *strength = n_.strengths == 0 ? learned_.eta[at] : Sigmoid(learned_.eta_logit[at] + gates[n_.decays + timescale]);
}

// `gates` (tokens, gates) dense; null if they do not matter.
std::vector<Rates> TensorCacheLayer::RatesOf(const HeadBlock& in, const float* gates, int64_t tokens,
                                             Arena& arena) const {
  std::vector<Rates> rates;
  for (int64_t timescale = 0; timescale < n_.timescales; ++timescale) {
    const size_t at = RateOf(in, timescale);
    rates.push_back({.log_decay = &learned_.log_lambda[at], .strength = &learned_.eta[at]});
    if (n_.gates() == 0) continue;
    float *log_decay = arena.Take(tokens), *strength = arena.Take(tokens);
    for (int64_t i = 0; i < tokens; ++i) {
      SetRate(in, timescale, gates + i * n_.gates(), log_decay + i, strength + i);
    }
    rates.back() = {.log_decay = log_decay, .strength = strength, .stride = 1};
  }
  return rates;
}

// Gates of the window's last `past` tokens and then of the block's: (past + T, gates) dense.
const float* TensorCacheLayer::GatesInOrder(const HeadBlock& in, const State& state, int64_t past, Arena& arena) const {
  const int64_t n = n_.gates();
  if (n == 0) return nullptr;
  float* out = arena.Take((past + in.T) * n);
  for (int64_t i = 0; i < past; ++i) CopyRow(state.gates + (in.position - past + i) % n_.lag * n, n, out + i * n);
  for (int64_t t = 0; t < in.T; ++t) CopyRow(in.gates.At(0, 0, t), n, out + (past + t) * n);
  return out;
}

// They wait for their token's turn to be written.
void TensorCacheLayer::KeepGates(const HeadBlock& in, const State& state) const {
  if (state.gates == nullptr) return;
  for (int64_t t = std::max<int64_t>(0, in.T - n_.lag); t < in.T; ++t) {
    CopyRow(in.gates.At(0, 0, t), n_.gates(), state.gates + (in.position + t) % n_.lag * n_.gates());
  }
}

// Those of the token that a step writes; null if gates do not matter.
const float* TensorCacheLayer::WrittenGates(const HeadBlock& in, const State& state) const {
  if (n_.gates() == 0) return nullptr;
  return n_.lag == 0 ? in.gates.data : state.gates + in.position % n_.lag * n_.gates();
}

// ----- a step --------------------------------------------------------------------------------------------------------

// The pair that this step writes, as the memory sees it; null: none.
WrittenRows TensorCacheLayer::WrittenPair(const HeadBlock& in, const EvictedPair& evicted, const State& state,
                                          Arena& arena) const {
  WindowRows token;
  if (n_.lag == 0) {  // on arrival
    token = address_.Block(in);
  } else if (evicted.k != nullptr) {
    token = {.tokens = 1, .k = {.data = evicted.k}, .v = {.data = evicted.v}, .back = address_.BackFrom(in, 0)};
  } else {
    return {};
  }
  if (address_.in_place()) return {.k = token.k.data, .v = token.v.data};
  return address_.Written(in.head, std::span(&token, 1), 1, state.kept, arena);
}

Status TensorCacheLayer::Step(const HeadBlock& in, const EvictedPair& evicted, Arena& arena) const {
  const State state = StateOf(in);
  const Rows<const float> q = address_.Queries(in, state.kept, arena);
  const WrittenRows pair = WrittenPair(in, evicted, state, arena);
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
    MemoryStepArgs step{.H = in.R, .Dk = n_.Dk, .Dv = n_.Dv, .rule = tc_.write.rule};
    float log_decay = 0, strength = 0;
    if (slot == written) {
      SetRate(in, z / n_.slots, WrittenGates(in, state), &log_decay, &strength);
      step.evicted = {.k = {.data = pair.k},
                      .v = {.data = pair.v},
                      .log_decay = {.data = &log_decay},
                      .write_strength = {.data = &strength}};
    }
    step.state = {.data = MemoryOf(state, z), .token = n_.Dv};
    if (reads) {
      step.q = q;
      step.reads = is_final ? in.reads : Rows<float>{.data = all + z * in.R * n_.Dv, .head = n_.Dv};
    }
    const Status status = MemoryStep(step, 0, 1);
    if (diverged.ok()) diverged = status;
  }
  KeepGates(in, state);
  if (!is_final) Combine(in, all, weights, arena);
  NormReads(in);
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

// The rates of `rates` for slot `slot`: tokens that are not written to it leave it as it is.
Rates Routed(const Rates& rates, const std::vector<int64_t>& routes, int64_t slot, Arena& arena) {
  float *log_decay = arena.Take(std::ssize(routes)), *strength = arena.Take(std::ssize(routes));
  for (int64_t j = 0; j < std::ssize(routes); ++j) {
    const bool here = routes[static_cast<size_t>(j)] == slot;
    log_decay[j] = here ? rates.log_decay[j * rates.stride] : 0;
    strength[j] = here ? rates.strength[j * rates.stride] : 0;
  }
  return {.log_decay = log_decay, .strength = strength, .stride = 1};
}

void SetRates(const Rates& rates, MemoryScanForwardArgs<float>& args) {
  const int64_t past = args.shape.past;
  args.past.log_decay = {.data = rates.log_decay, .token = rates.stride};
  args.past.write_strength = {.data = rates.strength, .token = rates.stride};
  args.writes.log_decay = {.data = rates.log_decay + past * rates.stride, .token = rates.stride};
  args.writes.write_strength = {.data = rates.strength + past * rates.stride, .token = rates.stride};
}

// What is the same for all memories of the head. But for what is written in place, with rates that are all the same, the past
// is in the order of its tokens (start 0).
MemoryScanForwardArgs<float> TensorCacheLayer::ScanArgs(const HeadBlock& in, const PastWindow& past, const State& state,
                                                        Arena& arena) const {
  const int64_t P = n_.lag > 0 ? past.tokens : 0;
  MemoryScanForwardArgs<float> args{
      .shape = {.H = in.R, .T = in.T, .Dk = n_.Dk, .Dv = n_.Dv, .lag = n_.lag, .past = P, .rule = tc_.write.rule}};
  args.q = address_.Queries(in, state.kept, arena);
  const WindowRows block = address_.Block(in);
  if (address_.in_place() && n_.slots == 1 && n_.gates() == 0) {
    args.writes.k = block.k;
    args.writes.v = block.v;
    args.past.k = past.ring.k;
    args.past.v = past.ring.v;
    args.past.capacity = past.ring.capacity;
    args.past.start = past.ring.start;
    return args;
  }
  // The window in two parts: its ring may wrap around.
  const int64_t first = std::min(P, past.ring.capacity - past.ring.start);
  const auto part = [&](int64_t row, int64_t begin, int64_t tokens) {
    return WindowRows{.tokens = tokens,
                      .k = {.data = past.ring.k.data + row * past.ring.k.token, .token = past.ring.k.token},
                      .v = {.data = past.ring.v.data + row * past.ring.v.token, .token = past.ring.v.token},
                      .back = address_.BackFrom(in, begin)};
  };
  std::vector<WindowRows> parts;
  if (first > 0) parts.push_back(part(past.ring.start, 0, first));
  if (P > first) parts.push_back(part(0, first, P - first));
  parts.push_back(block);
  const WrittenRows all = address_.Written(in.head, parts, std::max<int64_t>(0, P + in.T - n_.lag), state.kept, arena);
  args.past.k = {.data = all.k, .token = n_.Dk};
  args.past.v = {.data = all.v, .token = n_.Dv};
  args.past.capacity = std::max<int64_t>(P, 1);
  args.writes.k = {.data = all.k + P * n_.Dk, .token = n_.Dk};
  args.writes.v = {.data = all.v + P * n_.Dv, .token = n_.Dv};
  return args;
}

Status TensorCacheLayer::Scan(const HeadBlock& in, const PastWindow& past, Arena& arena) const {
  const State state = StateOf(in);
  MemoryScanForwardArgs<float> args = ScanArgs(in, past, state, arena);
  const int64_t P = args.shape.past;
  const std::vector<Rates> rates = RatesOf(in, GatesInOrder(in, state, P, arena), P + in.T, arena);
  std::vector<int64_t> routes;
  if (n_.slots > 1) routes = Routes(in, args, arena);
  const bool is_final = ReadsAreFinal(tc_, n_);
  const int64_t reads_size = in.R * in.T * n_.Dv;
  float* all = is_final ? nullptr : arena.Take(n_.memories() * reads_size);
  float* scratch = arena.Take(MemoryScanScratchFloats(args.shape));
  for (int64_t z = 0; z < n_.memories(); ++z) {
    const Rates& of_timescale = rates[static_cast<size_t>(z / n_.slots)];
    SetRates(n_.slots > 1 ? Routed(of_timescale, routes, z % n_.slots, arena) : of_timescale, args);
    args.initial = {.data = MemoryOf(state, z), .token = n_.Dv};
    args.final_state = {.data = MemoryOf(state, z), .token = n_.Dv};
    args.reads = is_final ? in.reads : Rows<float>{.data = all + z * reads_size, .head = in.T * n_.Dv, .token = n_.Dv};
    TC_RETURN_IF_ERROR(MemoryScanForward(args, 0, 1, scratch));
  }
  KeepGates(in, state);
  if (!is_final) {
    Combine(in, all, n_.slots > 1 ? learned_.router.ReadWeights(in.head, args.q, in.R, in.T, arena) : nullptr, arena);
  }
  NormReads(in);
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
  const auto same = [](double x) { return x; };
  const TensorCacheSizes n(place);
  Learned learned;
  TC_ASSIGN_OR_RETURN(learned.lambda_logit, map("lambda_logit", same));
  TC_ASSIGN_OR_RETURN(learned.log_lambda, map("lambda_logit", [&](double x) { return LogDecay(x, n); }));
  TC_ASSIGN_OR_RETURN(learned.eta_logit, map("eta_logit", same));
  TC_ASSIGN_OR_RETURN(learned.eta, map("eta_logit", Sigmoid<double>));
  if (n.taps > 0) {
    TC_ASSIGN_OR_RETURN(learned.address.conv_q, map("conv_q", same));
    TC_ASSIGN_OR_RETURN(learned.address.conv_k, map("conv_k", same));
    TC_ASSIGN_OR_RETURN(learned.address.conv_v, map("conv_v", same));
  }
  if (tc.read.norm != ReadNormKind::kNone) {
    TC_ASSIGN_OR_RETURN(learned.norm_weight, map("read_norm.weight", same));
  }
  if (tc.read.norm == ReadNormKind::kSoft) {
    TC_ASSIGN_OR_RETURN(learned.norm_floor, map("read_norm.floor", same));
  }
  if (tc.timescales.slow) {
    TC_ASSIGN_OR_RETURN(const std::vector<float> alpha, map("alpha", Sigmoid<double>));
    learned.slow_weight = alpha[0];
  }
  if (tc.router.slots > 1) {
    TC_ASSIGN_OR_RETURN(std::vector<float> keys, map("slot_keys", same));
    learned.router = Router(tc.router, n.Dk, std::move(keys));
  }
  return std::unique_ptr<const Layer>(std::make_unique<TensorCacheLayer>(config, layer, std::move(learned)));
}

}  // namespace tensorcache::methods
