#include "runtime/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/config.h"
#include "core/file.h"
#include "core/model_files.h"
#include "core/safetensors.h"
#include "core/tensor_floats.h"
#include "core/text.h"
#include "runtime/state_size.h"
#include "tokenizer/files.h"

namespace tensorcache::runtime {
namespace {

constexpr int64_t kContexts[] = {1 << 10, 1 << 12, 1 << 15, 1 << 17, 1'000'000};

Status CheckFolder(const std::string& folder) {
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return OkStatus();
  return NotFound(fmt::format("there is no model {}; name a checkpoint folder, with config.json and model.safetensors",
                              Quoted(folder)));
}

// Whether the method has learned tensors in a layer, which a checkpoint may lack.
bool Learns(const CacheConfig& cache) { return !methods::MethodOf(cache).Tensors(AnyLayer(cache)).empty(); }

Result<std::vector<LayerMemory>> ReadMemories(const SafetensorsFile& file, const ModelConfig& config) {
  const methods::Method& method = methods::MethodOf(config.cache);
  std::vector<LayerMemory> layers;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const methods::LayerPlace place = methods::PlaceOf(config, layer);
    LearnedNumbers numbers;
    for (const methods::LearnedTensor& tensor : method.Tensors(place)) {
      if (tensor.role != methods::LearnedTensor::Role::kNumbers) continue;
      const std::string name = methods::TensorName(method, layer, tensor);
      TC_ASSIGN_OR_RETURN(const TensorRef stored, file.Find(name));
      TC_ASSIGN_OR_RETURN(numbers[tensor.name], AllFloats(name, stored));
    }
    LayerMemory memory{.layer = layer, .figures = method.Figures(place, numbers)};
    if (!memory.figures.empty()) layers.push_back(std::move(memory));
  }
  return layers;
}

std::vector<StateRow> StateRows(ModelConfig config) {
  std::vector<StateRow> rows;
  for (const auto& [number, name] : EnumNames(CacheMethod{})) {
    config.cache.method = number;
    for (const RingType ring : {RingType::kFp32, RingType::kBf16}) {
      const TwoLevelCacheConfig cache = CacheConfigOf(config, ring);
      StateRow row{.method = number, .ring = ring};
      for (const int64_t context : kContexts) {
        row.contexts.push_back(context);
        row.bytes.push_back(StateBytesAfter(cache, context).total());
      }
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

OrderedJson RangeJson(const FigureRange& range) { return {{"low", range.low}, {"high", range.high}}; }

// A range over heads; of a memory with several timescales, one for each.
OrderedJson FigureJson(const methods::LearnedFigure& figure) {
  if (!figure.by_timescale) return RangeJson(RangeOf(figure.rows[0]));
  OrderedJson json = OrderedJson::array();
  for (const std::vector<double>& row : figure.rows) json.push_back(RangeJson(RangeOf(row)));
  return json;
}

}  // namespace

FigureRange RangeOf(const std::vector<double>& values) {
  const auto [low, high] = std::ranges::minmax(values);
  return {low, high};
}

std::string MethodsThat(CacheConfig cache, const std::function<bool(const CacheConfig&)>& wanted) {
  std::vector<std::string_view> names;
  for (const auto& [method, name] : EnumNames(CacheMethod{})) {
    cache.method = method;
    if (wanted(cache)) names.push_back(name);
  }
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 < names.size() ? ", " : " or ", names[i]);
  }
  return text;
}

Result<std::shared_ptr<const Model>> LoadCheckpoint(const std::string& folder, const ModelOptions& options) {
  TC_RETURN_IF_ERROR(CheckFolder(folder));
  auto model = Model::Load(folder, options);
  if (model.ok() || model.status().code() != StatusCode::kNotFound || !options.cache.has_value()) return model;
  const CacheMethod method = options.cache->method;
  const bool has_weights = Exists(std::filesystem::path(folder) / kModelFile);
  if (!has_weights || !Learns(*options.cache)) return model;
  return InvalidArgument(
      fmt::format("{} lacks learned weights that method {} needs; take {}, or a model that was trained with {}",
                  Quoted(folder), NameOf(method), MethodsThat(*options.cache, std::not_fn(Learns)), NameOf(method)));
}

Result<ModelConfig> ReadModelConfig(const std::string& folder) {
  TC_RETURN_IF_ERROR(CheckFolder(folder));
  ModelConfig config;
  TC_RETURN_IF_ERROR(ReadConfigFile((std::filesystem::path(folder) / kConfigFile).string(), &config));
  return config;
}

Result<std::shared_ptr<const Tokenizer>> LoadTokenizerOf(const Model& model, const std::string& folder,
                                                         const std::string& name) {
  if (name.empty() && tokenizer::TokenizerFileIn(folder).empty()) return std::shared_ptr<const Tokenizer>();
  const std::string& source = name.empty() ? folder : name;
  TC_ASSIGN_OR_RETURN(auto tokenizer, LoadTokenizer(source));
  if (tokenizer->vocab_size() <= model.config().vocab_size) return tokenizer;
  return InvalidArgument(fmt::format("the tokenizer {} has {} tokens, but the model {}; it belongs to another model",
                                     Quoted(source), tokenizer->vocab_size(), model.config().vocab_size));
}

Result<CheckpointInfo> ReadCheckpointInfo(const std::string& folder) {
  CheckpointInfo checkpoint{.folder = folder};
  TC_ASSIGN_OR_RETURN(const auto model, LoadCheckpoint(folder, ModelOptions{.threads = 1}));
  checkpoint.config = model->config();
  checkpoint.info = model->info();
  const std::string path = (std::filesystem::path(folder) / kModelFile).string();
  TC_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  checkpoint.tensors = file.names().size();
  for (const std::string_view name : file.names()) {
    TC_ASSIGN_OR_RETURN(const TensorRef tensor, file.Find(name));
    const std::string dtype(DTypeName(tensor.dtype));
    if (std::ranges::find(checkpoint.dtypes, dtype) == checkpoint.dtypes.end()) checkpoint.dtypes.push_back(dtype);
  }
  std::error_code error;
  checkpoint.file_bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
  TC_ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizerOf(*model, folder, ""));
  if (tokenizer != nullptr) {
    checkpoint.tokenizer = tokenizer->kind();
    checkpoint.tokenizer_tokens = tokenizer->vocab_size();
  }
  TC_ASSIGN_OR_RETURN(checkpoint.memories, ReadMemories(file, checkpoint.config));
  checkpoint.states = StateRows(checkpoint.config);
  return checkpoint;
}

OrderedJson CheckpointInfoJson(const CheckpointInfo& checkpoint) {
  OrderedJson json = {{"model", checkpoint.folder},          {"parameters", checkpoint.info.parameters},
                      {"file_bytes", checkpoint.file_bytes}, {"weight_bytes_per_token", checkpoint.info.weight_bytes},
                      {"tokenizer", checkpoint.tokenizer},   {"config", ToJson(checkpoint.config)},
                      {"memories", OrderedJson::array()},    {"states", OrderedJson::array()}};
  for (const LayerMemory& memory : checkpoint.memories) {
    OrderedJson entry = {{"layer", memory.layer}};
    for (const methods::LearnedFigure& figure : memory.figures) {
      std::string key = figure.name;
      std::ranges::replace(key, '-', '_');
      entry[key] = FigureJson(figure);
    }
    json["memories"].push_back(std::move(entry));
  }
  for (const StateRow& row : checkpoint.states) {
    json["states"].push_back(
        {{"method", NameOf(row.method)}, {"ring", NameOf(row.ring)}, {"contexts", row.contexts}, {"bytes", row.bytes}});
  }
  return json;
}

}  // namespace tensorcache::runtime
