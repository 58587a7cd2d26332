// Tensor Cache: the last W tokens, and a memory of what the window evicted. README.md has the formulas.
#include "methods/tensor_cache/tensor_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/config.h"
#include "core/scalar_math.h"
#include "methods/head.h"

namespace tensorcache::methods {

TensorCacheSizes::TensorCacheSizes(const LayerPlace& place)
    : G(place.kv_heads), R(place.query_heads / place.kv_heads), D(place.head_dim) {
  const TensorCacheConfig& tc = place.cache.tensor_cache;
  Dk = tc.address.features == MemoryFeatures::kSoftmaxPair ? 2 * D : D;
  Dv = D + (tc.read.normalize ? 1 : 0);
  timescales = tc.timescales.slow ? 2 : 1;
  slots = tc.router.slots;
  lag = tc.write.when == MemoryWrite::kInsert ? 0 : place.cache.window;
  taps = tc.address.conv;
  kept = std::max<int64_t>(taps - 1, 0);
  kept_keys = kept + (tc.address.shift ? 1 : 0);
  decays = tc.write.decay == MemoryRate::kPerToken ? timescales : 0;
  strengths = tc.write.strength == MemoryRate::kPerToken ? timescales : 0;
  least_decay = tc.write.max_half_life > 0 ? std::log(2.0) / tc.write.max_half_life : 0;
}

double LogDecay(double logit, const TensorCacheSizes& sizes) { return LogSigmoid(logit) - sizes.least_decay; }

double DecayLogit(double lambda, const TensorCacheSizes& sizes) {
  if (sizes.least_decay == 0) return Logit(lambda);
  const double log_sigmoid = std::log(lambda) + sizes.least_decay;  // negative: Validate
  return log_sigmoid - std::log(-std::expm1(log_sigmoid));
}

bool WritesInChunks(const TensorCacheConfig& config) {
  return config.write.when == MemoryWrite::kChunkStart || config.write.when == MemoryWrite::kChunkMean;
}

bool ReadsAreFinal(const TensorCacheConfig& config, const TensorCacheSizes& sizes) {
  return sizes.memories() == 1 && !config.read.normalize && config.write.value_scale == 1;
}

namespace {

constexpr int64_t kMaxTaps = 16;  // the kernel's

// Half-lives of heads, first to last, and what bounds them.
Status CheckDecays(const MemoryWriteOptions& write) {
  const std::string at = "cache.tensor_cache.write.";
  TC_RETURN_IF_ERROR(CheckInside(at + "lambda_init", write.lambda_init, 0, 1));
  const auto half_life = [&](const char* key, double value) {
    if (value == 0 || (value >= 0.1 && value <= 1e9)) return OkStatus();
    return InvalidArgument(fmt::format("{}{} is {}; it must be 0.1 to 1e9 tokens, or 0", at, key, value));
  };
  TC_RETURN_IF_ERROR(half_life("first_half_life", write.first_half_life));
  TC_RETURN_IF_ERROR(half_life("last_half_life", write.last_half_life));
  TC_RETURN_IF_ERROR(half_life("max_half_life", write.max_half_life));
  if ((write.first_half_life == 0) != (write.last_half_life == 0)) {
    return InvalidArgument(fmt::format("{0}first_half_life is {1} and {0}last_half_life {2}; give both, or none", at,
                                       write.first_half_life, write.last_half_life));
  }
  const double longest = write.first_half_life > 0 ? std::max(write.first_half_life, write.last_half_life)
                                                   : std::log(0.5) / std::log(write.lambda_init);
  if (write.max_half_life > 0 && longest >= write.max_half_life) {
    return InvalidArgument(fmt::format("{}max_half_life is {}, but a head starts with {:.1f}; it must be longer", at,
                                       write.max_half_life, longest));
  }
  return OkStatus();
}

Status CheckOptions(const TensorCacheConfig& tc, int64_t layers) {
  const auto inside = [](const char* key, double value, double low, double high) {
    return CheckInside(fmt::format("cache.tensor_cache.{}", key), value, low, high);
  };
  const auto positive = [](const char* key, int64_t value, int64_t max) {
    return CheckPositive(fmt::format("cache.tensor_cache.{}", key), value, max);
  };
  TC_RETURN_IF_ERROR(CheckDecays(tc.write));
  TC_RETURN_IF_ERROR(inside("write.eta_init", tc.write.eta_init, 0, 1));
  TC_RETURN_IF_ERROR(inside("write.value_scale", tc.write.value_scale, 0, 1e6));
  TC_RETURN_IF_ERROR(positive("write.chunk", tc.write.chunk, int64_t{1} << 20));
  TC_RETURN_IF_ERROR(inside("read.gate_init", tc.read.gate_init, -100, 100));
  TC_RETURN_IF_ERROR(inside("read.floor", tc.read.floor, 0, 1e6));
  if (tc.address.conv < 0 || tc.address.conv > kMaxTaps) {
    return InvalidArgument(
        fmt::format("cache.tensor_cache.address.conv is {}; it must be 0 to {}", tc.address.conv, kMaxTaps));
  }
  TC_RETURN_IF_ERROR(inside("address.conv_previous", tc.address.conv_previous, -100, 100));
  TC_RETURN_IF_ERROR(positive("router.slots", tc.router.slots, 1024));
  TC_RETURN_IF_ERROR(inside("timescales.alpha_init", tc.timescales.alpha_init, -100, 100));
  if (tc.timescales.slow) {
    TC_RETURN_IF_ERROR(inside("timescales.lambda_init", tc.timescales.lambda_init, 0, 1));
    TC_RETURN_IF_ERROR(inside("timescales.eta_init", tc.timescales.eta_init, 0, 1));
  }
  if (tc.router.slots > 1) {
    TC_RETURN_IF_ERROR(inside("router.temperature", tc.router.temperature, 0, 1e6));
  }
  if (tc.layers == MemoryLayers::kTop && (tc.top_layers < 1 || tc.top_layers > layers)) {
    return InvalidArgument(fmt::format(
        "cache.tensor_cache.top_layers is {}, of {} layers; it must be 1 to num_hidden_layers", tc.top_layers, layers));
  }
  return OkStatus();
}

Status CheckCombinations(const TensorCacheConfig& tc) {
  const std::string_view at = "cache.tensor_cache.";
  if (tc.router.top_k < 1 || tc.router.top_k > tc.router.slots) {
    return InvalidArgument(
        fmt::format("{}router.top_k is {}, of {} slots; it must be 1 to slots", at, tc.router.top_k, tc.router.slots));
  }
  if (tc.router.slots > 1 && tc.write.when == MemoryWrite::kChunkMean) {
    return InvalidArgument(fmt::format(
        "{}write.when chunk_mean has one write per chunk, but slots route each token; use another write mode", at));
  }
  if (tc.router.slots > 1 && tc.write.when == MemoryWrite::kChunkStart && tc.router.by == RouteBy::kQuery) {
    return InvalidArgument(fmt::format(
        "{}router.by query means the query of the step that evicts a token; write.when chunk_start evicts none. Use "
        "router.by key, or write.when evict or insert",
        at));
  }
  if (tc.write.rule == WriteRule::kGatedDelta && WritesInChunks(tc)) {
    return InvalidArgument(
        fmt::format("{}write.when {} is the paper's, which has no rule gated_delta; use write.when evict or insert, or "
                    "another rule",
                    at, NameOf(tc.write.when)));
  }
  if (tc.address.features != MemoryFeatures::kNone && tc.write.rule != WriteRule::kOuter) {
    return InvalidArgument(fmt::format("{}address.features {} is for write.rule outer alone, not for {}", at,
                                       NameOf(tc.address.features), NameOf(tc.write.rule)));
  }
  if (tc.write.rule == WriteRule::kWedge && tc.read.normalize) {
    return InvalidArgument(fmt::format(
        "{}read.normalize needs a value column of ones, but rule wedge swaps keys and values; use outer or delta", at));
  }
  return OkStatus();
}

// How the convolutions of queries and keys start, (taps, D).
std::vector<double> FirstTaps(const MemoryAddressOptions& address, const TensorCacheSizes& n) {
  std::vector<double> weights(static_cast<size_t>(n.taps * n.D), 0);
  if (n.taps > 1) std::fill_n(weights.begin() + n.D, n.D, address.conv_previous);
  return weights;
}

// The initial logits of lambda, (G, timescales).
std::vector<double> LambdaLogits(const TensorCacheConfig& tc, const TensorCacheSizes& n) {
  std::vector<double> logits;
  for (int64_t g = 0; g < n.G; ++g) {
    double lambda = tc.write.lambda_init;
    if (tc.write.first_half_life > 0) {
      const double part = n.G == 1 ? 0.5 : static_cast<double>(g) / static_cast<double>(n.G - 1);
      const double first = std::log(tc.write.first_half_life), last = std::log(tc.write.last_half_life);
      lambda = std::exp2(-1 / std::exp(first + part * (last - first)));
    }
    logits.push_back(DecayLogit(lambda, n));
    if (tc.timescales.slow) logits.push_back(DecayLogit(tc.timescales.lambda_init, n));
  }
  return logits;
}

double MeanSigmoid(const std::vector<double>& logits) {
  double sum = 0;
  for (const double logit : logits) sum += Sigmoid(logit);
  return sum / static_cast<double>(logits.size());
}

class TensorCache : public Method {
 public:
  std::string_view name() const override { return "tensor_cache"; }
  std::string_view title() const override { return "Tensor Cache"; }
  std::string_view summary() const override { return "the last `window`, and a memory of what the window evicted"; }

  Status Validate(const CacheConfig& cache, int64_t layers) const override {
    TC_RETURN_IF_ERROR(Method::Validate(cache, layers));
    TC_RETURN_IF_ERROR(CheckOptions(cache.tensor_cache, layers));
    return CheckCombinations(cache.tensor_cache);
  }

  Status ValidateCarriedState(const CacheConfig& cache, int64_t block) const override {
    TC_RETURN_IF_ERROR(Method::ValidateCarriedState(cache, block));
    const TensorCacheConfig& tc = cache.tensor_cache;
    if (!WritesInChunks(tc) || block % tc.write.chunk == 0) return OkStatus();
    return InvalidArgument(fmt::format(
        "train.carry_state needs blocks ({} tokens) to be a multiple of cache.tensor_cache.write.chunk ({})", block,
        tc.write.chunk));
  }

  bool HasMemory(const LayerPlace& place) const override {
    const TensorCacheConfig& tc = place.cache.tensor_cache;
    if (tc.layers == MemoryLayers::kNone) return false;
    return tc.layers == MemoryLayers::kAll || place.layer >= place.layers - tc.top_layers;
  }

  bool MemoryCanBeDropped() const override { return true; }

  int64_t TokenGates(const LayerPlace& place) const override {
    return HasMemory(place) ? TensorCacheSizes(place).gates() : 0;
  }

  double MemoryFlops(const LayerPlace& place) const override {
    if (!HasMemory(place)) return 0;
    const TensorCacheSizes n(place);
    const auto H = static_cast<double>(place.query_heads), G = static_cast<double>(n.G), D = static_cast<double>(n.D);
    const double writes = 2 * G * (place.cache.tensor_cache.write.rule == WriteRule::kOuter ? 1 : 2);
    const double convolutions = 2 * static_cast<double>(n.taps) * D * (H + 2 * G);
    return static_cast<double>(n.memories() * n.Dk) * D * (2 * H + writes) + convolutions;
  }

  std::vector<StateArray> Arrays(const LayerPlace& place) const override {
    if (!HasMemory(place)) return {};
    const TensorCacheSizes n(place);
    std::vector<StateArray> arrays = {{.name = "memory", .shape = {n.timescales, n.slots, n.Dk, n.Dv}}};
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      arrays.push_back({.name = name, .shape = std::move(shape)});
      if (arrays.back().size() == 0) arrays.pop_back();
    };
    add("kept_q", {n.R, n.kept, n.D});  // the last queries
    add("kept_k", {n.kept_keys, n.D});  // the last keys and values that were written
    add("kept_v", {n.kept, n.D});
    add("gates", {n.lag, n.gates()});  // of the window's tokens; token p is in row p % lag
    return arrays;
  }

  std::vector<LearnedTensor> Tensors(const LayerPlace& place) const override {
    if (!HasMemory(place)) return {};
    const TensorCacheConfig& tc = place.cache.tensor_cache;
    const TensorCacheSizes n(place);
    const bool slow = tc.timescales.slow;
    std::vector<double> eta_logits = {Logit(tc.write.eta_init)};
    if (slow) eta_logits.push_back(Logit(tc.timescales.eta_init));
    std::vector<LearnedTensor> tensors = {
        {.name = "o_proj.weight",
         .shape = {place.hidden_size, place.query_heads * n.D},
         .role = LearnedTensor::Role::kOutput,
         .random = LearnedTensor::Random::kResidual,
         .random_scale = tc.read.zero_output ? 0.0 : 1.0},
        {.name = "lambda_logit",
         .shape = {n.G, n.timescales},
         .learned = tc.write.learn_lambda,
         .values = LambdaLogits(tc, n)},
        {.name = "eta_logit", .shape = {n.G, n.timescales}, .learned = tc.write.learn_eta, .values = eta_logits},
        {.name = "gate",
         .shape = {tc.read.gate == MemoryGate::kChannel ? place.query_heads * n.D : 1},
         .learned = tc.read.learn_gate,
         .values = {tc.read.gate_init}}};
    if (tc.read.gate == MemoryGate::kPerToken) {
      tensors.push_back(
          {.name = "gate_proj.weight", .shape = {place.hidden_size}, .learned = tc.read.learn_gate, .values = {0}});
    }
    if (tc.read.gate == MemoryGate::kChannel) {
      tensors.push_back({.name = "gate_proj.weight",
                         .shape = {place.query_heads * n.D, place.hidden_size},
                         .role = LearnedTensor::Role::kFusionInput,
                         .learned = tc.read.learn_gate,
                         .values = {0}});
    }
    if (n.gates() > 0) {
      tensors.push_back({.name = "rates_proj.weight",
                         .shape = {n.G * n.gates(), place.hidden_size},
                         .role = LearnedTensor::Role::kCacheInput,
                         .values = {0}});
    }
    if (n.taps > 0) {
      const std::vector<double> first = FirstTaps(tc.address, n);
      tensors.push_back({.name = "conv_q", .shape = {place.query_heads, n.taps, n.D}, .values = first});
      tensors.push_back({.name = "conv_k", .shape = {n.G, n.taps, n.D}, .values = first});
      tensors.push_back({.name = "conv_v", .shape = {n.G, n.taps, n.D}, .values = {0}});
    }
    if (tc.read.norm != ReadNormKind::kNone) {
      tensors.push_back({.name = "read_norm.weight", .shape = {place.query_heads, n.D}, .values = {1}});
    }
    if (tc.read.norm == ReadNormKind::kSoft) {
      tensors.push_back({.name = "read_norm.floor", .shape = {place.query_heads}, .values = {1}});
    }
    if (slow) tensors.push_back({.name = "alpha", .shape = {1}, .values = {tc.timescales.alpha_init}});
    if (n.slots > 1) tensors.push_back({.name = "slot_keys", .shape = {n.G, n.slots, n.Dk}});
    return tensors;
  }

  std::vector<LearnedFigure> Figures(const LayerPlace& place, const LearnedNumbers& numbers) const override {
    if (!HasMemory(place)) return {};
    const TensorCacheSizes n(place);
    // One row a timescale of (G, timescales) numbers.
    const auto rows = [&](const char* name, auto f) {
      std::vector<std::vector<double>> by_timescale(static_cast<size_t>(n.timescales));
      const auto values = NumbersOf(TensorOf(*this, place, name), numbers);
      for (size_t i = 0; values.ok() && i < values->size(); ++i) {
        by_timescale[i % by_timescale.size()].push_back(f((*values)[i]));
      }
      return by_timescale;
    };
    const auto gate = NumbersOf(TensorOf(*this, place, "gate"), numbers);
    const auto lambda = [&](double logit) { return std::exp(LogDecay(logit, n)); };
    const auto half_life = [&](double logit) { return -std::log(2.0) / LogDecay(logit, n); };
    return {{.name = "lambda", .digits = 4, .by_timescale = true, .rows = rows("lambda_logit", lambda)},
            {.name = "half-life", .digits = 1, .by_timescale = true, .rows = rows("lambda_logit", half_life)},
            {.name = "eta", .digits = 4, .by_timescale = true, .rows = rows("eta_logit", Sigmoid<double>)},
            {.name = "gate", .rows = {{gate.ok() ? MeanSigmoid(*gate) : 0}}}};
  }
  std::string FiguresNote(const CacheConfig& cache) const override {
    const TensorCacheConfig& tc = cache.tensor_cache;
    const char* by_token = " depends on the token, too: this is without it.";
    return fmt::format(
        "Half-life: {} until half of a pair is left.{}{}{}{}{}{}",
        tc.router.slots > 1 ? "writes to its slot" : "tokens", tc.write.decay == MemoryRate::kPerToken ? " lambda" : "",
        tc.write.decay == MemoryRate::kPerToken ? by_token : "",
        tc.write.strength == MemoryRate::kPerToken ? " eta" : "",
        tc.write.strength == MemoryRate::kPerToken ? by_token : "",
        tc.read.gate != MemoryGate::kScalar ? " The gate" : "", tc.read.gate != MemoryGate::kScalar ? by_token : "");
  }

  Result<std::unique_ptr<const Layer>> MakeLayer(const TwoLevelCacheConfig& config, int64_t layer,
                                                 const LearnedNumbers& numbers) const override {
    if (!HasMemory(PlaceOf(config, layer))) return Method::MakeLayer(config, layer, numbers);
    return MakeTensorCacheLayer(*this, config, layer, numbers);
  }
  Result<std::unique_ptr<const Fusion>> MakeFusion(const LayerPlace& place,
                                                   const LearnedNumbers& numbers) const override {
    if (!HasMemory(place)) return Method::MakeFusion(place, numbers);
    return MakeTensorCacheFusion(*this, place, numbers);
  }
};

}  // namespace

const Method& TensorCacheMethod() {
  static const TensorCache method;
  return method;
}

}  // namespace tensorcache::methods
