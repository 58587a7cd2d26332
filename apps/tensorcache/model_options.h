// What the commands that run a model share: the options that choose it, sizes in words.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/tensorcache/options.h"
#include "tensorcache/config.h"
#include "tensorcache/model.h"
#include "tensorcache/status.h"

namespace tensorcache::cli {

struct ModelArguments {
  std::string model;
  std::string weights = "fp32";  // comma-separated where a command compares several
  std::string ring = "fp32";
  int threads = 0;
  std::optional<std::string>
      method;  // the checkpoint's own if not given; comma-separated where a command compares several
  std::optional<int64_t> window;
  std::optional<int64_t> sinks;
};

// --model, --weights, --ring, --threads, --method, --window, --sinks. `lists`: weights and method may name several.
void AddModelOptions(Options& app, ModelArguments& arguments, bool lists = false);

// One of the models that the arguments ask for.
struct ModelVariant {
  CacheMethod method = CacheMethod::kTensorCache;
  CacheMethod trained = CacheMethod::kTensorCache;  // the checkpoint's own
  WeightType weights = WeightType::kFp32;
  ModelOptions options;
};
// One for each of the methods with each of the weights. Reads config.json; kInvalidArgument for names that do not exist, and
// for a window or sinks that none of the methods has.
Result<std::vector<ModelVariant>> ModelVariants(const ModelArguments& arguments);
// The only one.
Result<ModelVariant> OnlyModelVariant(const ModelArguments& arguments);
// The only one, loaded.
Result<std::shared_ptr<const Model>> LoadModel(const ModelArguments& arguments);

// Numbers with blanks, line ends or a comma between.
Result<std::vector<int32_t>> ParseTokenNumbers(std::string_view text);

// "112 KiB", "38.2 MiB".
std::string BytesText(int64_t bytes);

// "rotary base 10000 (llama3 scaling, factor 8)"
std::string PositionText(const ModelConfig& config);

}  // namespace tensorcache::cli
