#include "runtime/cache_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/cache_impl.h"

namespace tensorcache::runtime {
namespace {

constexpr int64_t kFirstFullCapacity = 256;
constexpr double kMaxRingNumbers = 1LL << 42;

Status CheckSizes(const TwoLevelCacheConfig& c) {
  TC_RETURN_IF_ERROR(
      methods::CheckHeads({"layers", c.layers}, {"query_heads", c.query_heads}, {"kv_heads", c.kv_heads}));
  TC_RETURN_IF_ERROR(methods::CheckHeadDim(c.head_dim));
  if (c.ring != RingType::kFp32 && c.ring != RingType::kBf16) return InvalidArgument("ring is neither fp32 nor bf16");
  if (c.rope.pairing != RopePairing::kHalfSplit && c.rope.pairing != RopePairing::kInterleaved) {
    return InvalidArgument("rope.pairing is neither half_split nor interleaved");
  }
  TC_RETURN_IF_ERROR(ValidateCacheConfig(c.cache, c.layers));
  const double numbers = static_cast<double>(c.cache.window) * static_cast<double>(c.kv_heads * c.head_dim);
  if (!methods::MethodOf(c.cache).KeepsEverything() && numbers > kMaxRingNumbers) {
    return InvalidArgument(
        fmt::format("a window of {} tokens of {} heads is more than any machine holds; take a smaller "
                    "window, or method full, which grows with the text",
                    c.cache.window, c.kv_heads));
  }
  return OkStatus();
}

Result<RopeFrequencies> FrequenciesOf(const TwoLevelCacheConfig& config) {
  const RopeConfig& rope = config.rope;
  if (!rope.enabled) return RopeFrequencies();
  TC_RETURN_IF_ERROR(CheckRange("rope.ntk_factor", rope.ntk_factor, 1, 1e6));
  TC_RETURN_IF_ERROR(ValidateRopeScaling(rope.scaling));
  const double base = NtkAwareBase(rope.theta, rope.ntk_factor, config.head_dim);
  return MakeRopeFrequencies(config.head_dim, base, rope.scaling);
}

}  // namespace

Status NoCache() { return InvalidArgument("a null cache, or one that was moved from"); }

Result<CacheSpec> MakeCacheSpec(const TwoLevelCacheConfig& config, std::vector<LearnedNumbers> memories) {
  TC_RETURN_IF_ERROR(CheckSizes(config));
  const methods::Method& method = methods::MethodOf(config.cache);
  CacheSpec spec{.config = config, .keeps_everything = method.KeepsEverything()};
  TC_ASSIGN_OR_RETURN(spec.frequencies, FrequenciesOf(config));
  if (!memories.empty() && static_cast<int64_t>(memories.size()) != config.layers) {
    return InvalidArgument(
        fmt::format("memory parameters of {} layers were given; the cache has {}", memories.size(), config.layers));
  }
  memories.resize(static_cast<size_t>(config.layers));
  for (int64_t i = 0; i < config.layers; ++i) {
    const methods::LayerPlace place = methods::PlaceOf(config, i);
    CacheSpec::Layer layer{.arrays = method.Arrays(place), .gates = method.TokenGates(place)};
    TC_ASSIGN_OR_RETURN(layer.method, method.MakeLayer(config, i, memories[static_cast<size_t>(i)]));
    spec.layers.push_back(std::move(layer));
  }
  return spec;
}

LayerArrays::LayerArrays(const CacheSpec& spec, int64_t layer)
    : capacity(spec.keeps_everything ? kFirstFullCapacity : spec.config.cache.window),
      k(spec.G() * capacity * spec.D() * spec.RingBytes()),
      v(k.bytes()) {
  for (const methods::StateArray& array : spec.At(layer).arrays) {
    of_method.emplace_back(spec.G() * array.size() * static_cast<int64_t>(sizeof(float)));
  }
}

LayerArrays::LayerArrays(const LayerArrays& other, const CacheSpec& spec, int64_t tokens, int64_t new_capacity)
    : capacity(new_capacity), k(spec.G() * new_capacity * spec.D() * spec.RingBytes()), v(k.bytes()) {
  const int64_t row = spec.D() * spec.RingBytes();
  for (int64_t g = 0; g < spec.G(); ++g) {
    for (const auto& [from, to] : {std::pair(&other.k, &k), std::pair(&other.v, &v)}) {
      std::memcpy(to->data() + g * capacity * row, from->data() + g * other.capacity * row,
                  static_cast<size_t>(std::min({tokens, capacity, other.capacity}) * row));
    }
  }
  for (const Buffer& array : other.of_method) {
    of_method.emplace_back(array.bytes());
    if (array.bytes() > 0) std::memcpy(of_method.back().data(), array.data(), static_cast<size_t>(array.bytes()));
  }
}

}  // namespace tensorcache::runtime
