// The files tokenizers are kept in.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "core/json.h"
#include "tensorcache/tokenizer.h"

namespace tensorcache::tokenizer {

inline constexpr std::string_view kTokenizerJson = "tokenizer.json";
inline constexpr std::string_view kTokenizerConfigJson = "tokenizer_config.json";
inline constexpr std::string_view kTokenizerModel = "tokenizer.model";
inline constexpr std::string_view kCharactersJson = "characters.json";
inline constexpr std::string_view kBytesJson = "bytes.json";

// A vocabulary and its merges, in files of their own: GPT-2's names, and Hugging Face's for the same.
struct FilePair {
  std::string_view vocabulary;
  std::string_view merges;
};
inline constexpr std::array<FilePair, 2> kFilePairs = {{{"encoder.json", "vocab.bpe"}, {"vocab.json", "merges.txt"}}};

// All of them, in the order in which LoadTokenizer looks.
inline constexpr auto kTokenizerFiles =
    std::to_array<std::string_view>({kTokenizerJson, kTokenizerModel, kFilePairs[0].vocabulary, kFilePairs[0].merges,
                                     kFilePairs[1].vocabulary, kFilePairs[1].merges, kCharactersJson, kBytesJson});

// What other programs keep beside a tokenizer, and we hardly need: tokens by their roles, the template of a chat, how to
// sample.
inline constexpr auto kCompanionFiles =
    std::to_array<std::string_view>({kTokenizerConfigJson, "special_tokens_map.json", "added_tokens.json",
                                     "chat_template.jinja", "generation_config.json"});
// Copies those of them that `from` has, if it is a folder, and is another one.
Status CopyCompanionFiles(const std::string& from, const std::string& to);

// tokenizer_config.json in the folder of the file `path`.
std::string ConfigBeside(const std::string& path);

// The file of this folder that LoadTokenizer would read first, or "".
std::string_view TokenizerFileIn(const std::string& folder);

// Writes folder/name. Fails if the folder has another tokenizer file, which LoadTokenizer would read instead.
Status SaveTokenizerFile(const std::string& folder, std::string_view name, std::string_view content);

// The loaders of single kinds. Messages of those that take a path name it.
Result<std::shared_ptr<const Tokenizer>> LoadGpt2Files(const std::string& vocabulary_path,
                                                       const std::string& merges_path);
Result<std::shared_ptr<const Tokenizer>> LoadSentencePieceModel(const std::string& path);
Result<std::shared_ptr<const Tokenizer>> ParseCharactersJson(const Json& json);

}  // namespace tensorcache::tokenizer
