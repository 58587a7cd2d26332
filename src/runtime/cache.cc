#include "tensorcache/cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <new>

#include "core/config.h"
#include "runtime/cache_head.h"
#include "runtime/cache_impl.h"

namespace tensorcache {

using runtime::Arena;
using runtime::CacheSpec;
using runtime::HeadBlock;
using runtime::LayerArrays;
using runtime::RopeRows;
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
  Table block, sink_query, past;
};

void Fill(const CacheSpec& spec, bool same_spec, std::vector<int64_t> positions, Table& table) {
  if (same_spec && positions == table.positions) return;
  const size_t size = positions.size() * static_cast<size_t>(spec.D() / 2);
  table.cos.resize(size);
  table.sin.resize(size);
  FillRopeTable(spec.frequencies, positions, table.cos.data(), table.sin.data());
  table.positions = std::move(positions);
}

std::vector<int64_t> Consecutive(int64_t first, int64_t count) {
  std::vector<int64_t> positions(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) positions[static_cast<size_t>(i)] = first + i;
  return positions;
}

// The tables that a block at `position` needs.
void FillTables(const std::shared_ptr<const CacheSpec>& shared, int64_t position, int64_t tokens, StepTables& tables) {
  const CacheSpec& spec = *shared;
  if (!spec.config.rope.enabled) return;
  const bool same = tables.spec == shared;
  const CacheConfig& cache = spec.config.cache;
  Fill(spec, same, Consecutive(position, tokens), tables.block);
  if (spec.Sinks() > 0) {
    // The last index of a full cache: S sinks and W recent tokens. Until the cache is full, index and position agree.
    std::vector<int64_t> positions = Consecutive(position, tokens);
    for (int64_t& p : positions) p = std::min(p, cache.sinks + cache.window - 1);
    Fill(spec, same, std::move(positions), tables.sink_query);
  }
  if (cache.method == CacheMethod::kTensorCache && !cache.tensor_cache.memory_rope) {
    const int64_t past = std::min(position, cache.window);
    Fill(spec, same, Consecutive(position - past, tokens == 1 ? std::min<int64_t>(past, 1) : past), tables.past);
  }
  tables.spec = shared;
}

Status CheckBlock(const CacheSpec& spec, int64_t layer, const CacheBlock& block) {
  if (layer < 0 || layer >= spec.config.layers) {
    return InvalidArgument(fmt::format("layer {} of a cache with {} layers", layer, spec.config.layers));
  }
  if (block.tokens < 1) return InvalidArgument(fmt::format("a block of {} tokens", block.tokens));
  if (block.q == nullptr || block.k == nullptr || block.v == nullptr)
    return InvalidArgument("a block needs q, k and v");
  const auto too_narrow = [](int64_t stride, int64_t width) { return stride != 0 && stride < width; };
  const int64_t queries = spec.H() * spec.D(), keys = spec.G() * spec.D();
  if (too_narrow(block.q_stride, queries) || too_narrow(block.k_stride, keys) || too_narrow(block.v_stride, keys) ||
      too_narrow(block.local_stride, queries) || too_narrow(block.reads_stride, queries)) {
    return InvalidArgument("a block's stride is shorter than its rows");
  }
  return OkStatus();
}

CacheBlock WithStrides(const CacheSpec& spec, CacheBlock block) {
  const int64_t queries = spec.H() * spec.D(), keys = spec.G() * spec.D();
  if (block.q_stride == 0) block.q_stride = queries;
  if (block.k_stride == 0) block.k_stride = keys;
  if (block.v_stride == 0) block.v_stride = keys;
  if (block.local_stride == 0) block.local_stride = queries;
  if (block.reads_stride == 0) block.reads_stride = queries;
  return block;
}

// Arrays that only this cache uses, with room for `tokens` more.
LayerArrays& WritableArrays(const CacheSpec& spec, int64_t tokens, TwoLevelCache::Impl::Layer& layer) {
  int64_t capacity = layer.arrays->capacity;
  if (spec.IsFull()) {
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
    FillTables(cache.spec, state.position, block.tokens, tables);
    const bool rotates = spec.config.rope.enabled;
    steps_.push_back({.spec = spec,
                      .memory = spec.memories[static_cast<size_t>(layer)],
                      .arrays = WritableArrays(spec, block.tokens, state),
                      .block = WithStrides(spec, block),
                      .head = 0,
                      .position = state.position,
                      .rope = rotates ? tables.block.Rows() : RopeRows(),
                      .sink_query = rotates ? tables.sink_query.Rows() : RopeRows(),
                      .past = rotates ? tables.past.Rows() : RopeRows()});
    first_.push_back(first_.back() + spec.G());
  }

  // The first error by number of the item, whatever the threads did.
  Status Run(const Executor& executor, std::vector<Arena>& arenas) const {
    std::mutex mutex;
    std::map<int64_t, Status> errors;
    const auto body = [&](int64_t begin, int64_t end, int worker) {
      Arena& arena = arenas[static_cast<size_t>(worker)];
      for (int64_t item = begin; item < end; ++item) {
        arena.Reset();
        if (Status status = AdvanceHead(HeadOf(item), arena); !status.ok()) {
          const std::lock_guard lock(mutex);
          errors.emplace(item, std::move(status));
        }
      }
    };
    if (executor.run) {
      executor.run(first_.back(), body);
    } else {
      body(0, first_.back(), 0);
    }
    return errors.empty() ? OkStatus() : errors.begin()->second;
  }

 private:
  HeadBlock HeadOf(int64_t item) const {
    const auto step = static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), item) - first_.begin() - 1);
    HeadBlock head = steps_[step];
    head.head = item - first_[step];
    return head;
  }

  std::vector<HeadBlock> steps_;      // head 0 of each
  std::vector<int64_t> first_ = {0};  // item of each step, and of none
};

Status OutOfMemory(const char* what) {
  return IoError(fmt::format("not enough memory for {}; take a smaller window or fewer sequences", what));
}

}  // namespace

// ----- CacheWorkspace ------------------------------------------------------------------------------------------------

struct CacheWorkspace::Impl {
  explicit Impl(Executor e) : executor(std::move(e)), arenas(static_cast<size_t>(std::max(executor.workers, 1))) {}

  StepTables& Tables(size_t step) {
    while (tables.size() <= step) tables.push_back(std::make_unique<StepTables>());
    return *tables[step];
  }

  Executor executor;
  std::vector<Arena> arenas;                        // one a worker
  std::vector<std::unique_ptr<StepTables>> tables;  // one a step, where its rows stay
};

CacheWorkspace::CacheWorkspace(Executor executor) : impl_(std::make_unique<Impl>(std::move(executor))) {}
CacheWorkspace::~CacheWorkspace() = default;
CacheWorkspace::CacheWorkspace(CacheWorkspace&&) noexcept = default;
CacheWorkspace& CacheWorkspace::operator=(CacheWorkspace&&) noexcept = default;

// ----- TwoLevelCache -------------------------------------------------------------------------------------------------

TwoLevelCache::TwoLevelCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TwoLevelCache::~TwoLevelCache() = default;
TwoLevelCache::TwoLevelCache(TwoLevelCache&&) noexcept = default;
TwoLevelCache& TwoLevelCache::operator=(TwoLevelCache&&) noexcept = default;

Result<TwoLevelCache> TwoLevelCache::Create(const TwoLevelCacheConfig& config, std::vector<MemoryParameters> memories) {
  TC_ASSIGN_OR_RETURN(CacheSpec spec, runtime::MakeCacheSpec(config, std::move(memories)));
  auto impl = std::make_unique<Impl>();
  impl->spec = std::make_shared<const CacheSpec>(std::move(spec));
  try {
    for (int64_t i = 0; i < config.layers; ++i) {
      impl->layers.push_back({.arrays = SharedArrays(LayerArrays(*impl->spec, i))});
    }
  } catch (const std::bad_alloc&) {
    return OutOfMemory("the cache");
  }
  return TwoLevelCache(std::move(impl));
}

Status TwoLevelCache::Advance(int64_t layer, const CacheBlock& block, CacheWorkspace& workspace) {
  const Step step = {.cache = this, .block = block};
  return AdvanceAll(layer, std::span(&step, 1), workspace);
}

Status TwoLevelCache::AdvanceAll(int64_t layer, std::span<const Step> steps, CacheWorkspace& workspace) {
  for (const Step& step : steps) TC_RETURN_IF_ERROR(CheckBlock(*step.cache->impl_->spec, layer, step.block));
  Items items;
  try {
    for (size_t i = 0; i < steps.size(); ++i) {
      items.Add(*steps[i].cache->impl_, layer, steps[i].block, workspace.impl_->Tables(i));
    }
  } catch (const std::bad_alloc&) {
    return OutOfMemory("a longer text (method full keeps all of it)");
  }
  const Status status = items.Run(workspace.impl_->executor, workspace.impl_->arenas);
  for (const Step& step : steps) step.cache->impl_->layers[static_cast<size_t>(layer)].position += step.block.tokens;
  if (status.ok()) return status;
  return {status.code(), fmt::format("layer {}: {}", layer, status.message())};
}

const TwoLevelCacheConfig& TwoLevelCache::config() const { return impl_->spec->config; }
bool TwoLevelCache::HasMemory(int64_t layer) const { return impl_->spec->HasMemory(layer); }
int64_t TwoLevelCache::position(int64_t layer) const { return impl_->layers[static_cast<size_t>(layer)].position; }

CacheMemory TwoLevelCache::memory() const {
  CacheMemory bytes;
  const CacheSpec& spec = *impl_->spec;
  for (const Impl::Layer& layer : impl_->layers) {
    const LayerArrays& arrays = *layer.arrays;
    const int64_t tokens = spec.IsFull() ? layer.position : arrays.capacity;
    bytes.window += 2 * spec.G() * tokens * spec.D() * spec.RingBytes();
    bytes.sinks += arrays.sink_k.bytes() + arrays.sink_v.bytes();
    bytes.memory += arrays.memory.bytes() + arrays.normalizer.bytes();
  }
  return bytes;
}

void TwoLevelCache::Clear() {
  for (size_t i = 0; i < impl_->layers.size(); ++i) {
    impl_->layers[i] = {.arrays = SharedArrays(LayerArrays(*impl_->spec, static_cast<int64_t>(i)))};
  }
}

TwoLevelCache TwoLevelCache::Fork() const { return TwoLevelCache(std::make_unique<Impl>(*impl_)); }

Status TwoLevelCache::Save(const std::string& path) const {
  TC_ASSIGN_OR_RETURN(runtime::StateWriter writer,
                      runtime::StateWriter::Create(
                          path, {.kind = runtime::StateKind::kCache, .config = impl_->Fingerprint(), .model = 0}));
  impl_->Put(writer);
  return writer.Commit();
}

Status TwoLevelCache::Load(const std::string& path) {
  TC_ASSIGN_OR_RETURN(runtime::StateReader reader,
                      runtime::StateReader::Open(
                          path, {.kind = runtime::StateKind::kCache, .config = impl_->Fingerprint(), .model = 0}));
  TC_RETURN_IF_ERROR(impl_->Get(reader));
  return reader.ExpectEnd();
}

std::span<const float> TwoLevelCache::MemoryOf(int64_t layer, int64_t head, int64_t timescale, int64_t slot) const {
  const CacheSpec& spec = *impl_->spec;
  if (layer < 0 || layer >= spec.config.layers || !spec.HasMemory(layer)) return {};
  const int64_t z = timescale * spec.Slots() + slot, size = spec.D() * spec.Dv();
  if (head < 0 || head >= spec.G() || z < 0 || z >= spec.Memories()) return {};
  const LayerArrays& arrays = *impl_->layers[static_cast<size_t>(layer)].arrays;
  return {arrays.memory.As<float>() + (head * spec.Memories() + z) * size, static_cast<size_t>(size)};
}

// ----- saving ------------------------------------------------------------------------------------------------------------

uint64_t TwoLevelCache::Impl::Fingerprint() const {
  TwoLevelCacheConfig config = spec->config;
  const std::string text = fmt::format("{} {} {} {} {} {} {} {} {} {} {}", config.layers, config.query_heads,
                                       config.kv_heads, config.head_dim, config.rope.enabled, config.rope.theta,
                                       config.rope.ntk_factor, ToJson(config.rope.scaling).dump(),
                                       NameOf(config.rope.pairing), NameOf(config.ring), ToJson(config.cache).dump());
  Crc64 crc;
  crc.Add(std::as_bytes(std::span(text)));
  return crc.value();
}

namespace {

// The arrays of a layer in the order of the file; `k` and `v` are stored up to `rows` tokens a head.
template <class F>
void ForEachSpan(const CacheSpec& spec, const LayerArrays& arrays, int64_t rows, F f) {
  const int64_t row = spec.D() * spec.RingBytes();
  for (const runtime::Buffer* ring : {&arrays.k, &arrays.v}) {
    for (int64_t g = 0; g < spec.G(); ++g) {
      f(std::span(ring->data() + g * arrays.capacity * row, static_cast<size_t>(rows * row)));
    }
  }
  for (const runtime::Buffer* buffer : {&arrays.sink_k, &arrays.sink_v, &arrays.memory, &arrays.normalizer}) {
    f(std::span(buffer->data(), static_cast<size_t>(buffer->bytes())));
  }
}

}  // namespace

void TwoLevelCache::Impl::Put(runtime::StateWriter& writer) const {
  for (const Layer& layer : layers) {
    writer.Put(layer.position);
    const int64_t rows = spec->IsFull() ? layer.position : layer.arrays->capacity;
    ForEachSpan(*spec, *layer.arrays, rows, [&](std::span<const std::byte> bytes) { writer.Put(bytes); });
  }
}

Status TwoLevelCache::Impl::Get(runtime::StateReader& reader) {
  std::vector<Layer> loaded;
  try {
    for (size_t i = 0; i < layers.size(); ++i) {
      int64_t position = 0;
      TC_RETURN_IF_ERROR(reader.Get(&position));
      LayerArrays arrays(*spec, static_cast<int64_t>(i));
      const int64_t row_bytes = 2 * spec->G() * spec->D() * spec->RingBytes();
      if (position < 0 || (spec->IsFull() && position > reader.left() / row_bytes)) {
        return Corrupt(fmt::format("{}: says that it holds {} tokens", reader.path(), position));
      }
      int64_t rows = arrays.capacity;
      if (spec->IsFull()) {
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
  } catch (const std::bad_alloc&) {
    return OutOfMemory("the saved state");
  }
  layers = std::move(loaded);
  return OkStatus();
}

}  // namespace tensorcache
