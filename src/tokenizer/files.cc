#include "tokenizer/files.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "core/file.h"
#include "core/text.h"
#include "tokenizer/tokenizer_json.h"

namespace tensorcache {
namespace tokenizer {
namespace {

namespace fs = std::filesystem;
using LoadResult = Result<std::shared_ptr<const Tokenizer>>;

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

LoadResult ParseBytesJson(const Json& json) {
  if (json != Json{{"bytes", 256}}) return Corrupt("expected {\"bytes\": 256}");
  return MakeByteTokenizer();
}

// The kind of a JSON file by what is in it: such files may have any name.
LoadResult LoadJson(const std::string& path) {
  TC_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  const auto has = [&](const char* key) { return json.is_object() && json.contains(key); };
  LoadResult tokenizer = has("characters") ? ParseCharactersJson(json)
                         : has("bytes")    ? ParseBytesJson(json)
                                           : ParseTokenizerJson(json);
  if (!tokenizer.ok()) return Status(tokenizer.status().code(), path + ": " + tokenizer.status().message());
  return tokenizer;
}

LoadResult LoadFolder(const fs::path& folder) {
  if (Exists(folder / kTokenizerJson)) return LoadJson((folder / kTokenizerJson).string());
  for (const auto& [vocabulary, merges] : kFilePairs) {
    if (Exists(folder / vocabulary) && Exists(folder / merges)) {
      return LoadGpt2Files((folder / vocabulary).string(), (folder / merges).string());
    }
  }
  for (const std::string_view name : {kCharactersJson, kBytesJson}) {
    if (Exists(folder / name)) return LoadJson((folder / name).string());
  }
  return NotFound(fmt::format(
      "{}: no tokenizer in this folder; expected {}, encoder.json and vocab.bpe, vocab.json and merges.txt, or {}",
      folder.string(), kTokenizerJson, kCharactersJson));
}

LoadResult LoadFile(const fs::path& path) {
  const std::string name = path.filename().string();
  for (const auto& [vocabulary, merges] : kFilePairs) {
    if (name != vocabulary && name != merges) continue;
    return LoadGpt2Files((path.parent_path() / vocabulary).string(), (path.parent_path() / merges).string());
  }
  if (path.extension() == ".json") return LoadJson(path.string());
  if (path.extension() == ".model") {
    return Unsupported(path.string() + ": SentencePiece models are not supported; convert it to tokenizer.json");
  }
  return Unsupported(path.string() +
                     ": not a kind of tokenizer file that is known; expected tokenizer.json or its like");
}

}  // namespace

Status SaveTokenizerFile(const std::string& folder, std::string_view name, std::string_view content) {
  const fs::path path(folder);
  const auto refuse = [&](std::string_view other) {
    return InvalidArgument(fmt::format("{}: there is already a {}, another tokenizer; remove it first", folder, other));
  };
  // In the order of LoadFolder: what comes before `name` would be read in its place.
  if (name != kTokenizerJson) {
    if (Exists(path / kTokenizerJson)) return refuse(kTokenizerJson);
    for (const auto& [vocabulary, merges] : kFilePairs) {
      if (Exists(path / vocabulary) && Exists(path / merges)) return refuse(vocabulary);
    }
    if (name != kCharactersJson && Exists(path / kCharactersJson)) return refuse(kCharactersJson);
  }
  return WriteFileAtomically((path / name).string(), content);
}

}  // namespace tokenizer

Result<std::shared_ptr<const Tokenizer>> LoadTokenizer(const std::string& path_or_name) {
  if (path_or_name == "bytes") return MakeByteTokenizer();
  const std::filesystem::path path(path_or_name);
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return tokenizer::LoadFolder(path);
  if (!path_or_name.empty() && std::filesystem::exists(path, error)) return tokenizer::LoadFile(path);
  return NotFound(fmt::format("there is no tokenizer {}: it is neither 'bytes' nor a file or folder that exists",
                              Quoted(path_or_name)));
}

}  // namespace tensorcache
