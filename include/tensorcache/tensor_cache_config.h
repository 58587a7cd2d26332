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

// Whether a head decays, or writes, with the same strength always (the paper), or with one that the written token tells.
enum class MemoryRate { kPerHead, kPerToken };
constexpr auto EnumNames(MemoryRate) {
  return std::to_array<std::pair<MemoryRate, std::string_view>>(
      {{MemoryRate::kPerHead, "per_head"}, {MemoryRate::kPerToken, "per_token"}});
}

// What the memory is addressed by: keys and queries behind rotary embedding, which turn with their distance (the paper), or
// before it, which do not.
enum class MemoryAddress { kRope, kContent };
constexpr auto EnumNames(MemoryAddress) {
  return std::to_array<std::pair<MemoryAddress, std::string_view>>(
      {{MemoryAddress::kRope, "rope"}, {MemoryAddress::kContent, "content"}});
}

// What queries and keys are mapped to before they meet. softmax_pair: [softmax(x), softmax(-x)], twice as wide.
enum class MemoryFeatures { kNone, kSoftmaxPair };
constexpr auto EnumNames(MemoryFeatures) {
  return std::to_array<std::pair<MemoryFeatures, std::string_view>>(
      {{MemoryFeatures::kNone, "none"}, {MemoryFeatures::kSoftmaxPair, "softmax_pair"}});
}

// The norm of each head's read. soft: r / sqrt(mean(r^2) + c^2) with a learned c, which leaves small reads small.
enum class ReadNormKind { kNone, kRms, kSoft };
constexpr auto EnumNames(ReadNormKind) {
  return std::to_array<std::pair<ReadNormKind, std::string_view>>(
      {{ReadNormKind::kNone, "none"}, {ReadNormKind::kRms, "rms"}, {ReadNormKind::kSoft, "soft"}});
}

enum class MemoryGate { kScalar, kPerToken, kChannel };
constexpr auto EnumNames(MemoryGate) {
  return std::to_array<std::pair<MemoryGate, std::string_view>>(
      {{MemoryGate::kScalar, "scalar"}, {MemoryGate::kPerToken, "per_token"}, {MemoryGate::kChannel, "channel"}});
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

// What all options but `layers` start from: the paper's memory, which reads what stood at a distance that it was trained on,
// or one that is addressed by content and reads what followed a key, however long ago.
enum class MemoryDesign { kPaper, kAssociative };
constexpr auto EnumNames(MemoryDesign) {
  return std::to_array<std::pair<MemoryDesign, std::string_view>>(
      {{MemoryDesign::kPaper, "paper"}, {MemoryDesign::kAssociative, "associative"}});
}

// What is written into the memory, when, and how strongly.
struct MemoryWriteOptions {
  WriteRule rule = WriteRule::kOuter;
  MemoryWrite when = MemoryWrite::kEvict;
  int64_t chunk = 32;
  MemoryRate decay = MemoryRate::kPerHead;
  double lambda_init = 0.995;
  bool learn_lambda = true;
  double first_half_life = 0;
  double last_half_life = 0;
  double max_half_life = 0;
  MemoryRate strength = MemoryRate::kPerHead;
  double eta_init = 0.05;
  bool learn_eta = true;
  double value_scale = 1;

  template <class V>
  void Fields(V& v) {
    v("rule", rule,
      "outer: A <- lambda A + eta k^T v; delta writes what A does not know yet, gated_delta what lambda A does not; "
      "wedge: "
      "k^T v - v^T k");
    v("when", when, "evict: when a token leaves the window; insert: on arrival; chunk_*: the paper's training modes");
    v("chunk", chunk, "C, tokens per chunk of the chunk modes");
    v("decay", decay,
      "per_head: lambda is a number per head; per_token: lambda = sigmoid(w x + c), x the written token");
    v("lambda_init", lambda_init, "lambda, decay of the memory per write, at the start of training");
    v("learn_lambda", learn_lambda, "false: lambda stays as it is");
    v("first_half_life", first_half_life,
      "half-life of the first head at the start, in tokens, instead of lambda_init; the others follow in equal ratios. "
      "0: "
      "lambda_init in all heads");
    v("last_half_life", last_half_life, "half-life of the last head at the start");
    v("max_half_life", max_half_life, "no head ever forgets more slowly; 0: no limit");
    v("strength", strength,
      "per_head: eta is a number per head; per_token: eta = sigmoid(w x + c), x the written token");
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
  MemoryAddress by = MemoryAddress::kRope;
  int64_t conv = 0;
  double conv_previous = 0;
  bool shift = false;
  bool normalize_queries = false;
  bool normalize_keys = false;
  MemoryFeatures features = MemoryFeatures::kNone;

  template <class V>
  void Fields(V& v) {
    v("by", by, "rope: keys and queries behind rotary embedding; content: before it, whatever their distance");
    v("conv", conv, "taps of a learned convolution over time of the memory's q, k and v; 0: none");
    v("conv_previous", conv_previous,
      "weight of the token before in the convolved q and k, at the start of training; all other taps start at 0");
    v("shift", shift, "a value is written under the key of the token before it");
    v("normalize_queries", normalize_queries, "memory reads use q / |q|");
    v("normalize_keys", normalize_keys, "memory writes use k / |k|");
    v("features", features, "softmax_pair: q and k become [softmax(x), softmax(-x)], rule outer only");
  }
  template <class V>
  void OldKeys(V& v) {
    FlagFor rope{by, MemoryAddress::kRope, MemoryAddress::kContent};
    v("rope", rope);
  }
  template <class V>
  void Short(V& v) {
    v(by);
  }
};

// What becomes of a read.
struct MemoryReadOptions {
  MemoryGate gate = MemoryGate::kScalar;
  double gate_init = 0;
  bool learn_gate = true;
  ReadNormKind norm = ReadNormKind::kNone;
  bool zero_output = false;
  bool normalize = false;
  double floor = 1;

  template <class V>
  void Fields(V& v) {
    v("gate", gate,
      "scalar: one g per layer; per_token: sigmoid(w x + b); channel: sigmoid(W x + b), for each channel");
    v("gate_init", gate_init, "g (or b), the gate's logit at the start of training");
    v("learn_gate", learn_gate, "false: the gate stays as it is");
    v("norm", norm, "of each head's read: rms: r / sqrt(mean r^2); soft: r / sqrt(mean r^2 + c^2) with a learned c");
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
  MemoryDesign design = MemoryDesign::kPaper;
  MemoryWriteOptions write;
  MemoryAddressOptions address;
  MemoryReadOptions read;
  MemoryRouterOptions router;
  MemoryTimescaleOptions timescales;
  MemoryLayers layers = MemoryLayers::kAll;
  int64_t top_layers = 1;

  // All options as the design has them; which layers have a memory stays.
  void Apply(MemoryDesign wanted);

  // The design comes first: what a file or a command line says of single keys comes after it.
  template <class V>
  void Fields(V& v) {
    const MemoryDesign before = design;
    v("design", design, "paper, or associative: what all groups below start from; single keys override it");
    if (design != before) Apply(design);
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
    FlagFor rope{address.by, MemoryAddress::kRope, MemoryAddress::kContent};
    v("memory_rope", rope);
    v("layers", layers);
    v("top_layers", top_layers);
  }
};

inline void TensorCacheConfig::Apply(MemoryDesign wanted) {
  *this = {.design = wanted, .layers = layers, .top_layers = top_layers};
  if (wanted == MemoryDesign::kPaper) return;
  write.rule = WriteRule::kGatedDelta;
  // At once, so that a pair is found in the same way whether it is still in the window or long out of it.
  write.when = MemoryWrite::kInsert;
  write.strength = MemoryRate::kPerToken;
  write.first_half_life = 1 << 18;
  write.last_half_life = 1 << 24;
  write.eta_init = 0.5;
  address.by = MemoryAddress::kContent;
  address.conv = 4;
  // A value belongs to the token before it. Were both taps 0 at the start, neither would have a gradient without the other:
  // training would have to leave a saddle before it can tell two pairs apart.
  address.conv_previous = 1;
  address.normalize_queries = true;
  address.normalize_keys = true;
  read.norm = ReadNormKind::kSoft;
  read.zero_output = true;
}

}  // namespace tensorcache
