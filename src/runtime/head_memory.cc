// Tensor Cache's memory, with all its options, and the choice between the methods.
#include "runtime/head_memory.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/memory_scan/memory_scan.h"
#include "runtime/head_memory_parts.h"
#include "runtime/rows_math.h"

namespace tensorcache::runtime {
namespace {

void Copy(const float* from, int64_t n, float* to) { std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float)); }

// ----- what the memory sees of queries, keys and values ------------------------------------------------------------

// (R, T, D)
Rows<const float> MemoryQueries(const HeadBlock& in, const HeadRows& rows, const Sizes& n, Arena& arena) {
  const TensorCacheConfig& tc = in.spec.config.cache.tensor_cache;
  const Rows<const float> q =
      tc.memory_rope ? Rows<const float>{.data = rows.q, .head = n.T * n.D, .token = n.D} : rows.plain_q;
  if (!tc.normalize_queries) return q;
  float* unit = arena.Take(n.R * n.T * n.D);
  for (int64_t r = 0; r < n.R; ++r) {
    for (int64_t t = 0; t < n.T; ++t) UnitLength(q.At(0, r, t), n.D, unit + (r * n.T + t) * n.D);
  }
  return {.data = unit, .head = n.T * n.D, .token = n.D};
}

// `tokens` rows of keys: turned back by `back` if given, of unit length if asked for. Row i is at `row(i)`.
template <class RowOf>
const float* CopyKeys(const HeadBlock& in, int64_t tokens, RopeRows back, const RowOf& row, Arena& arena) {
  const int64_t D = in.spec.D();
  float* out = arena.Take(tokens * D);
  for (int64_t i = 0; i < tokens; ++i) Copy(row(i), D, out + i * D);
  if (back.cos != nullptr) {
    const Rows<float> rows = {.data = out, .token = D};
    ApplyRope({.in = {.data = out, .token = D},
               .out = rows,
               .tokens = tokens,
               .dims = D,
               .rotary_dims = D,
               .cos = {.data = back.cos, .token = D / 2},
               .sin = {.data = back.sin, .token = D / 2},
               .pairing = in.spec.config.rope.pairing,
               .inverse = true});
  }
  if (in.spec.config.cache.tensor_cache.normalize_keys) {
    for (int64_t i = 0; i < tokens; ++i) UnitLength(out + i * D, D, out + i * D);
  }
  return out;
}

// The block's keys, (T, D). Those that pass through a bf16 window are what the window makes of them.
Rows<const float> BlockKeys(const HeadBlock& in, const HeadRows& rows, Arena& arena) {
  const TensorCacheConfig& tc = in.spec.config.cache.tensor_cache;
  const int64_t D = in.spec.D();
  const Rows<const float> rotated = {.data = rows.k, .token = D};
  const bool through_bf16 = in.spec.config.ring == RingType::kBf16 && in.spec.Lag() > 0;
  const bool turn_back = !tc.memory_rope && through_bf16;
  const Rows<const float> keys = tc.memory_rope || turn_back ? rotated : rows.plain_k;
  if (!turn_back && !tc.normalize_keys) return keys;
  const float* copy = CopyKeys(
      in, in.block.tokens, turn_back ? in.rope : RopeRows(), [&](int64_t i) { return keys.At(0, 0, i); }, arena);
  return {.data = copy, .token = D};
}

bool KeysAreCopied(const HeadBlock& in) {
  const TensorCacheConfig& tc = in.spec.config.cache.tensor_cache;
  return !tc.memory_rope || tc.normalize_keys;
}
RopeRows TurnBackPast(const HeadBlock& in) {
  return in.spec.config.cache.tensor_cache.memory_rope ? RopeRows() : in.past;
}

// `tokens` rows of values, followed by a one if reads are normalised.
template <class RowOf>
const float* CopyValuesWithOne(int64_t tokens, int64_t D, const RowOf& row, Arena& arena) {
  float* out = arena.Take(tokens * (D + 1));
  for (int64_t i = 0; i < tokens; ++i) {
    Copy(row(i), D, out + i * (D + 1));
    out[i * (D + 1) + D] = 1;
  }
  return out;
}

// ----- slots ---------------------------------------------------------------------------------------------------------

// <x, slot key> / (sqrt(D) tau) of unit vectors, for each slot.
void RouterLogits(const HeadBlock& in, const Sizes& n, const float* x, float* logits) {
  const double scale = 1 / (std::sqrt(static_cast<double>(n.D)) * in.spec.config.cache.tensor_cache.router_temperature);
  const float norm = 1 / std::sqrt(Dot(x, x, n.D) + 1e-12f);
  const float* keys = in.memory.slot_keys.data() + in.head * n.slots * n.D;
  for (int64_t s = 0; s < n.slots; ++s) {
    logits[s] = Dot(x, keys + s * n.D, n.D) * norm * static_cast<float>(scale);
  }
}

int64_t Largest(const float* x, int64_t n) { return std::max_element(x, x + n) - x; }

// The slot that a token with this key is written to.
int64_t RouteByKey(const HeadBlock& in, const Sizes& n, const float* k, Arena& arena) {
  float* logits = arena.Take(n.slots);
  RouterLogits(in, n, k, logits);
  return Largest(logits, n.slots);
}

// The slot that the step of query t writes to: the heads of the group vote.
int64_t RouteByQuery(const HeadBlock& in, const Sizes& n, const Rows<const float>& q, int64_t t, Arena& arena) {
  float* sum = arena.Take(n.slots);
  float* logits = arena.Take(n.slots);
  std::fill(sum, sum + n.slots, 0.0f);
  for (int64_t r = 0; r < n.R; ++r) {
    RouterLogits(in, n, q.At(0, r, t), logits);
    for (int64_t s = 0; s < n.slots; ++s) sum[s] += logits[s];
  }
  return Largest(sum, n.slots);
}

// Softmax over the top k slots, 0 for the others: (R, T, slots).
const float* ReadWeights(const HeadBlock& in, const Sizes& n, const Rows<const float>& q, Arena& arena) {
  const int64_t top_k = in.spec.config.cache.tensor_cache.top_k;
  float* weights = arena.Take(n.R * n.T * n.slots);
  std::vector<float> sorted(static_cast<size_t>(n.slots));
  for (int64_t row = 0; row < n.R * n.T; ++row) {
    float* w = weights + row * n.slots;
    RouterLogits(in, n, q.At(0, row / n.T, row % n.T), w);
    sorted.assign(w, w + n.slots);
    std::nth_element(sorted.begin(), sorted.begin() + (top_k - 1), sorted.end(), std::greater<>());
    const float least = sorted[static_cast<size_t>(top_k - 1)], best = *std::max_element(w, w + n.slots);
    int64_t left = top_k - std::count_if(w, w + n.slots, [&](float x) { return x > least; });  // for those that tie
    float sum = 0;
    for (int64_t s = 0; s < n.slots; ++s) {
      const bool chosen = w[s] > least || (w[s] == least && left-- > 0);
      w[s] = chosen ? std::exp(w[s] - best) : 0;
      sum += w[s];
    }
    for (int64_t s = 0; s < n.slots; ++s) w[s] /= sum;
  }
  return weights;
}

// ----- from the reads of all memories to the read of the head ------------------------------------------------------

bool ReadsAreFinal(const HeadBlock& in, const Sizes& n) {
  const TensorCacheConfig& tc = in.spec.config.cache.tensor_cache;
  return n.timescales * n.slots == 1 && !tc.normalize_reads && tc.value_scale == 1;
}

// all (memories, R, T, Dv): mixes slots, normalises, mixes timescales. `weights` is null with one slot.
void Combine(const HeadBlock& in, const Sizes& n, const float* all, const float* weights, Arena& arena) {
  const TensorCacheConfig& tc = in.spec.config.cache.tensor_cache;
  const Rows<float> out = ReadRows(in, arena);
  float* mixed = arena.Take(n.Dv);
  for (int64_t row = 0; row < n.R * n.T; ++row) {
    float* read = out.At(0, row / n.T, row % n.T);
    for (int64_t scale = 0; scale < n.timescales; ++scale) {
      std::fill(mixed, mixed + n.Dv, 0.0f);
      for (int64_t s = 0; s < n.slots; ++s) {
        const float weight = weights == nullptr ? 1 : weights[row * n.slots + s];
        if (weight == 0) continue;
        const float* from = all + ((scale * n.slots + s) * n.R * n.T + row) * n.Dv;
        for (int64_t i = 0; i < n.Dv; ++i) mixed[i] += weight * from[i];
      }
      float factor = (scale == 0 ? 1 : in.memory.slow_weight) * static_cast<float>(tc.value_scale);
      if (tc.normalize_reads) factor /= std::max(std::abs(mixed[n.D]), static_cast<float>(tc.read_floor));
      for (int64_t i = 0; i < n.D; ++i) read[i] = (scale == 0 ? 0 : read[i]) + factor * mixed[i];
    }
  }
}

// ----- steps and blocks ----------------------------------------------------------------------------------------------

// The pair that this step writes, as the memory sees it; null: none.
EvictedPair WrittenPair(const HeadBlock& in, const HeadRows& rows, const EvictedPair& evicted, Arena& arena) {
  const bool on_arrival = in.spec.Lag() == 0;
  EvictedPair pair = evicted;
  if (on_arrival) pair = {.k = BlockKeys(in, rows, arena).data, .v = rows.v.data};
  if (pair.k == nullptr) return pair;
  if (!on_arrival && KeysAreCopied(in)) {
    pair.k = CopyKeys(in, 1, TurnBackPast(in), [&](int64_t) { return evicted.k; }, arena);
  }
  if (in.spec.Dv() > in.spec.D()) {
    pair.v = CopyValuesWithOne(1, in.spec.D(), [v = pair.v](int64_t) { return v; }, arena);
  }
  return pair;
}

void StepTensorCache(const HeadBlock& in, const HeadRows& rows, const EvictedPair& evicted, Arena& arena) {
  const Sizes n(in);
  const TensorCacheConfig& tc = in.spec.config.cache.tensor_cache;
  const Rows<const float> q = MemoryQueries(in, rows, n, arena);
  const EvictedPair pair = WrittenPair(in, rows, evicted, arena);
  const float* weights = n.slots > 1 ? ReadWeights(in, n, q, arena) : nullptr;
  int64_t written = pair.k == nullptr ? -1 : 0;
  if (n.slots > 1 && written == 0) {
    written = tc.route_by == RouteBy::kKey ? RouteByKey(in, n, pair.k, arena) : RouteByQuery(in, n, q, 0, arena);
  }
  const bool is_final = ReadsAreFinal(in, n);
  float* all = is_final ? nullptr : arena.Take(n.timescales * n.slots * n.R * n.Dv);
  for (int64_t z = 0; z < n.timescales * n.slots; ++z) {
    const int64_t slot = z % n.slots;
    const auto at = static_cast<size_t>(in.head * n.timescales + z / n.slots);
    const auto reads_slot = [&] {
      for (int64_t r = 0; r < n.R; ++r) {
        if (weights[r * n.slots + slot] > 0) return true;
      }
      return false;
    };
    const bool reads = n.slots == 1 || reads_slot();
    if (!reads && slot != written) continue;  // nobody looks at it
    MemoryStepArgs step{.H = n.R, .Dk = n.D, .Dv = n.Dv, .rule = tc.rule};
    if (slot == written) {
      step.evicted = {.k = {.data = pair.k},
                      .v = {.data = pair.v},
                      .log_decay = {.data = &in.memory.log_lambda[at]},
                      .write_strength = {.data = &in.memory.eta[at]}};
    }
    step.state = {.data = StateOf(in, n, z), .token = n.Dv};
    if (reads) {
      step.q = q;
      step.reads = is_final ? ReadRows(in, arena) : Rows<float>{.data = all + z * n.R * n.Dv, .head = n.Dv};
    }
    MemoryStep(step, 0, 1);
  }
  if (!is_final) Combine(in, n, all, weights, arena);
}

// Per token of the window and then of the block: the slot it is written to, if it is written in this block.
std::vector<int64_t> Routes(const HeadBlock& in, const Sizes& n, const MemoryScanShape& shape,
                            const Rows<const float>& q, const MemoryScanForwardArgs<float>& args, Arena& arena) {
  const bool by_key = in.spec.config.cache.tensor_cache.route_by == RouteBy::kKey;
  std::vector<int64_t> routes(static_cast<size_t>(shape.past + n.T), -1);
  for (int64_t j = 0; j < shape.past + n.T - shape.lag; ++j) {
    const float* k = j < shape.past ? args.past.k.At(0, 0, (args.past.start + j) % args.past.capacity)
                                    : args.writes.k.At(0, 0, j - shape.past);
    routes[static_cast<size_t>(j)] =
        by_key ? RouteByKey(in, n, k, arena) : RouteByQuery(in, n, q, j + shape.lag - shape.past, arena);
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
MemoryScanForwardArgs<float> ScanArgs(const HeadBlock& in, const HeadRows& rows, const KeyValueRing<float>& past,
                                      int64_t past_tokens, const Sizes& n, Arena& arena) {
  const TensorCacheConfig& tc = in.spec.config.cache.tensor_cache;
  MemoryScanForwardArgs<float> args{.shape = {.H = n.R,
                                              .T = n.T,
                                              .Dk = n.D,
                                              .Dv = n.Dv,
                                              .lag = in.spec.Lag(),
                                              .past = in.spec.Lag() > 0 ? past_tokens : 0,
                                              .rule = tc.rule}};
  args.q = MemoryQueries(in, rows, n, arena);
  args.writes.k = BlockKeys(in, rows, arena);
  args.writes.v = rows.v;
  const int64_t P = args.shape.past;
  const auto past_row = [&](const Rows<const float>& x) {
    return [&x, &past](int64_t i) { return x.At(0, 0, (past.start + i) % past.capacity); };
  };
  args.past.k = past.k;
  args.past.v = past.v;
  args.past.capacity = past.capacity;
  args.past.start = past.start;
  const bool with_one = n.Dv > n.D;
  if (with_one) {
    const Rows<const float> v = rows.v;
    args.writes.v = {
        .data = CopyValuesWithOne(n.T, n.D, [&v](int64_t i) { return v.At(0, 0, i); }, arena), .token = n.Dv};
  }
  if (P > 0 && (with_one || KeysAreCopied(in))) {
    args.past.k = {.data = CopyKeys(in, P, TurnBackPast(in), past_row(past.k), arena), .token = n.D};
    if (with_one) {
      args.past.v = {.data = CopyValuesWithOne(P, n.D, past_row(past.v), arena), .token = n.Dv};
    } else {
      float* v = arena.Take(P * n.D);
      for (int64_t i = 0; i < P; ++i) Copy(past_row(past.v)(i), n.D, v + i * n.D);
      args.past.v = {.data = v, .token = n.D};
    }
    args.past.capacity = P;
    args.past.start = 0;
  }
  return args;
}

Status ScanTensorCache(const HeadBlock& in, const HeadRows& rows, const KeyValueRing<float>& past, int64_t past_tokens,
                       Arena& arena) {
  const Sizes n(in);
  MemoryScanForwardArgs<float> args = ScanArgs(in, rows, past, past_tokens, n, arena);
  const Rows<const float> q = args.q;
  std::vector<int64_t> routes;
  if (n.slots > 1) routes = Routes(in, n, args.shape, q, args, arena);
  const bool is_final = ReadsAreFinal(in, n);
  float* all = is_final ? nullptr : arena.Take(n.timescales * n.slots * n.R * n.T * n.Dv);
  float* scratch = arena.Take(MemoryScanScratchFloats(args.shape));
  for (int64_t z = 0; z < n.timescales * n.slots; ++z) {
    const auto at = static_cast<size_t>(in.head * n.timescales + z / n.slots);
    const float *log_lambda = &in.memory.log_lambda[at], *eta = &in.memory.eta[at];
    if (n.slots > 1) {
      SetRoutedWrites(routes, z % n.slots, *log_lambda, *eta, args, arena);
    } else {
      args.writes.log_decay = args.past.log_decay = {.data = log_lambda};
      args.writes.write_strength = args.past.write_strength = {.data = eta};
    }
    float* state = StateOf(in, n, z);
    args.initial = {.data = state, .token = n.Dv};
    args.final_state = {.data = state, .token = n.Dv};
    args.reads = is_final ? ReadRows(in, arena)
                          : Rows<float>{.data = all + z * n.R * n.T * n.Dv, .head = n.T * n.Dv, .token = n.Dv};
    TC_RETURN_IF_ERROR(MemoryScanForward(args, 0, 1, scratch));
  }
  if (!is_final) Combine(in, n, all, n.slots > 1 ? ReadWeights(in, n, q, arena) : nullptr, arena);
  return OkStatus();
}

}  // namespace

void StepMemory(const HeadBlock& in, const HeadRows& rows, const EvictedPair& evicted, Arena& arena) {
  if (in.memory.present) {
    StepTensorCache(in, rows, evicted, arena);
  } else {
    (void)AdvanceInfini(in, rows, arena);  // single steps report no divergence
  }
}

Status ScanMemory(const HeadBlock& in, const HeadRows& rows, const KeyValueRing<float>& past, int64_t past_tokens,
                  Arena& arena) {
  return in.memory.present ? ScanTensorCache(in, rows, past, past_tokens, arena) : AdvanceInfini(in, rows, arena);
}

}  // namespace tensorcache::runtime
