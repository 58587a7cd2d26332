#include "tokenizer/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "core/file.h"
#include "core/no_throw.h"
#include "core/text.h"
#include "tokenizer/json_parts.h"
#include "tokenizer/sentencepiece_json.h"
#include "tokenizer/tokenizer_json.h"

namespace tensorcache {
namespace tokenizer {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kMaxCompanionBytes = int64_t{64} << 20;

using LoadResult = Result<std::shared_ptr<const Tokenizer>>;

LoadResult ParseBytesJson(const Json& json) {
  if (json.size() != 1 || Get(json, "bytes") != 256) return Corrupt("expected {\"bytes\": 256}");
  return MakeByteTokenizer();
}

// The kind of a JSON file by what is in it: such files may have any name.
LoadResult LoadJson(const std::string& path) {
  TC_ASSIGN_OR_RETURN(Json json, ReadJsonFile(path));
  const JsonEmptier json_emptier(&json);
  Json config;
  const JsonEmptier config_emptier(&config);
  if (const std::string config_path = ConfigBeside(path); IsSentencePieceJson(json) && Exists(config_path)) {
    TC_ASSIGN_OR_RETURN(config, ReadJsonFile(config_path));
  }
  const auto has = [&](const char* key) { return json.is_object() && json.contains(key); };
  LoadResult tokenizer = has("characters") ? ParseCharactersJson(json)
                         : has("bytes")    ? ParseBytesJson(json)
                                           : ParseTokenizerJson(json, config);
  if (!tokenizer.ok()) return Status(tokenizer.status().code(), path + ": " + tokenizer.status().message());
  return tokenizer;
}

LoadResult LoadFile(const fs::path& path) {
  const std::string name = path.filename().string();
  for (const auto& [vocabulary, merges] : kFilePairs) {
    if (name != vocabulary && name != merges) continue;
    return LoadGpt2Files((path.parent_path() / vocabulary).string(), (path.parent_path() / merges).string());
  }
  if (path.extension() == ".json") return LoadJson(path.string());
  if (path.extension() == ".model") return LoadSentencePieceModel(path.string());
  return Unsupported(
      path.string() +
      ": not a kind of tokenizer file that is known; expected tokenizer.json, tokenizer.model or their like");
}

LoadResult LoadFolder(const fs::path& folder) {
  const std::string_view name = TokenizerFileIn(folder.string());
  if (name.empty()) {
    return NotFound(
        fmt::format("{}: no tokenizer in this folder; expected {}, {}, encoder.json and vocab.bpe, vocab.json and "
                    "merges.txt, or {}",
                    folder.string(), kTokenizerJson, kTokenizerModel, kCharactersJson));
  }
  LoadResult tokenizer = LoadFile(folder / name);
  // The two are made from each other, so the second will do if the first is of a kind that is not known.
  const bool is_unknown = !tokenizer.ok() && tokenizer.status().code() == StatusCode::kUnsupported;
  if (is_unknown && name == kTokenizerJson && Exists(folder / kTokenizerModel)) {
    return LoadSentencePieceModel((folder / kTokenizerModel).string());
  }
  return tokenizer;
}

LoadResult LoadNamed(const std::string& path_or_name) {
  if (path_or_name == "bytes") return MakeByteTokenizer();
  const fs::path path(path_or_name);
  if (IsFolder(path)) return LoadFolder(path);
  if (!path_or_name.empty() && Exists(path)) return LoadFile(path);
  return NotFound(fmt::format("there is no tokenizer {}: it is neither 'bytes' nor a file or folder that exists",
                              Quoted(path_or_name)));
}

}  // namespace

// Not by replace_filename: where memory ends, libstdc++'s frees what it never had.
std::string ConfigBeside(const std::string& path) {
  return (fs::path(path).parent_path() / kTokenizerConfigJson).string();
}

std::string_view TokenizerFileIn(const std::string& folder) {
  const fs::path path(folder);
  for (const std::string_view name : {kTokenizerJson, kTokenizerModel}) {
    if (Exists(path / name)) return name;
  }
  for (const auto& [vocabulary, merges] : kFilePairs) {
    if (Exists(path / vocabulary) && Exists(path / merges)) return vocabulary;
  }
  for (const std::string_view name : {kCharactersJson, kBytesJson}) {
    if (Exists(path / name)) return name;
  }
  return "";
}

Status SaveTokenizerFile(const std::string& folder, std::string_view name, std::string_view content) {
  // What comes before `name` would be read in its place.
  const std::string_view found = TokenizerFileIn(folder);
  if (!found.empty() && std::ranges::find(kTokenizerFiles, found) < std::ranges::find(kTokenizerFiles, name)) {
    return InvalidArgument(fmt::format("{}: there is already a {}, another tokenizer; remove it first", folder, found));
  }
  return WriteFileAtomically((fs::path(folder) / name).string(), content);
}

Status CopyCompanionFiles(const std::string& from, const std::string& to) {
  std::error_code error;
  if (fs::equivalent(from, to, error)) return OkStatus();
  for (const std::string_view name : kCompanionFiles) {
    const fs::path path = fs::path(from) / name;
    if (!Exists(path)) continue;
    TC_ASSIGN_OR_RETURN(const std::string content, ReadWholeFile(path.string(), kMaxCompanionBytes));
    TC_RETURN_IF_ERROR(WriteFileAtomically((fs::path(to) / name).string(), content));
  }
  return OkStatus();
}

}  // namespace tokenizer

Result<std::shared_ptr<const Tokenizer>> LoadTokenizer(const std::string& path_or_name) {
  return NoThrow("load a tokenizer", [&] { return tokenizer::LoadNamed(path_or_name); });
}

}  // namespace tensorcache
