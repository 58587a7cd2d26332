// Saved caches: an error that leaves the cache as it was, or a state that goes on.
#include "tensorcache/cache.h"
#include "tests/fuzz/sealed_state.h"

namespace tensorcache::fuzz {
namespace {

constexpr int64_t kLayers = 2, kQueries = 2, kDim = 4, kTokens = 5;

TwoLevelCache Make(CacheConfig cache, RingType ring = RingType::kFp32) {
  cache.window = 3;
  const TwoLevelCacheConfig config{.layers = kLayers,
                                   .query_heads = kQueries,
                                   .kv_heads = 1,
                                   .head_dim = kDim,
                                   .cache = cache,
                                   .rope = {},
                                   .ring = ring};
  LearnedNumbers memory;
  if (const int64_t slots = cache.tensor_cache.router.slots; slots > 1) {
    for (int64_t i = 0; i < slots * kDim; ++i) memory["slot_keys"].push_back(static_cast<float>(i % 3));
  }
  auto made = TwoLevelCache::Create(config, std::vector(kLayers, memory));
  TC_CHECK(made.ok());
  return std::move(made).value();
}

// One of each kind, empty.
const std::vector<TwoLevelCache>& Caches() {
  static const std::vector<TwoLevelCache>& caches = *[] {
    auto* all = new std::vector<TwoLevelCache>;
    for (const RingType ring : {RingType::kFp32, RingType::kBf16}) {
      all->push_back(Make({.method = CacheMethod::kFull}, ring));
      all->push_back(Make({.method = CacheMethod::kWindow}, ring));
      all->push_back(Make({.method = CacheMethod::kStreamingLlm, .sinks = 2}, ring));
      all->push_back(Make({.method = CacheMethod::kInfini}, ring));
      all->push_back(Make({.method = CacheMethod::kTensorCache}, ring));
    }
    all->push_back(Make({.tensor_cache = {.write = {.rule = WriteRule::kDelta},
                                          .address = {.by = MemoryAddress::kContent},
                                          .read = {.normalize = true},
                                          .timescales = {.slow = true}}}));
    all->push_back(
        Make({.tensor_cache = {.write = {.when = MemoryWrite::kInsert}, .router = {.slots = 2, .top_k = 2}}}));
    all->push_back(Make({.tensor_cache = {.layers = MemoryLayers::kTop, .top_layers = 1}}));
    return all;
  }();
  return caches;
}

// A block of one token and a block of several, of every layer.
void Advance(TwoLevelCache& cache) {
  static CacheWorkspace& workspace = *new CacheWorkspace;
  std::vector<float> q(kTokens * kQueries * kDim), k(kTokens * kDim), v = k, local(q), reads(q);
  for (size_t i = 0; i < q.size(); ++i) q[i] = 0.125F * static_cast<float>(i % 7) - 0.25F;
  for (size_t i = 0; i < k.size(); ++i) k[i] = v[i] = 0.25F * static_cast<float>(i % 5) - 0.5F;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (const int64_t tokens : {int64_t{1}, kTokens}) {
      const CacheBlock block{
          .tokens = tokens, .q = q.data(), .k = k.data(), .v = v.data(), .local = local.data(), .reads = reads.data()};
      const int64_t before = cache.position(layer);
      const Status status = cache.Advance(layer, block, workspace);
      if (!status.ok()) return CheckMessage(status);
      TC_CHECK(cache.position(layer) == before + tokens);
    }
  }
}

// Number `i` of the caches, for a while.
TwoLevelCache Start(size_t i) {
  auto cache = Caches()[i % Caches().size()].Fork();
  TC_CHECK(cache.ok());
  return std::move(cache).value();
}

std::string Saved(const TwoLevelCache& cache) {
  const std::string path = PathOf("saved");
  TC_CHECK(cache.Save(path, /*durable=*/false).ok());
  return Get(path);
}

}  // namespace

// A byte that picks the cache, and its state.
void Run(std::string_view input) {
  if (input.empty()) return;
  TwoLevelCache cache = Start(static_cast<uint8_t>(input[0]));
  const std::string path = Put("state", Sealed(input.substr(1)));
  if (const Status status = cache.Load(path); !status.ok()) {
    TC_CHECK(cache.position(0) == 0 && cache.position(kLayers - 1) == 0);
    return CheckMessage(status);
  }
  const std::string saved = Saved(cache);
  TC_CHECK(cache.Load(PathOf("saved")).ok());
  TC_CHECK(Saved(cache) == saved);
  Advance(cache);
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (size_t i = 0; i < Caches().size(); ++i) {
    TwoLevelCache cache = Start(i);
    seeds.push_back(static_cast<char>(i) + Unsealed(Saved(cache)));
    Advance(cache);
    seeds.push_back(static_cast<char>(i) + Unsealed(Saved(cache)));
  }
  return seeds;
}

std::vector<std::string> Words() {
  return {Raw(INT64_MAX),  Raw(INT64_MAX - 3), Raw(INT64_MIN),  Raw(int64_t{-1}), Raw(int64_t{1} << 40),
          Raw(int64_t{3}), Raw(0x7F800000),    Raw(0x7FC00000), "TCSTATE\n"};
}

}  // namespace tensorcache::fuzz
