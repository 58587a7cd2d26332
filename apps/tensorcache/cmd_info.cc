// tensorcache info: what a checkpoint is, what its memory has learned, and how large its sessions are.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "apps/tensorcache/command.h"
#include "apps/tensorcache/model_options.h"
#include "apps/tensorcache/options.h"
#include "apps/tensorcache/output.h"
#include "core/config.h"
#include "core/model_files.h"
#include "core/safetensors.h"
#include "core/tensor_floats.h"
#include "experiments/methods.h"
#include "methods/method.h"
#include "runtime/state_size.h"
#include "tensorcache/model.h"

namespace tensorcache::cli {
namespace {

constexpr int64_t kContexts[] = {1 << 10, 1 << 12, 1 << 15, 1 << 17, 1'000'000};

struct Range {
  double low = 0;
  double high = 0;
};

Range RangeOf(const std::vector<double>& values) {
  const auto [low, high] = std::ranges::minmax(values);
  return {low, high};
}

// What one layer has learned for its cache method.
struct LayerMemory {
  int64_t layer = 0;
  std::vector<methods::LearnedFigure> figures;
};

// One entry for each layer that has learned something.
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

// Bytes of a session of each method after kContexts tokens.
struct StateRow {
  CacheMethod method;
  RingType ring;
  std::vector<int64_t> bytes;
};

std::vector<StateRow> StateRows(ModelConfig config) {
  std::vector<StateRow> rows;
  for (const auto& [number, name] : EnumNames(CacheMethod{})) {
    config.cache.method = number;
    for (const RingType ring : {RingType::kFp32, RingType::kBf16}) {
      const TwoLevelCacheConfig cache = runtime::CacheConfigOf(config, ring);
      StateRow row{.method = number, .ring = ring};
      for (const int64_t context : kContexts) {
        row.bytes.push_back(runtime::StateBytesAfter(cache, context).total());
      }
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

// Whether a key of CacheConfig is an option of another method.
bool IsOfOtherMethod(const std::string& key, CacheMethod method) {
  for (const auto& [other, name] : EnumNames(CacheMethod{})) {
    if (other != method && key.starts_with(std::string(name) + ".")) return true;
  }
  return false;
}

// "tensor_cache.write.rule = delta" for each key of the method that is not at its default, but for method and window.
std::vector<std::string> ChangedKeys(const CacheConfig& cache) {
  std::vector<std::string> changed;
  const std::vector<ConfigKey> keys = ConfigKeys(cache), defaults = ConfigKeys(CacheConfig{});
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].value == defaults[i].value || keys[i].path == "method" || keys[i].path == "window") continue;
    if (!IsOfOtherMethod(keys[i].path, cache.method))
      changed.push_back(fmt::format("{} = {}", keys[i].path, keys[i].value));
  }
  return changed;
}

struct Checkpoint {
  std::string folder;
  ModelConfig config;
  ModelInfo info;
  int64_t file_bytes = 0;
  size_t tensors = 0;
  std::vector<std::string> dtypes;
  std::string tokenizer;  // "" if there is none
  int64_t tokenizer_tokens = 0;
  std::vector<LayerMemory> memories;
  std::vector<StateRow> states;
};

Result<Checkpoint> ReadCheckpoint(const std::string& folder) {
  Checkpoint checkpoint{.folder = folder};
  TC_ASSIGN_OR_RETURN(const auto model, LoadModel(folder, ModelOptions{.threads = 1}));
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

std::string RangeText(const Range& range, int digits) {
  const std::string low = fmt::format("{:.{}f}", range.low, digits), high = fmt::format("{:.{}f}", range.high, digits);
  return low == high ? low : fmt::format("{} to {}", low, high);
}

void PrintModel(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config;
  std::string dtypes;
  for (const std::string& dtype : checkpoint.dtypes) dtypes += (dtypes.empty() ? "" : ", ") + dtype;
  Print("parameters   {}\n", checkpoint.info.parameters);
  Print("model        {} layers, width {}, {}feed-forward {}, {} query and {} key/value heads of {}\n",
        config.num_hidden_layers, config.hidden_size, config.gated_mlp ? "gated " : "", config.intermediate_size,
        config.num_attention_heads, config.num_key_value_heads, config.HeadDim());
  Print("             {}, {}, {}, trained on {} tokens at a time\n", NameOf(config.norm), NameOf(config.hidden_act),
        PositionText(config), config.max_position_embeddings);
  Print("vocabulary   {} tokens{}\n", config.vocab_size,
        config.tie_word_embeddings ? ", embedding and output shared" : "");
  Print("tokenizer    {}\n", checkpoint.tokenizer.empty()
                                 ? std::string("none: texts are token numbers")
                                 : fmt::format("{}, {} tokens", checkpoint.tokenizer, checkpoint.tokenizer_tokens));
  Print("weights      {} in {} tensors of {}; a decoded token reads {}\n", BytesText(checkpoint.file_bytes),
        checkpoint.tensors, dtypes, BytesText(checkpoint.info.weight_bytes));
  Print("cache        {}{}\n", NameOf(config.cache.method),
        methods::MethodOf(config.cache).KeepsEverything() ? "" : fmt::format(", window {}", config.cache.window));
  for (const std::string& key : ChangedKeys(config.cache)) Print("             {}\n", key);
}

void PrintMemories(const Checkpoint& checkpoint) {
  if (checkpoint.memories.empty()) return;
  const std::string note = methods::MethodOf(checkpoint.config.cache).FiguresNote(checkpoint.config.cache);
  Print("\nLearned, over heads.{}\n\nlayer  ", note.empty() ? "" : " " + note);
  const std::vector<methods::LearnedFigure>& columns = checkpoint.memories[0].figures;
  for (size_t i = 0; i < columns.size(); ++i) Print("{:<{}}", columns[i].name, i + 1 < columns.size() ? 20 : 0);
  Print("\n");
  for (const LayerMemory& memory : checkpoint.memories) {
    size_t rows = 0;
    for (const methods::LearnedFigure& figure : memory.figures) rows = std::max(rows, figure.rows.size());
    for (size_t row = 0; row < rows; ++row) {
      Print("{:>5}  ", row == 0 ? fmt::format("{}", memory.layer) : "slow");
      for (size_t i = 0; i < memory.figures.size(); ++i) {
        const methods::LearnedFigure& figure = memory.figures[i];
        const std::string text =
            row < figure.rows.size() ? RangeText(RangeOf(figure.rows[row]), figure.digits) : std::string();
        Print("{:<{}}", text, i + 1 < memory.figures.size() ? 20 : 0);
      }
      Print("\n");
    }
  }
}

void PrintStates(const Checkpoint& checkpoint) {
  Print("\nState of a session with window {}, after so many tokens\n\n{:<14}{:<6}", checkpoint.config.cache.window,
        "method", "ring");
  for (const int64_t context : kContexts) {
    Print("{:>10}", experiments::ContextLabel(context));
  }
  Print("\n");
  for (const StateRow& row : checkpoint.states) {
    Print("{:<14}{:<6}", NameOf(row.method), NameOf(row.ring));
    for (const int64_t bytes : row.bytes) Print("{:>10}", BytesText(bytes));
    Print("\n");
  }
}

OrderedJson RangeJson(const Range& range) { return {{"low", range.low}, {"high", range.high}}; }

// A range over heads; of a memory with several timescales, one for each.
OrderedJson FigureJson(const methods::LearnedFigure& figure) {
  if (!figure.by_timescale) return RangeJson(RangeOf(figure.rows[0]));
  OrderedJson json = OrderedJson::array();
  for (const std::vector<double>& row : figure.rows) json.push_back(RangeJson(RangeOf(row)));
  return json;
}

std::string InfoJson(const Checkpoint& checkpoint) {
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
        {{"method", NameOf(row.method)}, {"ring", NameOf(row.ring)}, {"contexts", kContexts}, {"bytes", row.bytes}});
  }
  return JsonText(json);
}

}  // namespace

Status RunModelInfo(const CommandLine& line) {
  std::string folder, json_path;
  Options app("Tells what a checkpoint is, what its memory has learned, and how large its sessions are.");
  app.add_option("DIR", folder, "The checkpoint folder")->required();
  app.add_option("--json", json_path, "Also write the figures to FILE")->type_name("FILE");
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  TC_RETURN_IF_ERROR(CheckOutputPath(json_path));
  TC_ASSIGN_OR_RETURN(const Checkpoint checkpoint, ReadCheckpoint(folder));
  PrintModel(checkpoint);
  PrintMemories(checkpoint);
  PrintStates(checkpoint);
  return WriteOutput(json_path, InfoJson(checkpoint));
}

}  // namespace tensorcache::cli
