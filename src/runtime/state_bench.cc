// What a cache keeps, by the kernel's account: random keys and values of as many tokens as the row says go through a cache
// of the model's shape, without the model.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "core/process_memory.h"
#include "core/rng.h"
#include "core/thread_pool.h"
#include "methods/method.h"
#include "runtime/run_bench.h"
#include "runtime/state_size.h"
#include "tensorcache/cache.h"

namespace tensorcache::runtime {
namespace {

constexpr int64_t kContexts[] = {4096, 16384, 65536, 131072, 1'000'000};
constexpr int64_t kBlock = 512;

// Feeds `tokens` more tokens to all layers.
Status Append(TwoLevelCache& cache, int64_t tokens, std::vector<float>& rows, CacheWorkspace& workspace) {
  const TwoLevelCacheConfig& config = cache.config();
  for (int64_t done = 0; done < tokens; done += kBlock) {
    const int64_t n = std::min(kBlock, tokens - done);
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      TC_RETURN_IF_ERROR(
          cache.Advance(layer, {.tokens = n, .q = rows.data(), .k = rows.data(), .v = rows.data()}, workspace));
    }
  }
  return OkStatus();
}

Status MeasureMethod(const RunBenchOptions& options, CacheMethod number, RingType ring, CacheWorkspace& workspace,
                     std::vector<float>& rows, const OnRow<StateRow>& on_row) {
  TwoLevelCacheConfig config = CacheConfigOf(options.config, ring);
  config.cache.method = number;
  const methods::Method& method = methods::MethodOf(config.cache);
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (error) return IoError(fmt::format("there is no folder for temporary files: {}; set TMPDIR", error.message()));
  const std::string path = (folder / fmt::format("tensorcache_bench_{}.state", getpid())).string();
  const int64_t before = ResidentBytes();
  TC_ASSIGN_OR_RETURN(TwoLevelCache cache, TwoLevelCache::Create(config));
  for (const int64_t context : kContexts) {
    const int64_t bytes = StateBytesAfter(config, context).total();
    StateRow row{.method = std::string(method.name()), .ring = ring, .context = context};
    // A growing array is copied when it grows: old and new are there at the same time, the new one up to twice the need.
    if (method.KeepsEverything() && bytes * 3 / 2 > AvailableBytes() + cache.state_bytes().total()) {
      row.measured = false;
      row.state_bytes = row.resident_bytes = bytes;
      on_row(row);
      continue;
    }
    TC_RETURN_IF_ERROR(Append(cache, context - cache.position(), rows, workspace));
    row.state_bytes = cache.state_bytes().total();
    row.resident_bytes = ResidentBytes() - before;
    if (!method.KeepsEverything()) {
      TC_RETURN_IF_ERROR(cache.Save(path));
      row.file_bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
      std::filesystem::remove(path, error);
    }
    on_row(row);
  }
  return OkStatus();
}

}  // namespace

Status BenchState(const RunBenchOptions& options, const OnRow<StateRow>& on_row) {
  ThreadPool pool(options.threads);
  CacheWorkspace workspace(&pool);
  const ModelConfig& model = options.config;
  std::vector<float> rows(static_cast<size_t>(kBlock * model.num_attention_heads * model.HeadDim()));
  Rng rng(3);
  for (float& x : rows) x = static_cast<float>(rng.Normal());
  {  // grows the workspace first, so that it is in no row
    TwoLevelCacheConfig config = CacheConfigOf(model, RingType::kFp32);
    config.layers = 1;
    for (const auto& [method, name] : EnumNames(CacheMethod{})) {
      config.cache.method = method;
      TC_ASSIGN_OR_RETURN(TwoLevelCache cache, TwoLevelCache::Create(config));
      TC_RETURN_IF_ERROR(Append(cache, 2 * kBlock, rows, workspace));
    }
  }
  for (const auto& [method, name] : EnumNames(CacheMethod{})) {
    TC_RETURN_IF_ERROR(MeasureMethod(options, method, RingType::kFp32, workspace, rows, on_row));
  }
  return MeasureMethod(options, CacheMethod::kTensorCache, RingType::kBf16, workspace, rows, on_row);
}

}  // namespace tensorcache::runtime
