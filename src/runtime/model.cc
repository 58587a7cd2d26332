#include "tensorcache/model.h"

#include <fmt/format.h>

#include <filesystem>
#include <new>

#include "core/checksum.h"
#include "core/config.h"
#include "core/model_files.h"
#include "core/no_throw.h"
#include "core/process_memory.h"
#include "runtime/model_impl.h"
#include "runtime/state_size.h"

namespace tensorcache {
namespace {

constexpr int64_t kMaxPrefillBlock = 1 << 16;
constexpr const char* kLoading = "load the model (--weights bf16 or int8 takes less)";

Status CheckOptions(const ModelOptions& options) {
  if (options.threads < 0 || options.threads > 1023) {
    return InvalidArgument(fmt::format("threads is {}; it must be 0 (one per core) to 1023", options.threads));
  }
  if (options.prefill_block < 1 || options.prefill_block > kMaxPrefillBlock) {
    return InvalidArgument(
        fmt::format("prefill_block is {}; it must be 1 to {}", options.prefill_block, kMaxPrefillBlock));
  }
  if (options.weights != WeightType::kFp32 && options.weights != WeightType::kBf16 &&
      options.weights != WeightType::kInt8) {
    return InvalidArgument("weights is neither fp32 nor bf16 nor int8");
  }
  return OkStatus();
}

Status Finish(std::unique_ptr<runtime::WeightSource> source, Model::Impl& impl) {
  impl.source = std::move(source);
  TC_ASSIGN_OR_RETURN(impl.weights, runtime::LoadWeights(impl.config, impl.options.weights, *impl.source, impl.pool));
  impl.cache_config = runtime::CacheConfigOf(impl.config, impl.options.ring);
  TC_ASSIGN_OR_RETURN(TwoLevelCache cache, TwoLevelCache::Create(impl.cache_config, impl.weights.memories));
  impl.empty_cache = std::make_unique<TwoLevelCache>(std::move(cache));
  TC_RETURN_IF_ERROR(CheckRoomForBlas(impl.pool.threads()));
  Crc64 crc;
  const uint64_t weights = impl.source->Fingerprint();
  ModelConfig shape = impl.config;
  shape.cache = {};                                 // a state file knows its cache by itself
  const std::string config = ToOldJsonText(shape);  // as it was when the first states were saved
  crc.Add(std::as_bytes(std::span(&weights, 1)));
  crc.Add(std::as_bytes(std::span(config)));
  impl.fingerprint = crc.value();
  return OkStatus();
}

Status CheckSurplus(const std::string& folder, const runtime::WeightSource& source) {
  const std::vector<std::string> surplus = source.Surplus();
  if (surplus.empty()) return OkStatus();
  return InvalidArgument(
      fmt::format("{}: model.safetensors has {} tensor{} that config.json does not know, such as '{}'", folder,
                  surplus.size(), surplus.size() == 1 ? "" : "s", surplus.front()));
}

}  // namespace

Model::Impl::Turn::Turn(const Impl& model)
    : model_(model),
      threads_(model.pool_mutex, std::defer_lock),
      workspace_([&] {
        if (model.pool.threads() > 1) threads_.lock();
        const std::lock_guard lock(model.spare_mutex);
        if (model.spare.empty()) return std::make_unique<runtime::Workspace>(model.pool);
        std::unique_ptr<runtime::Workspace> workspace = std::move(model.spare.back());
        model.spare.pop_back();
        return workspace;
      }()),
      pass_(model.config, model.weights, model.pool, *workspace_) {}

Model::Impl::Turn::~Turn() {
  const std::lock_guard lock(model_.spare_mutex);
  try {
    model_.spare.push_back(std::move(workspace_));
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
    // Then the next call makes one.
  }
}

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

Result<std::shared_ptr<const Model>> Model::Load(const std::string& folder, const ModelOptions& options) {
  return NoThrow(kLoading, [&] { return LoadUnguarded(folder, options); });
}

Result<std::shared_ptr<const Model>> Model::Random(const ModelConfig& config, const ModelOptions& options,
                                                   uint64_t seed) {
  return NoThrow(kLoading, [&] { return RandomUnguarded(config, options, seed); });
}

Result<std::shared_ptr<const Model>> Model::LoadUnguarded(const std::string& folder, const ModelOptions& options) {
  TC_RETURN_IF_ERROR(CheckOptions(options));
  auto impl = std::make_unique<Impl>(options);
  TC_RETURN_IF_ERROR(ReadConfigFile((std::filesystem::path(folder) / kConfigFile).string(), &impl->config));
  if (options.cache.has_value()) impl->config.cache = *options.cache;
  TC_RETURN_IF_ERROR(ValidateModelConfig(impl->config));
  TC_ASSIGN_OR_RETURN(std::unique_ptr<runtime::WeightSource> source, runtime::OpenCheckpoint(folder));
  TC_RETURN_IF_ERROR(Finish(std::move(source), *impl));
  if (!options.cache.has_value()) TC_RETURN_IF_ERROR(CheckSurplus(folder, *impl->source));
  return std::shared_ptr<const Model>(new Model(std::move(impl)));
}

Result<std::shared_ptr<const Model>> Model::RandomUnguarded(const ModelConfig& config, const ModelOptions& options,
                                                            uint64_t seed) {
  TC_RETURN_IF_ERROR(CheckOptions(options));
  auto impl = std::make_unique<Impl>(options);
  impl->config = config;
  if (options.cache.has_value()) impl->config.cache = *options.cache;
  TC_RETURN_IF_ERROR(ValidateModelConfig(impl->config));
  TC_RETURN_IF_ERROR(Finish(runtime::MakeRandomSource(impl->config, seed), *impl));
  return std::shared_ptr<const Model>(new Model(std::move(impl)));
}

const ModelConfig& Model::config() const { return impl_->config; }
const ModelOptions& Model::options() const { return impl_->options; }
int Model::threads() const { return impl_->pool.threads(); }
ModelInfo Model::info() const {
  return {.parameters = impl_->weights.parameters, .weight_bytes = impl_->weights.bytes_per_token};
}
uint64_t Model::fingerprint() const { return impl_->fingerprint; }

}  // namespace tensorcache
