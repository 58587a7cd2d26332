#include "pretrained/tokenizer_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

#include "core/file.h"
#include "core/text.h"
#include "tokenizer/files.h"

namespace tensorcache::pretrained {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxBytes = int64_t{256} << 20;

constexpr auto kNames = [] {
  std::array<std::string_view, tokenizer::kTokenizerFiles.size() + tokenizer::kCompanionFiles.size()> names;
  std::ranges::copy(tokenizer::kCompanionFiles, std::ranges::copy(tokenizer::kTokenizerFiles, names.begin()).out);
  return names;
}();

Status AddFile(const fs::path& path, std::string_view name, TokenizerFiles* files) {
  if (!Exists(path)) return OkStatus();
  TC_ASSIGN_OR_RETURN(std::string content, ReadWholeFile(path.string(), kMaxBytes));
  files->files.push_back({.name = std::string(name), .content = std::move(content)});
  return OkStatus();
}

std::string* FindFile(TokenizerFiles* files, std::string_view name) {
  const auto found = std::ranges::find(files->files, name, &NamedFile::name);
  return found == files->files.end() ? nullptr : &found->content;
}

// The text of a special token of tokenizer_config.json, which is a string or an object with "content".
std::string SpecialText(const Json& config, const char* key) {
  const auto found = config.is_object() ? config.find(key) : config.end();
  if (found == config.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  const auto content = found->is_object() ? found->find("content") : found->end();
  return found->is_object() && content != found->end() && content->is_string() ? content->get<std::string>() : "";
}

OrderedJson TokenText(const Tokenizer& tokenizer, int32_t token) {
  std::string text;
  if (token < 0 || !tokenizer.DecodeAfter(token, std::array{token}, &text).ok()) return nullptr;
  return text;
}

// For the library to choose its class by: it would guess by the kind of the model.
std::string MakeTokenizerConfig(const TokenizerFiles& files) {
  const auto has = [&](std::string_view name) {
    return std::ranges::find(files.files, name, &NamedFile::name) != files.files.end();
  };
  const Tokenizer& tokenizer = *files.tokenizer;
  const bool is_json = has(tokenizer::kTokenizerJson), is_model = !is_json && has(tokenizer::kTokenizerModel);
  OrderedJson json = {{"tokenizer_class", is_json    ? "PreTrainedTokenizerFast"
                                          : is_model ? "LlamaTokenizer"
                                                     : "GPT2Tokenizer"},
                      {"clean_up_tokenization_spaces", false}};
  for (const auto& [key, token] :
       {std::pair("bos_token", tokenizer.begin_of_text()), std::pair("eos_token", tokenizer.end_of_text())}) {
    if (const OrderedJson text = TokenText(tokenizer, token); !text.is_null()) json[key] = text;
  }
  if (is_model) {
    if (tokenizer.FindSpecial("<unk>") >= 0) json["unk_token"] = "<unk>";
    json["add_bos_token"] = true;
    json["add_eos_token"] = false;
    json["legacy"] = true;  // a space after special tokens, too, as SentencePiece puts it
  }
  return JsonText(json);
}

}  // namespace

std::span<const std::string_view> TokenizerFileNames() { return kNames; }

Result<TokenizerFiles> TokenizerFilesOf(const std::string& folder) {
  TokenizerFiles files;
  for (const std::string_view name : kNames) {
    TC_RETURN_IF_ERROR(AddFile(fs::path(folder) / name, name, &files));
  }
  auto tokenizer = LoadTokenizer(folder);
  if (tokenizer.ok()) {
    files.tokenizer = std::move(tokenizer).value();
  } else {
    files.problem = tokenizer.status().message();
  }
  return files;
}

Result<TokenizerFiles> TokenizerFilesNamed(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    TC_ASSIGN_OR_RETURN(TokenizerFiles files, TokenizerFilesOf(path));
    if (files.tokenizer == nullptr) return InvalidArgument(files.problem);
    return files;
  }
  TokenizerFiles files;
  TC_ASSIGN_OR_RETURN(files.tokenizer, LoadTokenizer(path));
  const fs::path file(path), folder = file.parent_path();
  for (const auto& [vocabulary, merges] : tokenizer::kFilePairs) {
    if (file.filename() != vocabulary && file.filename() != merges) continue;
    TC_RETURN_IF_ERROR(AddFile(folder / vocabulary, vocabulary, &files));
    TC_RETURN_IF_ERROR(AddFile(folder / merges, merges, &files));
  }
  if (files.files.empty()) {
    const bool own = file.filename() == tokenizer::kCharactersJson || file.filename() == tokenizer::kBytesJson;
    const std::string name = own                           ? file.filename().string()
                             : file.extension() == ".json" ? std::string(tokenizer::kTokenizerJson)
                                                           : std::string(tokenizer::kTokenizerModel);
    TC_RETURN_IF_ERROR(AddFile(file, name, &files));
  }
  for (const std::string_view name : tokenizer::kCompanionFiles) {
    TC_RETURN_IF_ERROR(AddFile(folder / name, name, &files));
  }
  return files;
}

Status MakeHfTokenizerFiles(TokenizerFiles* files, std::vector<std::string>* notes) {
  const auto& [old_names, new_names] = tokenizer::kFilePairs;
  for (NamedFile& file : files->files) {
    if (file.name == old_names.vocabulary) file.name = new_names.vocabulary;
    if (file.name == old_names.merges) file.name = new_names.merges;
  }
  const size_t own = std::erase_if(files->files, [](const NamedFile& file) {
    return file.name == tokenizer::kCharactersJson || file.name == tokenizer::kBytesJson;
  });
  if (own > 0) notes->push_back("Hugging Face has no tokenizer of characters or bytes; the folder has none");
  if (own > 0 || files->tokenizer == nullptr) return OkStatus();
  if (FindFile(files, tokenizer::kTokenizerConfigJson) == nullptr) {
    files->files.push_back({std::string(tokenizer::kTokenizerConfigJson), MakeTokenizerConfig(*files)});
  }
  return OkStatus();
}

HfTokens HfTokensOf(const TokenizerFiles& files) {
  if (files.tokenizer == nullptr) return {};
  HfTokens tokens{.begin = files.tokenizer->begin_of_text(), .end = files.tokenizer->end_of_text()};
  const auto config = std::ranges::find(files.files, tokenizer::kTokenizerConfigJson, &NamedFile::name);
  if (config != files.files.end()) {
    const auto json = ParseJson(config->content, config->name);
    const std::string pad = json.ok() ? SpecialText(*json, "pad_token") : "";
    if (!pad.empty()) tokens.pad = files.tokenizer->FindSpecial(pad);
  }
  return tokens;
}

}  // namespace tensorcache::pretrained
