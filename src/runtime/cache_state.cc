// Saved states of caches.
#include <fmt/format.h>

#include <algorithm>

#include "core/checksum.h"
#include "core/config.h"
#include "core/no_throw.h"
#include "runtime/cache_impl.h"
#include "tensorcache/cache.h"

namespace tensorcache {

using runtime::CacheSpec;
using runtime::kMostTokens;
using runtime::LayerArrays;
using runtime::NoCache;
using runtime::SharedArrays;

namespace {

using runtime::StateKeys;

void Add(const std::string& prefix, const std::vector<ConfigKey>& keys, StateKeys* all) {
  for (const ConfigKey& key : keys) all->emplace(prefix + key.path, key.value);
}

StateKeys KeysOf(const TwoLevelCacheConfig& config) {
  const RopeConfig& rope = config.rope;
  StateKeys keys = {{"layers", fmt::format("{}", config.layers)},
                    {"query_heads", fmt::format("{}", config.query_heads)},
                    {"kv_heads", fmt::format("{}", config.kv_heads)},
                    {"head_dim", fmt::format("{}", config.head_dim)},
                    {"rope.enabled", fmt::format("{}", rope.enabled)},
                    {"rope.theta", fmt::format("{}", rope.theta)},
                    {"rope.ntk_factor", fmt::format("{}", rope.ntk_factor)},
                    {"rope.pairing", std::string(NameOf(rope.pairing))},
                    {"ring", std::string(NameOf(config.ring))}};
  Add("rope.scaling.", ConfigKeys(rope.scaling), &keys);
  Add("cache.", ConfigKeys(config.cache), &keys);
  return keys;
}

// As states of version 2 have it: where nothing is rotated, memories were addressed as if it were.
uint64_t OldFingerprint(const TwoLevelCacheConfig& config) {
  CacheConfig cache = config.cache;
  if (!config.rope.enabled) {
    cache.tensor_cache.address.by = MemoryAddress::kRope;
    cache.infini.memory_rope = true;
  }
  const std::string text = fmt::format("{} {} {} {} {} {} {} {} {} {} {}", config.layers, config.query_heads,
                                       config.kv_heads, config.head_dim, config.rope.enabled, config.rope.theta,
                                       config.rope.ntk_factor, ToOldJsonText(config.rope.scaling),
                                       NameOf(config.rope.pairing), NameOf(config.ring), ToOldJsonText(cache));
  Crc64 crc;
  crc.Add(std::as_bytes(std::span(text)));
  return crc.value();
}

// The bytes of a layer in the order of the file: `rows` tokens of the keys of each head, of the values, then what the method
// keeps.
template <class Arrays, class F>
void ForEachSpan(const CacheSpec& spec, Arrays& arrays, int64_t rows, F f) {
  const int64_t row = spec.D() * spec.RingBytes();
  for (auto* ring : {&arrays.k, &arrays.v}) {
    for (int64_t g = 0; g < spec.G(); ++g) {
      f(std::span(ring->data() + g * arrays.capacity * row, static_cast<size_t>(rows * row)));
    }
  }
  for (auto& array : arrays.of_method) f(std::span(array.data(), static_cast<size_t>(array.bytes())));
}

}  // namespace

Status TwoLevelCache::Save(const std::string& path, bool durable) const {
  if (impl_ == nullptr) return NoCache();
  return NoThrow("save a cache", [&]() -> Status {
    TC_ASSIGN_OR_RETURN(
        runtime::StateWriter writer,
        runtime::StateWriter::Create(path, impl_->Owner(runtime::StateKind::kCache, /*model=*/0), durable));
    TC_RETURN_IF_ERROR(impl_->Put(writer));
    return writer.Commit();
  });
}

Status TwoLevelCache::Load(const std::string& path) {
  if (impl_ == nullptr) return NoCache();
  return NoThrow("load a cache", [&]() -> Status {
    TC_ASSIGN_OR_RETURN(runtime::StateReader reader,
                        runtime::StateReader::Open(path, impl_->Owner(runtime::StateKind::kCache, /*model=*/0)));
    TC_ASSIGN_OR_RETURN(std::vector<Impl::Layer> layers, impl_->Get(reader));
    TC_RETURN_IF_ERROR(reader.ExpectEnd());
    impl_->layers = std::move(layers);
    impl_->failed = StatusCode::kOk;
    return OkStatus();
  });
}

runtime::StateOwner TwoLevelCache::Impl::Owner(runtime::StateKind kind, uint64_t model) const {
  return {.kind = kind,
          .config = KeysOf(spec->config),
          .defaults = KeysOf({}),
          .old_config = OldFingerprint(spec->config),
          .model = model};
}

Status TwoLevelCache::Impl::CheckUsable() const {
  if (failed == StatusCode::kOk) return OkStatus();
  return {failed, "the cache was left half-way by an error; clear it, or load a saved one"};
}

Status TwoLevelCache::Impl::Put(runtime::StateWriter& writer) const {
  TC_RETURN_IF_ERROR(CheckUsable());
  for (const Layer& layer : layers) {
    if (layer.position != layers[0].position) {
      return InvalidArgument(
          fmt::format("one layer of the cache has seen {} tokens and another {}; save between two blocks",
                      layers[0].position, layer.position));
    }
    writer.Put(layer.position);
    const int64_t rows = spec->keeps_everything ? layer.position : layer.arrays->capacity;
    ForEachSpan(*spec, *layer.arrays, rows, [&](std::span<const std::byte> bytes) { writer.Put(bytes); });
  }
  return OkStatus();
}

Result<std::vector<TwoLevelCache::Impl::Layer>> TwoLevelCache::Impl::Get(runtime::StateReader& reader) const {
  std::vector<Layer> loaded;
  const int64_t row_bytes = 2 * spec->G() * spec->D() * spec->RingBytes();
  for (size_t i = 0; i < layers.size(); ++i) {
    int64_t position = 0;
    TC_RETURN_IF_ERROR(reader.Get(&position));
    const int64_t most = spec->keeps_everything ? reader.left() / row_bytes : kMostTokens;
    if (position < 0 || position > most) {
      return Corrupt(fmt::format("{}: says that it holds {} tokens", reader.path(), position));
    }
    if (!loaded.empty() && position != loaded[0].position) {
      return Corrupt(
          fmt::format("{}: one layer has seen {} tokens and another {}", reader.path(), loaded[0].position, position));
    }
    LayerArrays arrays(*spec, static_cast<int64_t>(i));
    int64_t rows = arrays.capacity;
    if (spec->keeps_everything) {
      rows = position;
      arrays = LayerArrays(arrays, *spec, 0, std::max(arrays.capacity, position));
    }
    Status status;
    ForEachSpan(*spec, arrays, rows, [&](std::span<std::byte> bytes) {
      if (status.ok()) status = reader.Get(bytes);
    });
    TC_RETURN_IF_ERROR(status);
    loaded.push_back({.arrays = SharedArrays(std::move(arrays)), .position = position});
  }
  return loaded;
}

}  // namespace tensorcache
