#include "data/corpus.h"

#include <fmt/format.h>

#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <unordered_set>

#include "core/file.h"
#include "core/text.h"
#include "data/tokenize.h"
#include "tokenizer/fingerprint.h"

namespace tensorcache::data {
namespace {

namespace fs = std::filesystem;

Result<std::string> CacheFolder(const std::string& configured) {
  if (!configured.empty()) return configured;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return std::string(cache) + "/tensorcache";
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.cache/tensorcache";
  return InvalidArgument(
      "no place for tokenised text: neither XDG_CACHE_HOME nor HOME is set; set data.text.cache_dir");
}

// A name that a person recognises, and the hash of everything that decides the content.
std::string TokenFileName(const std::string& path, const std::vector<TextFile>& files, const TokenizeOptions& options,
                          const Tokenizer& tokenizer) {
  tokenizer::Fingerprint hash;
  hash.Add(uint64_t{kTokenFileVersion});
  hash.Add(tokenizer.fingerprint());
  hash.Add(static_cast<uint64_t>(tokenizer.vocab_size()));
  hash.Add(static_cast<uint64_t>(options.documents));
  if (options.begin) hash.Add(std::string_view("begin"));
  for (const TextFile& file : files) {
    hash.Add(std::string_view(file.path));
    hash.Add(static_cast<uint64_t>(file.bytes));
    hash.Add(static_cast<uint64_t>(file.modified));
  }
  std::error_code error;
  std::string name = fs::canonical(path, error).filename().native().substr(0, 40);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-') c = '_';
  }
  return fmt::format("{}-{:016x}.tokens", name, hash.value());
}

// The tokens of `path`: in the cache, or still to be made.
struct Tokenised {
  std::vector<TextFile> files;
  std::string token_path;
  std::shared_ptr<const TokenFile> tokens;  // null: to be made

  int64_t MissingBytes() const {
    int64_t bytes = 0;
    if (tokens == nullptr) {
      for (const TextFile& file : files) bytes += file.bytes;
    }
    return bytes;
  }
};

Result<Tokenised> LookUp(const std::string& path, const std::string& folder, const TokenizeOptions& options,
                         const Tokenizer& tokenizer) {
  Tokenised text;
  TC_ASSIGN_OR_RETURN(text.files, ListTextFiles(path));
  text.token_path = folder + "/" + TokenFileName(path, text.files, options, tokenizer);
  auto opened = TokenFile::Open(text.token_path);
  // A damaged file is made again. So is one of another tokenizer, which only two equal hashes could bring here.
  if (opened.ok() && opened->tokenizer_fingerprint() == tokenizer.fingerprint() &&
      opened->vocab_size() == tokenizer.vocab_size()) {
    text.tokens = std::make_shared<const TokenFile>(std::move(opened).value());
  }
  return text;
}

Status MakeCacheFolder(const std::string& folder) {
  Status status = MakeFolder(folder);
  if (status.ok()) return status;
  return Status(status.code(), fmt::format("{} (for tokenised text; set data.text.cache_dir)", status.message()));
}

Status CheckConfig(const TextDataConfig& config) {
  if (config.path.empty())
    return InvalidArgument("data.text.path is empty; give a text file or a folder of text files");
  if (config.valid_path.empty() && !(config.valid_fraction >= 0 && config.valid_fraction < 1)) {
    return InvalidArgument(
        fmt::format("data.text.valid_fraction is {}; it must be at least 0 and below 1", config.valid_fraction));
  }
  return OkStatus();
}

Status CheckDisjoint(const std::vector<TextFile>& train, const std::vector<TextFile>& valid) {
  std::unordered_set<std::string_view> paths;
  for (const TextFile& file : train) paths.insert(file.path);
  for (const TextFile& file : valid) {
    if (paths.contains(file.path)) {
      return InvalidArgument(
          fmt::format("{} is in both data.text.path and data.text.valid_path; keep them apart", Quoted(file.path)));
    }
  }
  return OkStatus();
}

}  // namespace

Result<Corpus> OpenCorpus(const TextDataConfig& config, const Tokenizer& tokenizer, const Progress& progress) {
  TC_RETURN_IF_ERROR(CheckConfig(config));
  if (config.begin && tokenizer.begin_of_text() < 0) {
    return InvalidArgument("data.text.begin is set, but the tokenizer has no begin-of-text token");
  }
  const TokenizeOptions options = {
      .documents = config.documents, .cuts = FindSafeCuts(config.tokenizer, tokenizer), .begin = config.begin};
  TC_ASSIGN_OR_RETURN(const std::string folder, CacheFolder(config.cache_dir));
  std::vector<Tokenised> texts;
  for (const std::string& path : {config.path, config.valid_path}) {
    if (path.empty()) continue;
    TC_ASSIGN_OR_RETURN(Tokenised text, LookUp(path, folder, options, tokenizer));
    texts.push_back(std::move(text));
  }
  if (texts.size() == 2) TC_RETURN_IF_ERROR(CheckDisjoint(texts[0].files, texts[1].files));

  int64_t total = 0;
  for (const Tokenised& text : texts) total += text.MissingBytes();
  int64_t done = 0;
  for (Tokenised& text : texts) {
    if (text.tokens != nullptr) continue;
    const int64_t bytes = text.MissingBytes();
    TC_RETURN_IF_ERROR(MakeCacheFolder(folder));
    const Progress report = [&](int64_t part, int64_t) {
      if (progress) progress(done + part, total);
    };
    TC_RETURN_IF_ERROR(TokenizeFiles(text.files, tokenizer, options, text.token_path, report));
    done += bytes;
    TC_ASSIGN_OR_RETURN(TokenFile file, TokenFile::Open(text.token_path));
    text.tokens = std::make_shared<const TokenFile>(std::move(file));
  }

  const int64_t tokens = texts[0].tokens->tokens();
  if (texts.size() == 2) {
    return Corpus{.train = {.file = texts[0].tokens, .end = tokens},
                  .valid = {.file = texts[1].tokens, .end = texts[1].tokens->tokens()}};
  }
  const auto valid = static_cast<int64_t>(std::llround(static_cast<double>(tokens) * config.valid_fraction));
  return Corpus{.train = {.file = texts[0].tokens, .end = tokens - valid},
                .valid = {.file = texts[0].tokens, .begin = tokens - valid, .end = tokens}};
}

}  // namespace tensorcache::data
