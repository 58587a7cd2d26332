// The options of method tensor_cache, in groups. The names are those of the paper.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "tensorcache/choices.h"

namespace tensorcache {

// When a token is written into the memory. The chunk modes are the paper's approximations for training; inference under
// them writes on eviction.
enum class MemoryWrite { kEvict, kInsert, kChunkStart, kChunkMean };
constexpr auto EnumNames(MemoryWrite) {
  return std::to_array<std::pair<MemoryWrite, std::string_view>>({{MemoryWrite::kEvict, "evict"},
                                                                  {MemoryWrite::kInsert, "insert"},
                                                                  {MemoryWrite::kChunkStart, "chunk_start"},
                                                                  {MemoryWrite::kChunkMean, "chunk_mean"}});
}

enum class MemoryGate { kScalar, kPerToken };
constexpr auto EnumNames(MemoryGate) {
  return std::to_array<std::pair<MemoryGate, std::string_view>>(
      {{MemoryGate::kScalar, "scalar"}, {MemoryGate::kPerToken, "per_token"}});
}

enum class RouteBy { kKey, kQuery };
constexpr auto EnumNames(RouteBy) {
  return std::to_array<std::pair<RouteBy, std::string_view>>({{RouteBy::kKey, "key"}, {RouteBy::kQuery, "query"}});
}

enum class MemoryLayers { kAll, kNone, kTop };
constexpr auto EnumNames(MemoryLayers) {
  return std::to_array<std::pair<MemoryLayers, std::string_view>>(
      {{MemoryLayers::kAll, "all"}, {MemoryLayers::kNone, "none"}, {MemoryLayers::kTop, "top"}});
}

// What is written into the memory, when, and how strongly.
struct MemoryWriteOptions {
  WriteRule rule = WriteRule::kOuter;
  MemoryWrite when = MemoryWrite::kEvict;
  int64_t chunk = 32;
  double lambda_init = 0.995;
  bool learn_lambda = true;
  double eta_init = 0.05;
  bool learn_eta = true;
  double value_scale = 1;

  template <class V>
  void Fields(V& v) {
    v("rule", rule, "outer: A <- lambda A + eta k^T v; delta writes what A does not know yet; wedge: k^T v - v^T k");
    v("when", when, "evict: when a token leaves the window; insert: on arrival; chunk_*: the paper's training modes");
    v("chunk", chunk, "C, tokens per chunk of the chunk modes");
    v("lambda_init", lambda_init, "lambda, decay of the memory per write, at the start of training");
    v("learn_lambda", learn_lambda, "false: lambda stays as it is");
    v("eta_init", eta_init, "eta, write rate, at the start of training");
    v("learn_eta", learn_eta, "false: eta stays as it is");
    v("value_scale", value_scale, "memory writes use value_scale * v");
  }
  template <class V>
  void Short(V& v) {
    v(when);
  }
};

// The keys and queries that the memory is addressed by.
struct MemoryAddressOptions {
  bool rope = true;
  bool normalize_queries = false;
  bool normalize_keys = false;

  template <class V>
  void Fields(V& v) {
    v("rope", rope, "false: the memory is addressed by keys and queries before rotary embedding");
    v("normalize_queries", normalize_queries, "memory reads use q / |q|");
    v("normalize_keys", normalize_keys, "memory writes use k / |k|");
  }
};

// What becomes of a read.
struct MemoryReadOptions {
  MemoryGate gate = MemoryGate::kScalar;
  double gate_init = 0;
  bool learn_gate = true;
  bool zero_output = false;
  bool normalize = false;
  double floor = 1;

  template <class V>
  void Fields(V& v) {
    v("gate", gate, "scalar: one g per layer; per_token: sigmoid(w x + b)");
    v("gate_init", gate_init, "g (or b), the gate's logit at the start of training");
    v("learn_gate", learn_gate, "false: the gate stays as it is");
    v("zero_output", zero_output, "W_tc starts at zero: training starts from what window attention computes");
    v("normalize", normalize, "divide each read by max(|q z|, floor), z the memory of ones");
    v("floor", floor, "the least divisor of normalize");
  }
};

// Several memories per head, one of which each token is written to.
struct MemoryRouterOptions {
  int64_t slots = 1;
  int64_t top_k = 1;
  double temperature = 1;
  RouteBy by = RouteBy::kKey;

  template <class V>
  void Fields(V& v) {
    v("slots", slots, "S, memories per head, one of which each token is written to");
    v("top_k", top_k, "slots that a query reads");
    v("temperature", temperature, "tau of the slots' router");
    v("by", by, "what chooses the slot of a write: its key, or the query of the step that writes it");
  }
};

// A second memory that forgets more slowly.
struct MemoryTimescaleOptions {
  bool slow = false;
  double lambda_init = 0.9995;
  double eta_init = 0.05;
  double alpha_init = 0;

  template <class V>
  void Fields(V& v) {
    v("slow", slow, "a second, slow memory: r = r_fast + sigmoid(alpha) r_slow");
    v("lambda_init", lambda_init, "lambda of the slow memory, at the start of training");
    v("eta_init", eta_init, "eta of the slow memory, at the start of training");
    v("alpha_init", alpha_init, "alpha, the slow memory's logit, at the start of training");
  }
};

struct TensorCacheConfig {
  MemoryWriteOptions write;
  MemoryAddressOptions address;
  MemoryReadOptions read;
  MemoryRouterOptions router;
  MemoryTimescaleOptions timescales;
  MemoryLayers layers = MemoryLayers::kAll;
  int64_t top_layers = 1;

  template <class V>
  void Fields(V& v) {
    v("write", write, "what is written into the memory, and when");
    v("address", address, "the keys and queries that the memory is addressed by");
    v("read", read, "what becomes of a read");
    v("router", router, "several memories per head");
    v("timescales", timescales, "a second memory that forgets more slowly");
    v("layers", layers, "which layers have a memory");
    v("top_layers", top_layers, "how many, counted from the output, if layers is top");
  }
  // All options as they were before there were groups, in the order of that time.
  template <class V>
  void OldKeys(V& v) {
    v("rule", write.rule);
    v("write", write.when);
    v("chunk", write.chunk);
    v("lambda_init", write.lambda_init);
    v("learn_lambda", write.learn_lambda);
    v("eta_init", write.eta_init);
    v("learn_eta", write.learn_eta);
    v("gate", read.gate);
    v("gate_init", read.gate_init);
    v("learn_gate", read.learn_gate);
    v("zero_output", read.zero_output);
    v("normalize_queries", address.normalize_queries);
    v("normalize_keys", address.normalize_keys);
    v("value_scale", write.value_scale);
    v("slots", router.slots);
    v("top_k", router.top_k);
    v("router_temperature", router.temperature);
    v("route_by", router.by);
    v("two_timescale", timescales.slow);
    v("slow_lambda_init", timescales.lambda_init);
    v("slow_eta_init", timescales.eta_init);
    v("alpha_init", timescales.alpha_init);
    v("normalize_reads", read.normalize);
    v("read_floor", read.floor);
    v("memory_rope", address.rope);
    v("layers", layers);
    v("top_layers", top_layers);
  }
};

}  // namespace tensorcache
