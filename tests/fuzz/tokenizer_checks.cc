#include "tests/fuzz/tokenizer_checks.h"

#include <filesystem>
#include <vector>

#include "core/text.h"
#include "tests/fuzz/driver.h"

namespace tensorcache::fuzz {
namespace {

using Tokens = std::vector<int32_t>;

std::string Decoded(const Tokenizer& tokenizer, std::span<const int32_t> tokens) {
  std::string text;
  TC_CHECK(tokenizer.Decode(tokens, &text).ok());
  return text;
}

// Any way to decode tokens gives the same text.
void CheckDecoding(const std::shared_ptr<const Tokenizer>& tokenizer, const Tokens& tokens) {
  const std::string text = Decoded(*tokenizer, tokens);
  const std::span<const int32_t> all(tokens);
  const size_t half = tokens.size() / 2;
  std::string parts, streamed;
  TC_CHECK(tokenizer->DecodeAfter(-1, all.first(half), &parts).ok());
  TC_CHECK(tokenizer->DecodeAfter(half == 0 ? -1 : tokens[half - 1], all.subspan(half), &parts).ok());
  TC_CHECK(parts == text);
  StreamDecoder stream(tokenizer);
  for (const int32_t token : tokens) TC_CHECK(stream.Push(token, &streamed).ok());
  stream.Finish(&streamed);
  TC_CHECK(IsValidUtf8(streamed));
  if (IsValidUtf8(text)) TC_CHECK(streamed == text);
}

Tokens CheckEncoding(const std::shared_ptr<const Tokenizer>& tokenizer, const EncodeOptions& options,
                     std::string_view text) {
  Tokens tokens = {-7};  // what was there before stays
  const Status status = tokenizer->EncodeWith(options, text, &tokens);
  TC_CHECK(tokens[0] == -7);
  tokens.erase(tokens.begin());
  if (!status.ok()) {
    CheckMessage(status);
    TC_CHECK(tokens.empty());
    return tokens;
  }
  for (const int32_t token : tokens) TC_CHECK(token >= 0 && token < tokenizer->vocab_size());
  CheckDecoding(tokenizer, tokens);
  return tokens;
}

void CheckRefusesOtherTokens(const Tokenizer& tokenizer) {
  for (const int64_t token : {int64_t{-1}, int64_t{INT32_MIN}, int64_t{INT32_MAX}, tokenizer.vocab_size()}) {
    std::string text = "x";
    const int32_t one = static_cast<int32_t>(token);
    const Status status = tokenizer.Decode(std::span(&one, 1), &text);
    CheckMessage(status);
    TC_CHECK(text == "x");
    TC_CHECK(!tokenizer.IsSpecial(one));
  }
}

}  // namespace

void CheckTokenizer(const std::shared_ptr<const Tokenizer>& tokenizer, std::string_view text) {
  TC_CHECK(tokenizer->vocab_size() > 0);
  TC_CHECK(tokenizer->end_of_text() < tokenizer->vocab_size() && tokenizer->begin_of_text() < tokenizer->vocab_size());
  const Tokens plain = CheckEncoding(tokenizer, {}, text);
  const Tokens special = CheckEncoding(tokenizer, {.special_tokens = true}, text);
  CheckRefusesOtherTokens(*tokenizer);

  Remove("saved");
  std::filesystem::create_directory(PathOf("saved"));
  TC_CHECK(tokenizer->Save(PathOf("saved")).ok());
  const auto loaded = LoadTokenizer(PathOf("saved"));
  if (!loaded.ok()) CheckMessage(loaded.status());
  TC_CHECK(loaded.ok());
  TC_CHECK((*loaded)->fingerprint() == tokenizer->fingerprint());
  TC_CHECK((*loaded)->vocab_size() == tokenizer->vocab_size());
  TC_CHECK((*loaded)->end_of_text() == tokenizer->end_of_text());
  TC_CHECK((*loaded)->begin_of_text() == tokenizer->begin_of_text());
  TC_CHECK(CheckEncoding(*loaded, {}, text) == plain);
  TC_CHECK(CheckEncoding(*loaded, {.special_tokens = true}, text) == special);
}

}  // namespace tensorcache::fuzz
