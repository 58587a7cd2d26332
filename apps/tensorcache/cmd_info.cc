// tensorcache info: what a checkpoint is, what its memory has learned, and how large its sessions are.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "apps/tensorcache/command.h"
#include "apps/tensorcache/json_file.h"
#include "apps/tensorcache/model_options.h"
#include "apps/tensorcache/options.h"
#include "core/config.h"
#include "core/model_files.h"
#include "core/safetensors.h"
#include "core/tensor_floats.h"
#include "experiments/methods.h"
#include "tensorcache/cache.h"
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

// What one layer has learned about its memory. Ranges are over heads; of two timescales, the second is the slow one.
struct LayerMemory {
  int64_t layer = 0;
  std::vector<Range> lambda;
  std::vector<Range> half_life;  // writes until half of a pair is left: tokens, unless slots share them
  std::vector<Range> eta;
  Range gate;  // tensor_cache: one a layer; infini: one a head
};

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
// Straight from the logit: 1 - lambda has lost its digits.
double HalfLife(double lambda_logit) { return std::log(2.0) / std::log1p(std::exp(-lambda_logit)); }

template <class F>
std::vector<double> Map(std::vector<double> values, F f) {
  for (double& value : values) value = f(value);
  return values;
}

class MemoryReader {
 public:
  MemoryReader(const SafetensorsFile& file, const ModelConfig& config) : file_(file), config_(config) {}

  // One entry for each layer with a memory.
  Result<std::vector<LayerMemory>> Read() const {
    std::vector<LayerMemory> layers;
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      const std::string at = fmt::format("model.layers.{}.self_attn.", layer);
      LayerMemory memory{.layer = layer};
      if (config_.cache.method == CacheMethod::kInfini) {
        TC_ASSIGN_OR_RETURN(const auto gates, Numbers(at + "infini.gate"));
        memory.gate = RangeOf(Map(gates, Sigmoid));
      } else if (config_.HasTensorCache(layer)) {
        TC_RETURN_IF_ERROR(ReadTensorCache(at + "tensor_cache.", memory));
      } else {
        continue;
      }
      layers.push_back(std::move(memory));
    }
    return layers;
  }

 private:
  Status ReadTensorCache(const std::string& at, LayerMemory& memory) const {
    TC_ASSIGN_OR_RETURN(const auto lambda, Numbers(at + "lambda_logit"));
    TC_ASSIGN_OR_RETURN(const auto eta, Numbers(at + "eta_logit"));
    TC_ASSIGN_OR_RETURN(const auto gate, Numbers(at + "gate"));
    const size_t timescales = config_.cache.tensor_cache.two_timescale ? 2 : 1;
    for (size_t timescale = 0; timescale < timescales; ++timescale) {
      const std::vector<double> logits = Column(lambda, timescale, timescales);
      memory.lambda.push_back(RangeOf(Map(logits, Sigmoid)));
      memory.half_life.push_back(RangeOf(Map(logits, HalfLife)));
      memory.eta.push_back(RangeOf(Map(Column(eta, timescale, timescales), Sigmoid)));
    }
    memory.gate = RangeOf(Map(gate, Sigmoid));
    return OkStatus();
  }

  Result<std::vector<double>> Numbers(const std::string& name) const {
    TC_ASSIGN_OR_RETURN(const TensorRef tensor, file_.Find(name));
    TC_RETURN_IF_ERROR(CheckIsFloat(name, tensor));
    std::vector<float> floats(tensor.data.size() / static_cast<size_t>(DTypeBytes(tensor.dtype)));
    ReadFloats(tensor, 0, static_cast<int64_t>(floats.size()), floats.data());
    return std::vector<double>(floats.begin(), floats.end());
  }
  // (heads, timescales), one column of it.
  static std::vector<double> Column(const std::vector<double>& values, size_t column, size_t columns) {
    std::vector<double> picked;
    for (size_t i = column; i < values.size(); i += columns) picked.push_back(values[i]);
    return picked;
  }

  const SafetensorsFile& file_;
  const ModelConfig& config_;
};

// Bytes of a session of each method after kContexts tokens.
struct StateRow {
  CacheMethod method;
  RingType ring;
  std::vector<int64_t> bytes;
};

// An empty session's cache: but for method full, sessions stay as large as that.
Result<TwoLevelCache> EmptyCache(const ModelConfig& config, CacheMethod method, RingType ring) {
  TwoLevelCacheConfig cache = {.layers = config.num_hidden_layers,
                               .query_heads = config.num_attention_heads,
                               .kv_heads = config.num_key_value_heads,
                               .head_dim = config.HeadDim(),
                               .cache = config.cache,
                               .ring = ring};
  cache.cache.method = method;
  std::vector<MemoryParameters> memories;
  if (const int64_t slots = config.cache.tensor_cache.slots; method == CacheMethod::kTensorCache && slots > 1) {
    // The values do not matter for the size.
    const MemoryParameters memory{
        .slot_keys = std::vector<float>(static_cast<size_t>(cache.kv_heads * slots * cache.head_dim), 1.0f)};
    memories.assign(static_cast<size_t>(cache.layers), memory);
  }
  return TwoLevelCache::Create(cache, std::move(memories));
}

Result<std::vector<StateRow>> StateRows(const ModelConfig& config) {
  std::vector<StateRow> rows;
  const int64_t numbers =
      2 * config.num_hidden_layers * config.num_key_value_heads * config.HeadDim();  // a token's k, v
  for (const auto& [method, name] : EnumNames(CacheMethod{})) {
    for (const RingType ring : {RingType::kFp32, RingType::kBf16}) {
      TC_ASSIGN_OR_RETURN(const TwoLevelCache empty, EmptyCache(config, method, ring));
      StateRow row{.method = method, .ring = ring};
      for (const int64_t context : kContexts) {
        const int64_t grown = method == CacheMethod::kFull ? context * numbers * (ring == RingType::kFp32 ? 4 : 2) : 0;
        row.bytes.push_back(empty.memory().total() + grown);
      }
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

// "tensor_cache.rule = delta" for each key of the method that is not at its default, but for method and window.
std::vector<std::string> ChangedKeys(const CacheConfig& cache) {
  std::vector<std::string> changed;
  const std::vector<ConfigKey> keys = ConfigKeys(cache), defaults = ConfigKeys(CacheConfig{});
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].value == defaults[i].value || keys[i].path == "method" || keys[i].path == "window") continue;
    const bool other_method = (keys[i].path.starts_with("infini.") && cache.method != CacheMethod::kInfini) ||
                              (keys[i].path.starts_with("tensor_cache.") && cache.method != CacheMethod::kTensorCache);
    if (!other_method) changed.push_back(fmt::format("{} = {}", keys[i].path, keys[i].value));
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
  TC_ASSIGN_OR_RETURN(checkpoint.memories, MemoryReader(file, checkpoint.config).Read());
  TC_ASSIGN_OR_RETURN(checkpoint.states, StateRows(checkpoint.config));
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
  fmt::print("parameters   {}\n", checkpoint.info.parameters);
  fmt::print("model        {} layers, width {}, {}feed-forward {}, {} query and {} key/value heads of {}\n",
             config.num_hidden_layers, config.hidden_size, config.gated_mlp ? "gated " : "", config.intermediate_size,
             config.num_attention_heads, config.num_key_value_heads, config.HeadDim());
  fmt::print("             {}, {}, {}, trained on {} tokens at a time\n", NameOf(config.norm),
             NameOf(config.hidden_act), PositionText(config), config.max_position_embeddings);
  fmt::print("vocabulary   {} tokens{}\n", config.vocab_size,
             config.tie_word_embeddings ? ", embedding and output shared" : "");
  fmt::print("tokenizer    {}\n", checkpoint.tokenizer.empty() ? std::string("none: texts are token numbers")
                                                               : fmt::format("{}, {} tokens", checkpoint.tokenizer,
                                                                             checkpoint.tokenizer_tokens));
  fmt::print("weights      {} in {} tensors of {}; a decoded token reads {}\n", BytesText(checkpoint.file_bytes),
             checkpoint.tensors, dtypes, BytesText(checkpoint.info.weight_bytes));
  fmt::print("cache        {}{}\n", NameOf(config.cache.method),
             config.cache.method == CacheMethod::kFull ? "" : fmt::format(", window {}", config.cache.window));
  for (const std::string& key : ChangedKeys(config.cache)) fmt::print("             {}\n", key);
}

void PrintMemories(const Checkpoint& checkpoint) {
  if (checkpoint.memories.empty()) return;
  const TensorCacheConfig& tc = checkpoint.config.cache.tensor_cache;
  if (checkpoint.config.cache.method == CacheMethod::kInfini) {
    fmt::print("\nlayer  gate (over heads)\n");
    for (const LayerMemory& memory : checkpoint.memories) {
      fmt::print("{:>5}  {}\n", memory.layer, RangeText(memory.gate, 3));
    }
    return;
  }
  fmt::print("\nLearned, over heads. Half-life: {} until half of a pair is left.{}\n\n",
             tc.slots > 1 ? "writes to its slot" : "tokens",
             tc.gate == MemoryGate::kPerToken ? " The gate also depends on the token." : "");
  fmt::print("layer  {:<20}{:<20}{:<20}gate\n", "lambda", "half-life", "eta");
  for (const LayerMemory& memory : checkpoint.memories) {
    for (size_t i = 0; i < memory.lambda.size(); ++i) {
      fmt::print("{:>5}  {:<20}{:<20}{:<20}{}\n", i == 0 ? fmt::format("{}", memory.layer) : "slow",
                 RangeText(memory.lambda[i], 4), RangeText(memory.half_life[i], 1), RangeText(memory.eta[i], 4),
                 i == 0 ? RangeText(memory.gate, 3) : "");
    }
  }
}

void PrintStates(const Checkpoint& checkpoint) {
  fmt::print("\nState of a session with window {}, after so many tokens\n\n{:<14}{:<6}", checkpoint.config.cache.window,
             "method", "ring");
  for (const int64_t context : kContexts) {
    fmt::print("{:>10}", experiments::ContextLabel(context));
  }
  fmt::print("\n");
  for (const StateRow& row : checkpoint.states) {
    fmt::print("{:<14}{:<6}", NameOf(row.method), NameOf(row.ring));
    for (const int64_t bytes : row.bytes) fmt::print("{:>10}", BytesText(bytes));
    fmt::print("\n");
  }
}

OrderedJson RangeJson(const Range& range) { return {{"low", range.low}, {"high", range.high}}; }

OrderedJson RangesJson(const std::vector<Range>& ranges) {
  OrderedJson json = OrderedJson::array();
  for (const Range& range : ranges) json.push_back(RangeJson(range));
  return json;
}

std::string InfoJson(const Checkpoint& checkpoint) {
  OrderedJson json = {{"model", checkpoint.folder},          {"parameters", checkpoint.info.parameters},
                      {"file_bytes", checkpoint.file_bytes}, {"weight_bytes_per_token", checkpoint.info.weight_bytes},
                      {"tokenizer", checkpoint.tokenizer},   {"config", ToJson(checkpoint.config)},
                      {"memories", OrderedJson::array()},    {"states", OrderedJson::array()}};
  for (const LayerMemory& memory : checkpoint.memories) {
    json["memories"].push_back({{"layer", memory.layer},
                                {"lambda", RangesJson(memory.lambda)},
                                {"half_life", RangesJson(memory.half_life)},
                                {"eta", RangesJson(memory.eta)},
                                {"gate", RangeJson(memory.gate)}});
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
  CLI::App app("Tells what a checkpoint is, what its memory has learned, and how large its sessions are.");
  app.add_option("DIR", folder, "The checkpoint folder")->required();
  app.add_option("--json", json_path, "Also write the figures to FILE")->type_name("FILE");
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  TC_RETURN_IF_ERROR(CheckOutputPath(json_path));
  TC_ASSIGN_OR_RETURN(const Checkpoint checkpoint, ReadCheckpoint(folder));
  PrintModel(checkpoint);
  PrintMemories(checkpoint);
  PrintStates(checkpoint);
  std::fflush(stdout);  // the file may be /dev/stdout
  return WriteOutput(json_path, InfoJson(checkpoint));
}

}  // namespace tensorcache::cli
