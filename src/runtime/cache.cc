#include "tensorcache/cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "core/no_throw.h"
#include "runtime/cache_head.h"
#include "runtime/cache_impl.h"

namespace tensorcache {

using methods::RopeRows;
using runtime::CacheSpec;
using runtime::HeadWork;
using runtime::kMostTokens;
using runtime::LayerArrays;
using runtime::NoCache;
using runtime::SharedArrays;

namespace {

// One rotary table. The layers of a block ask for the same one after the other.
struct Table {
  std::vector<int64_t> positions;
  std::vector<float> cos, sin;

  RopeRows Rows() const { return {.cos = cos.data(), .sin = sin.data()}; }
};

// The tables of one step of AdvanceAll, and what they were made for: kept alive, so that no other spec can come to stand where
// it stood and be taken for it.
struct StepTables {
  std::shared_ptr<const CacheSpec> spec;
  Table block, extra;
};

void Fill(const CacheSpec& spec, bool same_spec, std::vector<int64_t> positions, Table& table) {
  if (same_spec && positions == table.positions) return;
  const size_t size = positions.size() * static_cast<size_t>(spec.D() / 2);
  table.positions.clear();
  table.cos.resize(size);
  table.sin.resize(size);
  FillRopeTable(spec.frequencies, positions, table.cos.data(), table.sin.data());
  table.positions = std::move(positions);
}

// The tables that a block of layer `layer` at `position` needs.
void FillTables(const std::shared_ptr<const CacheSpec>& spec, int64_t layer, int64_t position, int64_t tokens,
                StepTables& tables) {
  if (!spec->config.rope.enabled) return;
  const bool same = tables.spec == spec;
  tables.spec = nullptr;  // until all are made
  std::vector<int64_t> positions(static_cast<size_t>(tokens));
  for (int64_t i = 0; i < tokens; ++i) positions[static_cast<size_t>(i)] = position + i;
  Fill(*spec, same, std::move(positions), tables.block);
  Fill(*spec, same, spec->At(layer).method->ExtraRope(position, tokens), tables.extra);
  tables.spec = spec;
}

Status CheckBlock(const CacheSpec& spec, int64_t layer, const CacheBlock& block) {
  if (layer < 0 || layer >= spec.config.layers) {
    return InvalidArgument(fmt::format("layer {} of a cache with {} layers", layer, spec.config.layers));
  }
  if (block.tokens < 1 || block.tokens > kMostTokens) {
    return InvalidArgument(fmt::format("a block of {} tokens", block.tokens));
  }
  if (block.q == nullptr || block.k == nullptr || block.v == nullptr)
    return InvalidArgument("a block needs q, k and v");
  const int64_t gates = spec.G() * spec.At(layer).gates;
  if (gates > 0 && block.gates == nullptr) {
    return InvalidArgument(
        fmt::format("a block of this cache needs {} gates per token: see TwoLevelCache::gates", gates));
  }
  const auto too_narrow = [](int64_t stride, int64_t width) { return stride != 0 && stride < width; };
  const int64_t queries = spec.H() * spec.D(), keys = spec.G() * spec.D();
  if (too_narrow(block.q_stride, queries) || too_narrow(block.k_stride, keys) || too_narrow(block.v_stride, keys) ||
      too_narrow(block.gates_stride, gates) || too_narrow(block.local_stride, queries) ||
      too_narrow(block.reads_stride, queries)) {
    return InvalidArgument("a block's stride is shorter than its rows");
  }
  return OkStatus();
}

CacheBlock WithStrides(const CacheSpec& spec, int64_t layer, CacheBlock block) {
  const int64_t queries = spec.H() * spec.D(), keys = spec.G() * spec.D();
  if (block.q_stride == 0) block.q_stride = queries;
  if (block.k_stride == 0) block.k_stride = keys;
  if (block.v_stride == 0) block.v_stride = keys;
  if (block.gates_stride == 0) block.gates_stride = spec.G() * spec.At(layer).gates;
  if (block.local_stride == 0) block.local_stride = queries;
  if (block.reads_stride == 0) block.reads_stride = queries;
  return block;
}

// Arrays that only this cache uses, with room for `tokens` more.
LayerArrays& WritableArrays(const CacheSpec& spec, int64_t tokens, TwoLevelCache::Impl::Layer& layer) {
  int64_t capacity = layer.arrays->capacity;
  if (spec.keeps_everything) {
    while (capacity < layer.position + tokens) capacity *= 2;
  }
  if (capacity > layer.arrays->capacity || !layer.arrays.IsSole()) {
    layer.arrays = SharedArrays(LayerArrays(*layer.arrays, spec, layer.position, capacity));
  }
  return layer.arrays.Mutable();
}

// The work of one call of AdvanceAll: the heads of every step's layer, one after the other.
class Items {
 public:
  // Throws std::bad_alloc.
  void Add(TwoLevelCache::Impl& cache, int64_t layer, const CacheBlock& block, StepTables& tables) {
    const CacheSpec& spec = *cache.spec;
    TwoLevelCache::Impl::Layer& state = cache.layers[static_cast<size_t>(layer)];
    FillTables(cache.spec, layer, state.position, block.tokens, tables);
    const bool rotates = spec.config.rope.enabled;
    steps_.push_back({.spec = spec,
                      .method = *spec.At(layer).method,
                      .arrays = WritableArrays(spec, block.tokens, state),
                      .gates = spec.At(layer).gates,
                      .block = WithStrides(spec, layer, block),
                      .head = 0,
                      .position = state.position,
                      .rope = rotates ? tables.block.Rows() : RopeRows(),
                      .extra_rope = rotates ? tables.extra.Rows() : RopeRows()});
    first_.push_back(first_.back() + spec.G());
  }

  // The first error by number of the item, whatever the threads did.
  Status Run(Executor* executor, std::vector<Arena>& arenas) const {
    std::mutex mutex;
    int64_t first_failed = first_.back();
    Status failure;
    const auto body = [&](int64_t begin, int64_t end, int worker) {
      Arena& arena = arenas[static_cast<size_t>(worker)];
      for (int64_t item = begin; item < end; ++item) {
        Status status = Advance(item, arena);
        if (status.ok()) continue;
        const std::lock_guard lock(mutex);
        if (item >= first_failed) continue;
        first_failed = item;
        failure = std::move(status);
      }
    };
    if (executor != nullptr) {
      executor->Run(first_.back(), body);
    } else {
      body(0, first_.back(), 0);
    }
    return failure;
  }

 private:
  // On some thread, from which nothing may be thrown.
  Status Advance(int64_t item, Arena& arena) const {
    const auto step = static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), item) - first_.begin() - 1);
    HeadWork head = steps_[step];
    head.head = item - first_[step];
    return NoThrow("read a block of tokens", [&] {
      arena.Reset();
      return AdvanceHead(head, arena);
    });
  }

  std::vector<HeadWork> steps_;       // head 0 of each
  std::vector<int64_t> first_ = {0};  // item of each step, and of none
};

}  // namespace

// ----- CacheWorkspace ------------------------------------------------------------------------------------------------

struct CacheWorkspace::Impl {
  explicit Impl(Executor* e) : executor(e), arenas(static_cast<size_t>(e == nullptr ? 1 : std::max(e->workers(), 1))) {}

  StepTables& Tables(size_t step) {
    while (tables.size() <= step) tables.push_back(std::make_unique<StepTables>());
    return *tables[step];
  }

  Executor* executor;
  std::vector<Arena> arenas;                        // one a worker
  std::vector<std::unique_ptr<StepTables>> tables;  // one a step, where its rows stay
};

CacheWorkspace::CacheWorkspace(Executor* executor) : impl_(std::make_unique<Impl>(executor)) {}
CacheWorkspace::~CacheWorkspace() = default;
CacheWorkspace::CacheWorkspace(CacheWorkspace&&) noexcept = default;
CacheWorkspace& CacheWorkspace::operator=(CacheWorkspace&&) noexcept = default;

// ----- TwoLevelCache -------------------------------------------------------------------------------------------------

TwoLevelCache::TwoLevelCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TwoLevelCache::~TwoLevelCache() = default;
TwoLevelCache::TwoLevelCache(TwoLevelCache&&) noexcept = default;
TwoLevelCache& TwoLevelCache::operator=(TwoLevelCache&&) noexcept = default;

Result<TwoLevelCache> TwoLevelCache::Create(const TwoLevelCacheConfig& config, std::vector<LearnedNumbers> memories) {
  return NoThrow("make a cache", [&]() -> Result<TwoLevelCache> {
    TC_ASSIGN_OR_RETURN(CacheSpec spec, runtime::MakeCacheSpec(config, std::move(memories)));
    auto impl = std::make_unique<Impl>();
    impl->spec = std::make_shared<const CacheSpec>(std::move(spec));
    for (int64_t i = 0; i < config.layers; ++i) {
      impl->empty.push_back({.arrays = SharedArrays(LayerArrays(*impl->spec, i))});
    }
    impl->layers = impl->empty;
    return TwoLevelCache(std::move(impl));
  });
}

Status TwoLevelCache::Advance(int64_t layer, const CacheBlock& block, CacheWorkspace& workspace) {
  const Step step = {.cache = this, .block = block};
  return AdvanceAll(layer, std::span(&step, 1), workspace);
}

Status TwoLevelCache::CheckSteps(int64_t layer, std::span<const Step> steps) {
  std::vector<const TwoLevelCache*> caches;
  for (const Step& step : steps) {
    if (step.cache == nullptr || step.cache->impl_ == nullptr) return NoCache();
    const Impl& cache = *step.cache->impl_;
    TC_RETURN_IF_ERROR(CheckBlock(*cache.spec, layer, step.block));
    TC_RETURN_IF_ERROR(cache.CheckUsable());
    if (cache.layers[static_cast<size_t>(layer)].position > kMostTokens - step.block.tokens) {
      return Unsupported("a text of more than 2^62 tokens");
    }
    caches.push_back(step.cache);
  }
  if (caches.size() > 1) std::sort(caches.begin(), caches.end());
  if (std::adjacent_find(caches.begin(), caches.end()) != caches.end()) {
    return InvalidArgument("a cache is twice among those to advance");
  }
  return OkStatus();
}

Status TwoLevelCache::AdvanceAll(int64_t layer, std::span<const Step> steps, CacheWorkspace& workspace) {
  if (workspace.impl_ == nullptr) return InvalidArgument("a workspace that was moved from");
  return NoThrow("read more tokens (method full keeps all of them)", [&]() -> Status {
    TC_RETURN_IF_ERROR(CheckSteps(layer, steps));
    Items items;
    for (size_t i = 0; i < steps.size(); ++i) {
      items.Add(*steps[i].cache->impl_, layer, steps[i].block, workspace.impl_->Tables(i));
    }
    // Whatever happens below, also what somebody's threads throw, leaves some heads ahead of others.
    for (const Step& step : steps) step.cache->impl_->failed = StatusCode::kIoError;
    Status status = items.Run(workspace.impl_->executor, workspace.impl_->arenas);
    for (const Step& step : steps) {
      Impl& cache = *step.cache->impl_;
      cache.failed = status.code();
      if (status.ok()) cache.layers[static_cast<size_t>(layer)].position += step.block.tokens;
    }
    if (status.ok()) return status;
    return {status.code(), fmt::format("layer {}: {}", layer, status.message())};
  });
}

const TwoLevelCacheConfig& TwoLevelCache::config() const {
  static const TwoLevelCacheConfig none;
  return impl_ == nullptr ? none : impl_->spec->config;
}

int64_t TwoLevelCache::gates(int64_t layer) const { return HasLayer(layer) ? impl_->spec->At(layer).gates : 0; }

bool TwoLevelCache::HasMemory(int64_t layer) const {
  return HasLayer(layer) && impl_->spec->At(layer).method->has_memory();
}

int64_t TwoLevelCache::position(int64_t layer) const {
  return HasLayer(layer) ? impl_->layers[static_cast<size_t>(layer)].position : 0;
}

bool TwoLevelCache::HasLayer(int64_t layer) const {
  return impl_ != nullptr && layer >= 0 && layer < impl_->spec->config.layers;
}

StateBytes TwoLevelCache::state_bytes() const {
  StateBytes bytes;
  if (impl_ == nullptr) return bytes;
  for (size_t i = 0; i < impl_->layers.size(); ++i) {
    runtime::AddLayerBytes(impl_->spec->config, impl_->spec->layers[i].arrays, impl_->layers[i].position, bytes);
  }
  return bytes;
}

void TwoLevelCache::Clear() {
  if (impl_ == nullptr) return;
  impl_->layers = impl_->empty;  // as many: nothing is allocated
  impl_->failed = StatusCode::kOk;
}

Result<TwoLevelCache> TwoLevelCache::Fork() const {
  if (impl_ == nullptr) return NoCache();
  return NoThrow("fork a cache",
                 [&]() -> Result<TwoLevelCache> { return TwoLevelCache(std::make_unique<Impl>(*impl_)); });
}

std::span<const float> TwoLevelCache::MemoryOf(int64_t layer, int64_t head, int64_t timescale, int64_t slot) const {
  if (!HasLayer(layer) || head < 0 || head >= impl_->spec->G()) return {};
  const std::vector<methods::StateArray>& arrays = impl_->spec->At(layer).arrays;
  for (size_t i = 0; i < arrays.size(); ++i) {
    const std::vector<int64_t>& shape = arrays[i].shape;
    if (arrays[i].kind != methods::StateArray::Kind::kMemory || shape.size() != 4) continue;
    if (timescale < 0 || timescale >= shape[0] || slot < 0 || slot >= shape[1]) return {};
    const int64_t size = shape[2] * shape[3];
    const float* first = impl_->layers[static_cast<size_t>(layer)].arrays->of_method[i].As<float>();
    return {first + head * arrays[i].size() + (timescale * shape[1] + slot) * size, static_cast<size_t>(size)};
  }
  return {};
}

}  // namespace tensorcache
