#include <fmt/format.h>

#include <set>
#include <unordered_map>
#include <utility>

#include "core/no_throw.h"
#include "core/text.h"
#include "tensorcache/tokenizer.h"
#include "tokenizer/files.h"
#include "tokenizer/fingerprint.h"
#include "tokenizer/unicode.h"

namespace tensorcache {
namespace {

using tokenizer::AppendUtf8;
using tokenizer::DecodeUtf8;
using tokenizer::kInvalidCode;
using tokenizer::Utf8Char;

class CharacterTokenizer final : public Tokenizer {
 public:
  // `codes` are distinct; token i is codes[i].
  explicit CharacterTokenizer(std::vector<uint32_t> codes) : codes_(std::move(codes)) {
    for (size_t i = 0; i < codes_.size(); ++i) tokens_.emplace(codes_[i], static_cast<int32_t>(i));
    tokenizer::Fingerprint fingerprint;
    fingerprint.Add("characters");
    fingerprint.Add(Characters());
    fingerprint_ = fingerprint.value();
  }

  std::string kind() const override { return "characters"; }
  int64_t vocab_size() const override { return std::ssize(codes_); }
  uint64_t fingerprint() const override { return fingerprint_; }

 private:
  Status DoEncode(const EncodeOptions& /*options*/, std::string_view text,
                  std::vector<int32_t>* tokens) const override {
    for (size_t at = 0; at < text.size();) {
      const Utf8Char c = DecodeUtf8(text, at);
      const auto found = tokens_.find(c.code);
      if (found == tokens_.end()) {
        return InvalidArgument(fmt::format("the character {} at byte {} of the text is not in the vocabulary of {}",
                                           Name(c.code, text.substr(at, c.length)), at, codes_.size()));
      }
      tokens->push_back(found->second);
      at += c.length;
    }
    return OkStatus();
  }

  Status DoDecode(int32_t /*previous*/, std::span<const int32_t> tokens, std::string* text) const override {
    for (const int32_t token : tokens) {
      if (token < 0 || token >= std::ssize(codes_)) {
        return InvalidArgument(fmt::format("there is no token {} in a vocabulary of {}", token, codes_.size()));
      }
      AppendUtf8(codes_[token], text);
    }
    return OkStatus();
  }

  Status DoSave(const std::string& folder) const override {
    const std::string json = fmt::format("{{\"characters\":{}}}\n", Json(Characters()).dump());
    return tokenizer::SaveTokenizerFile(folder, tokenizer::kCharactersJson, json);
  }

  static std::string Name(uint32_t code, std::string_view bytes) {
    return code == kInvalidCode ? Quoted(bytes) + " (not UTF-8)" : fmt::format("{} (U+{:04X})", Quoted(bytes), code);
  }

  std::string Characters() const {
    std::string text;
    for (const uint32_t code : codes_) AppendUtf8(code, &text);
    return text;
  }

  std::vector<uint32_t> codes_;
  std::unordered_map<uint32_t, int32_t> tokens_;
  uint64_t fingerprint_ = 0;
};

// Distinct and in order.
Result<std::vector<uint32_t>> CodesOf(std::string_view text) {
  if (text.empty()) return InvalidArgument("a character vocabulary needs a text that is not empty");
  std::set<uint32_t> codes;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = DecodeUtf8(text, at);
    if (c.code == kInvalidCode) {
      return InvalidArgument(fmt::format("the text is not UTF-8 at byte {}; take the tokenizer 'bytes'", at));
    }
    codes.insert(c.code);
    at += c.length;
  }
  return std::vector<uint32_t>(codes.begin(), codes.end());
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> MakeCharacterTokenizer(std::string_view text) {
  return NoThrow("make a tokenizer", [&]() -> Result<std::shared_ptr<const Tokenizer>> {
    TC_ASSIGN_OR_RETURN(std::vector<uint32_t> codes, CodesOf(text));
    return std::shared_ptr<const Tokenizer>(std::make_shared<CharacterTokenizer>(std::move(codes)));
  });
}

namespace tokenizer {

Result<std::shared_ptr<const Tokenizer>> ParseCharactersJson(const Json& json) {
  const auto found = json.is_object() ? json.find("characters") : json.end();
  if (found == json.end() || !found->is_string() || found->get_ref<const std::string&>().empty()) {
    return Corrupt("there is no string 'characters' with the characters in it");
  }
  const std::string text = *found;
  std::vector<uint32_t> codes;
  std::set<uint32_t> seen;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = DecodeUtf8(text, at);
    if (!seen.insert(c.code).second) {
      return Corrupt(fmt::format("the character {} is there twice", Quoted(text.substr(at, c.length))));
    }
    codes.push_back(c.code);
    at += c.length;
  }
  return std::shared_ptr<const Tokenizer>(std::make_shared<CharacterTokenizer>(std::move(codes)));
}

}  // namespace tokenizer
}  // namespace tensorcache
