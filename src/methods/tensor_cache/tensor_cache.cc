// Tensor Cache: the last W tokens, and a memory of what the window evicted. README.md has the formulas.
#include "methods/tensor_cache/tensor_cache.h"

#include <fmt/format.h>

#include <cmath>

#include "core/scalar_math.h"
#include "methods/head.h"

namespace tensorcache::methods {

TensorCacheSizes::TensorCacheSizes(const LayerPlace& place)
    : G(place.kv_heads),
      R(place.query_heads / place.kv_heads),
      D(place.head_dim),
      Dv(place.head_dim + (place.cache.tensor_cache.read.normalize ? 1 : 0)),
      timescales(place.cache.tensor_cache.timescales.slow ? 2 : 1),
      slots(place.cache.tensor_cache.router.slots),
      lag(place.cache.tensor_cache.write.when == MemoryWrite::kInsert ? 0 : place.cache.window) {}

bool WritesInChunks(const TensorCacheConfig& config) {
  return config.write.when == MemoryWrite::kChunkStart || config.write.when == MemoryWrite::kChunkMean;
}

bool ReadsAreFinal(const TensorCacheConfig& config, const TensorCacheSizes& sizes) {
  return sizes.memories() == 1 && !config.read.normalize && config.write.value_scale == 1;
}

namespace {

Status CheckOptions(const TensorCacheConfig& tc, int64_t layers) {
  const auto inside = [](const char* key, double value, double low, double high) {
    return CheckInside(fmt::format("cache.tensor_cache.{}", key), value, low, high);
  };
  const auto positive = [](const char* key, int64_t value, int64_t max) {
    return CheckPositive(fmt::format("cache.tensor_cache.{}", key), value, max);
  };
  TC_RETURN_IF_ERROR(inside("write.lambda_init", tc.write.lambda_init, 0, 1));
  TC_RETURN_IF_ERROR(inside("write.eta_init", tc.write.eta_init, 0, 1));
  TC_RETURN_IF_ERROR(inside("write.value_scale", tc.write.value_scale, 0, 1e6));
  TC_RETURN_IF_ERROR(positive("write.chunk", tc.write.chunk, int64_t{1} << 20));
  TC_RETURN_IF_ERROR(inside("read.gate_init", tc.read.gate_init, -100, 100));
  TC_RETURN_IF_ERROR(inside("read.floor", tc.read.floor, 0, 1e6));
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
  if (tc.write.rule == WriteRule::kWedge && tc.read.normalize) {
    return InvalidArgument(fmt::format(
        "{}read.normalize needs a value column of ones, but rule wedge swaps keys and values; use outer or delta", at));
  }
  return OkStatus();
}

// Straight from the logit: 1 - lambda has lost its digits.
double HalfLife(double lambda_logit) { return std::log(2.0) / std::log1p(std::exp(-lambda_logit)); }

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

  double MemoryFlops(const LayerPlace& place) const override {
    if (!HasMemory(place)) return 0;
    const TensorCacheSizes n(place);
    const auto H = static_cast<double>(place.query_heads), G = static_cast<double>(n.G), D = static_cast<double>(n.D);
    const double writes = 2 * G * (place.cache.tensor_cache.write.rule == WriteRule::kOuter ? 1 : 2);
    return static_cast<double>(n.memories()) * D * D * (2 * H + writes);
  }

  std::vector<StateArray> Arrays(const LayerPlace& place) const override {
    if (!HasMemory(place)) return {};
    const TensorCacheSizes n(place);
    return {{.name = "memory", .shape = {n.timescales, n.slots, n.D, n.Dv}}};
  }

  std::vector<LearnedTensor> Tensors(const LayerPlace& place) const override {
    if (!HasMemory(place)) return {};
    const TensorCacheConfig& tc = place.cache.tensor_cache;
    const TensorCacheSizes n(place);
    const bool slow = tc.timescales.slow;
    const auto logits = [&](double fast_value, double slow_value) {
      return slow ? std::vector{Logit(fast_value), Logit(slow_value)} : std::vector{Logit(fast_value)};
    };
    std::vector<LearnedTensor> tensors = {
        {.name = "o_proj.weight",
         .shape = {place.hidden_size, place.query_heads * n.D},
         .role = LearnedTensor::Role::kOutput,
         .random = LearnedTensor::Random::kResidual,
         .random_scale = tc.read.zero_output ? 0.0 : 1.0},
        {.name = "lambda_logit",
         .shape = {n.G, n.timescales},
         .learned = tc.write.learn_lambda,
         .values = logits(tc.write.lambda_init, tc.timescales.lambda_init)},
        {.name = "eta_logit",
         .shape = {n.G, n.timescales},
         .learned = tc.write.learn_eta,
         .values = logits(tc.write.eta_init, tc.timescales.eta_init)},
        {.name = "gate", .shape = {1}, .learned = tc.read.learn_gate, .values = {tc.read.gate_init}}};
    if (tc.read.gate == MemoryGate::kPerToken) {
      tensors.push_back(
          {.name = "gate_proj.weight", .shape = {place.hidden_size}, .learned = tc.read.learn_gate, .values = {0}});
    }
    if (slow) tensors.push_back({.name = "alpha", .shape = {1}, .values = {tc.timescales.alpha_init}});
    if (n.slots > 1) tensors.push_back({.name = "slot_keys", .shape = {n.G, n.slots, n.D}});
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
    return {{.name = "lambda", .digits = 4, .by_timescale = true, .rows = rows("lambda_logit", Sigmoid<double>)},
            {.name = "half-life", .digits = 1, .by_timescale = true, .rows = rows("lambda_logit", HalfLife)},
            {.name = "eta", .digits = 4, .by_timescale = true, .rows = rows("eta_logit", Sigmoid<double>)},
            {.name = "gate", .rows = {{gate.ok() ? Sigmoid((*gate)[0]) : 0}}}};
  }
  std::string FiguresNote(const CacheConfig& cache) const override {
    const TensorCacheConfig& tc = cache.tensor_cache;
    return fmt::format("Half-life: {} until half of a pair is left.{}",
                       tc.router.slots > 1 ? "writes to its slot" : "tokens",
                       tc.read.gate == MemoryGate::kPerToken ? " The gate also depends on the token." : "");
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
