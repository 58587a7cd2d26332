#include "runtime/cache_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/rows_math.h"

namespace tensorcache::runtime {
namespace {

constexpr int64_t kFirstFullCapacity = 256;
constexpr double kMaxRingNumbers = 1LL << 42;

Status CheckSizes(const TwoLevelCacheConfig& c) {
  if (c.layers < 1 || c.layers > 4096)
    return InvalidArgument(fmt::format("layers is {}; it must be 1 to 4096", c.layers));
  if (c.kv_heads < 1 || c.kv_heads > 65536 || c.query_heads < 1 || c.query_heads > 65536 ||
      c.query_heads % c.kv_heads != 0) {
    return InvalidArgument(fmt::format("query_heads is {} and kv_heads {}; the first must be a multiple of the second",
                                       c.query_heads, c.kv_heads));
  }
  if (c.head_dim < 2 || c.head_dim > kMaxRotaryDims || c.head_dim % 2 != 0) {
    return InvalidArgument(fmt::format("head_dim is {}; it must be even, 2 to {}", c.head_dim, kMaxRotaryDims));
  }
  TC_RETURN_IF_ERROR(ValidateCacheConfig(c.cache, c.layers));
  const double numbers = static_cast<double>(c.cache.window) * static_cast<double>(c.kv_heads * c.head_dim);
  if (c.cache.method != CacheMethod::kFull && numbers > kMaxRingNumbers) {
    return InvalidArgument(
        fmt::format("a window of {} tokens of {} heads is more than any machine holds; take a smaller "
                    "window, or method full, which grows with the text",
                    c.cache.window, c.kv_heads));
  }
  if (c.rope.enabled) return OkStatus();
  const bool unrotates = (c.cache.method == CacheMethod::kTensorCache && !c.cache.tensor_cache.memory_rope) ||
                         (c.cache.method == CacheMethod::kInfini && !c.cache.infini.memory_rope);
  if (unrotates) return InvalidArgument("memory_rope false asks for unrotated keys, but rope is not enabled");
  return OkStatus();
}

Status CheckSize(const char* name, const std::vector<float>& values, int64_t size) {
  if (static_cast<int64_t>(values.size()) == size) return OkStatus();
  return InvalidArgument(fmt::format("{} has {} numbers; this cache needs {}", name, values.size(), size));
}

double LogSigmoid(double x) { return -std::log1p(std::exp(-x)); }

Result<MemorySpec> MakeMemorySpec(const CacheSpec& spec, const MemoryParameters& p) {
  const TensorCacheConfig& tc = spec.config.cache.tensor_cache;
  const int64_t timescales = spec.Timescales();
  const auto fill = [&](const std::vector<float>& logits, double fast, double slow, auto from_logit, auto from_value) {
    std::vector<float> out;
    for (int64_t i = 0; i < spec.G() * timescales; ++i) {
      const double initial = i % timescales == 0 ? fast : slow;
      out.push_back(static_cast<float>(
          logits.empty() ? from_value(initial) : from_logit(static_cast<double>(logits[static_cast<size_t>(i)]))));
    }
    return out;
  };
  if (!p.lambda_logit.empty()) TC_RETURN_IF_ERROR(CheckSize("lambda_logit", p.lambda_logit, spec.G() * timescales));
  if (!p.eta_logit.empty()) TC_RETURN_IF_ERROR(CheckSize("eta_logit", p.eta_logit, spec.G() * timescales));
  MemorySpec memory{.present = true};
  memory.log_lambda = fill(p.lambda_logit, tc.lambda_init, tc.slow_lambda_init, LogSigmoid,
                           [](double lambda) { return std::log(lambda); });
  memory.eta = fill(p.eta_logit, tc.eta_init, tc.slow_eta_init, Sigmoid<double>, [](double eta) { return eta; });
  if (tc.slots > 1) {
    TC_RETURN_IF_ERROR(CheckSize("slot_keys", p.slot_keys, spec.G() * tc.slots * spec.D()));
    memory.slot_keys = p.slot_keys;
    for (size_t i = 0; i < memory.slot_keys.size(); i += static_cast<size_t>(spec.D())) {
      UnitLength(&memory.slot_keys[i], spec.D(), &memory.slot_keys[i]);
    }
  }
  if (tc.two_timescale) {
    if (!p.alpha.empty()) TC_RETURN_IF_ERROR(CheckSize("alpha", p.alpha, 1));
    memory.slow_weight = static_cast<float>(Sigmoid(p.alpha.empty() ? tc.alpha_init : static_cast<double>(p.alpha[0])));
  }
  return memory;
}

void CopyBytes(const Buffer& from, const Buffer& to) {
  if (from.bytes() > 0) std::memcpy(to.data(), from.data(), static_cast<size_t>(from.bytes()));
}

}  // namespace

Result<CacheSpec> MakeCacheSpec(const TwoLevelCacheConfig& config, std::vector<MemoryParameters> memories) {
  TC_RETURN_IF_ERROR(CheckSizes(config));
  CacheSpec spec{.config = config};
  if (config.rope.enabled) {
    const RopeConfig& rope = config.rope;
    const double base = rope.ntk_factor == 1 ? rope.theta : NtkAwareBase(rope.theta, rope.ntk_factor, config.head_dim);
    TC_ASSIGN_OR_RETURN(spec.frequencies, MakeRopeFrequencies(config.head_dim, base, rope.scaling));
  }
  if (!memories.empty() && static_cast<int64_t>(memories.size()) != config.layers) {
    return InvalidArgument(
        fmt::format("memory parameters of {} layers were given; the cache has {}", memories.size(), config.layers));
  }
  memories.resize(static_cast<size_t>(config.layers));
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    MemorySpec memory;
    if (config.cache.HasTensorCache(layer, config.layers)) {
      TC_ASSIGN_OR_RETURN(memory, MakeMemorySpec(spec, memories[static_cast<size_t>(layer)]));
    }
    spec.memories.push_back(std::move(memory));
  }
  return spec;
}

LayerArrays::LayerArrays(const CacheSpec& spec, int64_t layer)
    : capacity(spec.IsFull() ? kFirstFullCapacity : spec.config.cache.window) {
  const int64_t G = spec.G(), D = spec.D(), number = static_cast<int64_t>(sizeof(float));
  k = Buffer(G * capacity * D * spec.RingBytes());
  v = Buffer(G * capacity * D * spec.RingBytes());
  sink_k = Buffer(G * spec.Sinks() * D * number);
  sink_v = Buffer(G * spec.Sinks() * D * number);
  if (spec.HasMemory(layer)) memory = Buffer(G * spec.Memories() * D * spec.Dv() * number);
  if (spec.IsInfini()) normalizer = Buffer(G * D * number);
}

LayerArrays::LayerArrays(const LayerArrays& other, const CacheSpec& spec, int64_t tokens, int64_t new_capacity)
    : capacity(new_capacity),
      k(spec.G() * new_capacity * spec.D() * spec.RingBytes()),
      v(k.bytes()),
      sink_k(other.sink_k.bytes()),
      sink_v(other.sink_v.bytes()),
      memory(other.memory.bytes()),
      normalizer(other.normalizer.bytes()) {
  const int64_t row = spec.D() * spec.RingBytes();
  for (int64_t g = 0; g < spec.G(); ++g) {
    for (const auto& [from, to] : {std::pair(&other.k, &k), std::pair(&other.v, &v)}) {
      std::memcpy(to->data() + g * capacity * row, from->data() + g * other.capacity * row,
                  static_cast<size_t>(std::min({tokens, capacity, other.capacity}) * row));
    }
  }
  CopyBytes(other.sink_k, sink_k);
  CopyBytes(other.sink_v, sink_v);
  CopyBytes(other.memory, memory);
  CopyBytes(other.normalizer, normalizer);
}

}  // namespace tensorcache::runtime
