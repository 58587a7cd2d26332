// tensorcache info: what a checkpoint is, what its memory has learned, and how large its sessions are.
#include <algorithm>
#include <cmath>

#include "apps/tensorcache/command.h"
#include "apps/tensorcache/model_options.h"
#include "apps/tensorcache/options.h"
#include "apps/tensorcache/output.h"
#include "core/config.h"
#include "experiments/methods.h"
#include "methods/method.h"
#include "runtime/checkpoint.h"

namespace tensorcache::cli {
namespace {

using runtime::CheckpointInfo;
using runtime::FigureRange;
using runtime::LayerMemory;
using runtime::RangeOf;
using runtime::StateRow;

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

std::string RangeText(const FigureRange& range, int digits) {
  const std::string low = fmt::format("{:.{}f}", range.low, digits), high = fmt::format("{:.{}f}", range.high, digits);
  return low == high ? low : fmt::format("{} to {}", low, high);
}

void PrintModel(const CheckpointInfo& checkpoint) {
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

void PrintMemories(const CheckpointInfo& checkpoint) {
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

void PrintStates(const CheckpointInfo& checkpoint) {
  Print("\nState of a session with window {}, after so many tokens\n\n{:<14}{:<6}", checkpoint.config.cache.window,
        "method", "ring");
  for (const int64_t context : checkpoint.states[0].contexts) {
    Print("{:>10}", experiments::ContextLabel(context));
  }
  Print("\n");
  for (const StateRow& row : checkpoint.states) {
    Print("{:<14}{:<6}", NameOf(row.method), NameOf(row.ring));
    for (const int64_t bytes : row.bytes) Print("{:>10}", BytesText(bytes));
    Print("\n");
  }
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
  TC_ASSIGN_OR_RETURN(const CheckpointInfo checkpoint, runtime::ReadCheckpointInfo(folder));
  PrintModel(checkpoint);
  PrintMemories(checkpoint);
  PrintStates(checkpoint);
  return WriteOutput(json_path, JsonText(runtime::CheckpointInfoJson(checkpoint)));
}

}  // namespace tensorcache::cli
