// A checkpoint folder: its model, its tokenizer, and what there is to know about it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/json.h"
#include "methods/method.h"
#include "tensorcache/config.h"
#include "tensorcache/model.h"
#include "tensorcache/status.h"
#include "tensorcache/tokenizer.h"

namespace tensorcache::runtime {

// Model::Load, with messages for people who named the folder and chose the options.
Result<std::shared_ptr<const Model>> LoadCheckpoint(const std::string& folder, const ModelOptions& options);

// Its config.json.
Result<ModelConfig> ReadModelConfig(const std::string& folder);

// The tokenizer called `name`, or if that is empty the one in the model's folder; null if there is none. kInvalidArgument if
// it has more tokens than the model.
Result<std::shared_ptr<const Tokenizer>> LoadTokenizerOf(const Model& model, const std::string& folder,
                                                         const std::string& name);

// A layer with this cache, of no particular size.
inline methods::LayerPlace AnyLayer(const CacheConfig& cache) { return {.cache = cache, .head_dim = 2}; }

// "full, window or streaming_llm": the methods with which this cache is as wanted.
std::string MethodsThat(CacheConfig cache, const std::function<bool(const CacheConfig&)>& wanted);

// What one layer has learned for its cache method.
struct LayerMemory {
  int64_t layer = 0;
  std::vector<methods::LearnedFigure> figures;
};

// Bytes of a session of a method after so many tokens.
struct StateRow {
  CacheMethod method;
  RingType ring;
  std::vector<int64_t> contexts;
  std::vector<int64_t> bytes;  // one for each of `contexts`
};

struct CheckpointInfo {
  std::string folder;
  ModelConfig config;
  ModelInfo info;
  int64_t file_bytes = 0;
  size_t tensors = 0;
  std::vector<std::string> dtypes;
  std::string tokenizer;  // "" if there is none
  int64_t tokenizer_tokens = 0;
  std::vector<LayerMemory> memories;  // one for each layer that has learned something
  std::vector<StateRow> states;
};
Result<CheckpointInfo> ReadCheckpointInfo(const std::string& folder);
OrderedJson CheckpointInfoJson(const CheckpointInfo& info);

struct FigureRange {
  double low = 0;
  double high = 0;
};
// Over heads; not of an empty row.
FigureRange RangeOf(const std::vector<double>& values);

}  // namespace tensorcache::runtime
