// tensorcache import: a model that others trained becomes a checkpoint of ours.
#include "apps/tensorcache/command.h"
#include "apps/tensorcache/model_options.h"
#include "apps/tensorcache/options.h"
#include "apps/tensorcache/output.h"
#include "apps/tensorcache/terminal.h"
#include "core/config.h"
#include "methods/method.h"
#include "pretrained/import.h"

namespace tensorcache::cli {
namespace {

// Words that a shell takes as one.
std::string ShellWord(const std::string& text) {
  if (text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+=,:@%") == text.npos) {
    return text;
  }
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

void PrintReport(const pretrained::ImportReport& report, const std::string& out) {
  const ModelConfig& config = report.config;
  Print("model        {}, {} parameters in {} tensors, {}\n", report.architecture, report.parameters, report.tensors,
        BytesText(report.bytes));
  Print("             {} layers, width {}, {} query and {} key/value heads of {}\n", config.num_hidden_layers,
        config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.HeadDim());
  Print("             trained on {} tokens at a time, {}\n", config.max_position_embeddings, PositionText(config));
  Print("attention    {}\n", methods::MethodOf(config.cache).KeepsEverything()
                                 ? std::string("all tokens")
                                 : fmt::format("the last {} tokens", config.cache.window));
  Print("tokenizer    {}\n", report.tokenizer.empty()
                                 ? std::string("none")
                                 : fmt::format("{}, {} tokens", report.tokenizer, report.tokenizer_tokens));
  for (const std::string& note : report.notes) Print("note         {}\n", note);
  Print("written      {}\n\n", out);
  Print("Try it: tensorcache generate --model {} {}\n", ShellWord(out),
        report.tokenizer.empty() ? "--tokens 1,2,3"
                                 : fmt::format("--prompt 'Once upon a time'{}", report.has_begin ? " --begin" : ""));
}

}  // namespace

Status RunImport(const CommandLine& line) {
  pretrained::ImportOptions options;
  Options app(
      "Turns a model that others trained into a checkpoint folder of this program.\n\n"
      "Reads Hugging Face folders (config.json and safetensors, in one file or in shards) of the architectures "
      "LlamaForCausalLM (Llama 1 to 3, SmolLM, TinyLlama), MistralForCausalLM, Qwen2ForCausalLM and GPT2LMHeadModel, "
      "and "
      "llama2.c's .bin files with their tokenizer.bin. Numbers stay as they are: F32, F16 or BF16. A window that the "
      "model "
      "has becomes the window of the cache; otherwise it attends to everything, and generate --method window or "
      "streaming_llm bounds its state.");
  app.add_option("--from", options.from, "The Hugging Face folder, or the .bin file, or the folder with it")
      ->type_name("DIR|FILE")
      ->required();
  app.add_option("--out", options.out, "The folder to write to; made if it is not there")->type_name("DIR")->required();
  app.add_option("--tokenizer", options.tokenizer,
                 "Take the tokenizer from this file or folder, not from beside the model")
      ->type_name("FILE");
  app.add_flag("--force", options.force, "Replace a model that is in the folder");
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  Progress progress;
  options.progress = [&](int64_t done, int64_t total) {
    progress.ShowPart(static_cast<double>(done) / static_cast<double>(total), "writing " + BytesText(total));
  };
  TC_ASSIGN_OR_RETURN(const pretrained::ImportReport report, pretrained::ImportModel(options));
  progress.Clear();
  PrintReport(report, options.out);
  return OkStatus();
}

}  // namespace tensorcache::cli
