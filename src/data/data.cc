#include "data/data.h"

#include <fmt/format.h>

#include <string>

#include "core/config.h"
#include "core/file.h"
#include "core/text.h"
#include "data/text_source.h"

namespace tensorcache::data {
namespace {

Result<std::shared_ptr<const Tokenizer>> MakeTokenizer(const TextDataConfig& config) {
  if (config.tokenizer != "characters") return LoadTokenizer(config.tokenizer);
  TC_ASSIGN_OR_RETURN(const std::string characters, DistinctCharacters(config));
  return MakeCharacterTokenizer(characters);
}

// Presets name files that not everyone has: say which key wants another.
Status CheckThere(const char* key, const std::string& path) {
  if (path.empty() || Exists(path)) return OkStatus();
  return NotFound(
      fmt::format("data.text.{} is {}, which is not there; set data.text.{} to your own", key, Quoted(path), key));
}

Status CheckFiles(const TextDataConfig& config) {
  TC_RETURN_IF_ERROR(CheckThere("path", config.path));
  TC_RETURN_IF_ERROR(CheckThere("valid_path", config.valid_path));
  const bool named = config.tokenizer == "bytes" || config.tokenizer == "characters";
  return named ? OkStatus() : CheckThere("tokenizer", config.tokenizer);
}

// Text as a task: its tokens are bytes, so that digits are tokens, and a value has as many as its text.
Result<std::unique_ptr<BatchSource>> MakeNeedle(const DataConfig& config, const SourceOptions& options,
                                                std::shared_ptr<const Tokenizer>* tokenizer_out) {
  if (config.text.tokenizer != "bytes") {
    return InvalidArgument(fmt::format("data.kind needle is made of bytes; set data.text.tokenizer to bytes, not to {}",
                                       Quoted(config.text.tokenizer)));
  }
  const std::shared_ptr<const Tokenizer> tokenizer = MakeByteTokenizer();
  Corpus essays;
  if (config.needle.HasEssays() && !config.text.path.empty()) {
    TC_RETURN_IF_ERROR(CheckFiles(config.text));
    TC_ASSIGN_OR_RETURN(essays, OpenCorpus(config.text, *tokenizer, options.progress));
  }
  if (tokenizer_out != nullptr) *tokenizer_out = tokenizer;
  return MakeNeedleSource(config.needle, essays, options.seed);
}

Result<std::unique_ptr<BatchSource>> MakeTask(const DataConfig& config, const SourceOptions& options,
                                              std::shared_ptr<const Tokenizer>* tokenizer_out) {
  if (config.kind == DataKind::kRecall) return MakeRecallSource(config.recall, options.seed);
  if (config.kind == DataKind::kMqar) return MakeMqarSource(config.mqar, options.seed);
  return MakeNeedle(config, options, tokenizer_out);
}

}  // namespace

std::optional<TaskShape> TaskShapeOf(const DataConfig& config) {
  switch (config.kind) {
    case DataKind::kRecall:
      return TaskShape{.vocab_size = config.recall.VocabSize(),
                       .length = config.recall.Length(),
                       .answers = static_cast<double>(config.recall.episodes)};
    case DataKind::kMqar:
      return TaskShape{
          .vocab_size = config.mqar.vocab, .length = config.mqar.length, .answers = config.mqar.AnswersPerRow()};
    case DataKind::kNeedle:
      return TaskShape{.vocab_size = 256, .length = config.needle.length, .answers = config.needle.AnswersPerRow()};
    case DataKind::kText: break;
  }
  return {};
}

Status ValidateTask(const DataConfig& config) {
  switch (config.kind) {
    case DataKind::kRecall: return ValidateRecallConfig(config.recall);
    case DataKind::kMqar: return ValidateMqarConfig(config.mqar);
    case DataKind::kNeedle: return ValidateNeedleConfig(config.needle);
    case DataKind::kText: break;
  }
  return OkStatus();
}

Result<std::unique_ptr<BatchSource>> MakeSource(const DataConfig& config, const SourceOptions& options,
                                                std::shared_ptr<const Tokenizer>* tokenizer_out) {
  if (tokenizer_out != nullptr) tokenizer_out->reset();
  if (config.kind != DataKind::kText) {
    if (options.consecutive) {
      return InvalidArgument(
          fmt::format("data.kind {} has no consecutive order: its sequences are independent, so there is no state to "
                      "carry from one to the next. Use data.kind text, or do not carry the state",
                      NameOf(config.kind)));
    }
    return MakeTask(config, options, tokenizer_out);
  }
  if (config.text.path.empty()) {
    return InvalidArgument("data.text.path is empty; give a text file or a folder of text files");
  }
  TC_RETURN_IF_ERROR(CheckFiles(config.text));
  TC_ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, MakeTokenizer(config.text));
  TC_ASSIGN_OR_RETURN(const Corpus corpus, OpenCorpus(config.text, *tokenizer, options.progress));
  TC_ASSIGN_OR_RETURN(auto source, MakeTextSource(corpus, {.seed = options.seed,
                                                           .length = options.length,
                                                           .rows_per_batch = options.rows_per_batch,
                                                           .consecutive = options.consecutive,
                                                           .documents = config.text.documents}));
  if (tokenizer_out != nullptr) *tokenizer_out = std::move(tokenizer);
  return source;
}

}  // namespace tensorcache::data
