// encoder.json and vocab.bpe, also known as vocab.json and merges.txt: the pre-tokenizer is not in the files, GPT-2's is
// meant.
#include <fmt/format.h>

#include "core/file.h"
#include "core/text.h"
#include "tokenizer/byte_level_bpe.h"
#include "tokenizer/files.h"
#include "tokenizer/json_parts.h"
#include "tokenizer/merge_reader.h"
#include "tokenizer/tokenizer_json.h"

namespace tensorcache::tokenizer {
namespace {

constexpr int64_t kMaxBytes = int64_t{64} << 20;
constexpr std::string_view kEndOfText = "<|endoftext|>";

Status InFile(const std::string& path, const Status& status) { return {status.code(), path + ": " + status.message()}; }

Status ReadMergesFile(std::string_view text, BpeParts* parts) {
  MergeReader reader(*parts);
  bool is_first = true;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const bool is_version = is_first && line.starts_with("#version");
    is_first = false;
    if (line.empty() || is_version) continue;
    TC_RETURN_IF_ERROR(reader.Add(line));
  }
  parts->merges = reader.TakeMerges();
  return OkStatus();
}

// Other models keep their vocabularies in files of the same names, but cut their text differently.
Status CheckIsGpt2(const std::string& vocabulary_path) {
  const std::string path = ConfigBeside(vocabulary_path);
  if (!Exists(path)) return OkStatus();
  TC_ASSIGN_OR_RETURN(Json config, ReadJsonFile(path));
  const JsonEmptier emptier(&config);
  const Json& found = Get(config, "tokenizer_class");
  if (!found.is_string()) return OkStatus();
  const std::string name = found;
  if (name == "GPT2Tokenizer" || name == "GPT2TokenizerFast") return OkStatus();
  return Unsupported(
      fmt::format("{}: the vocabulary belongs to a {}, not to GPT-2; add its tokenizer.json", path, Quoted(name)));
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> LoadGpt2Files(const std::string& vocabulary_path,
                                                       const std::string& merges_path) {
  TC_RETURN_IF_ERROR(CheckIsGpt2(vocabulary_path));
  TC_ASSIGN_OR_RETURN(Json vocabulary, ReadJsonFile(vocabulary_path, kMaxBytes));
  const JsonEmptier emptier(&vocabulary);
  TC_ASSIGN_OR_RETURN(const std::string merges, ReadWholeFile(merges_path, kMaxBytes));
  if (!vocabulary.is_object()) return Corrupt(vocabulary_path + ": not an object of tokens and their numbers");
  BpeParts parts;
  if (const auto end = vocabulary.find(kEndOfText); end != vocabulary.end() && TokenNumber(*end)) {
    parts.added.push_back({.id = *TokenNumber(*end), .text = std::string(kEndOfText)});
  }
  if (const Status status = ReadVocabulary(vocabulary, &parts); !status.ok()) return InFile(vocabulary_path, status);
  if (const Status status = ReadMergesFile(merges, &parts); !status.ok()) return InFile(merges_path, status);
  auto tokenizer = ByteLevelBpe::Make(std::move(parts));
  if (!tokenizer.ok()) return InFile(merges_path, tokenizer.status());
  return tokenizer;
}

}  // namespace tensorcache::tokenizer
