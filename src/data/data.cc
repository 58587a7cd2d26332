#include "data/data.h"

#include <string>

#include "data/text_source.h"

namespace tensorcache::data {
namespace {

Result<std::shared_ptr<const Tokenizer>> MakeTokenizer(const TextDataConfig& config) {
  if (config.tokenizer != "characters") return LoadTokenizer(config.tokenizer);
  TC_ASSIGN_OR_RETURN(const std::string characters, DistinctCharacters(config));
  return MakeCharacterTokenizer(characters);
}

}  // namespace

Result<std::unique_ptr<BatchSource>> MakeSource(const DataConfig& config, const SourceOptions& options,
                                                std::shared_ptr<const Tokenizer>* tokenizer_out) {
  if (tokenizer_out != nullptr) tokenizer_out->reset();
  if (config.kind == DataKind::kRecall) {
    if (options.consecutive) {
      return InvalidArgument(
          "data.kind recall has no consecutive order: its sequences are independent, so there is no state to carry "
          "from "
          "one to the next. Use data.kind text, or do not carry the state");
    }
    return MakeRecallSource(config.recall, options.seed);
  }
  if (config.text.path.empty()) {
    return InvalidArgument("data.text.path is empty; give a text file or a folder of text files");
  }
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
