// tokenizer.model. What our own encoder takes over from the SentencePiece library it must encode as the library does.
#include <sentencepiece_processor.h>

#include "core/text.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/tokenizer_checks.h"
#include "tokenizer/files.h"
#include "tokenizer/sentencepiece_testing.h"

namespace tensorcache::fuzz {
namespace {

using tokenizer::BpeFile;
using tokenizer::PieceModel;
using tokenizer::PieceType;
using tokenizer::SentencePieceFile;

void CompareWithLibrary(const Tokenizer& tokenizer, std::string_view model, std::string_view text) {
  const auto file = tokenizer::ReadSentencePieceFile(model);
  TC_CHECK(file.ok());
  sentencepiece::SentencePieceProcessor library;
  TC_CHECK(library.LoadFromSerializedProto(file->proto).ok());
  std::vector<int> expected;
  std::vector<int32_t> tokens;
  // It refuses a text whose characters are control pieces; such a model stays with it, so that we do, too.
  const bool is_encoded = library.Encode(text, &expected).ok();
  TC_CHECK(tokenizer.Encode(text, &tokens).ok() == is_encoded);
  TC_CHECK(std::equal(tokens.begin(), tokens.end(), expected.begin(), expected.end()));
}

}  // namespace

// A text of up to 255 bytes, with its length before it, and tokenizer.model.
void Run(std::string_view input) {
  if (input.empty()) return;
  const std::string_view text = input.substr(1, static_cast<uint8_t>(input[0]));
  const std::string_view model = input.substr(1 + text.size());
  const auto tokenizer = tokenizer::LoadSentencePieceModel(Put("tokenizer.model", model));
  if (!tokenizer.ok()) return CheckMessage(tokenizer.status());
  CheckTokenizer(*tokenizer, text);
  if (IsValidUtf8(text)) CompareWithLibrary(**tokenizer, model, text);
}

std::vector<std::string> Seeds() {
  const auto seed = [](std::string_view text, const SentencePieceFile& file) {
    return std::string(1, static_cast<char>(text.size())) + std::string(text) + WriteSentencePieceFile(file);
  };
  const std::vector<std::string> texts = {"▁a", "ab", "▁ab", "▁", "a", "b"};
  SentencePieceFile unigram = BpeFile(texts, false), characters = unigram, words = unigram;
  unigram.model = PieceModel::kUnigram;
  unigram.remove_extra_whitespaces = true;
  unigram.pieces.push_back({"aba", 0, PieceType::kUserDefined});
  unigram.pieces.push_back({"x", 0, PieceType::kUnused});
  characters.model = PieceModel::kCharacter;
  characters.add_dummy_prefix = false;
  words.model = PieceModel::kWord;
  return {seed(" ab aab<s>é", BpeFile(texts, false)), seed("ab\nab", BpeFile(texts, true)), seed("abab  x", unigram),
          seed("ab", characters), seed("ab a ab", words)};
}

std::vector<std::string> Words() {
  using tokenizer::ProtoBytes;
  using tokenizer::ProtoNumber;
  return {"▁",
          "<unk>",
          "<0x41>",
          ProtoNumber(3, 1),  // the type of a piece
          ProtoNumber(3, 2),  // or of a model
          ProtoNumber(3, 4),
          ProtoNumber(3, 5),
          ProtoNumber(4, 0),
          ProtoNumber(35, 1),  // byte_fallback
          ProtoBytes(1, ProtoBytes(1, "ba") + tokenizer::ProtoFloat(2, -1)),
          ProtoBytes(2, Raw(uint32_t{1024})),
          ProtoBytes(5, "")};
}

}  // namespace tensorcache::fuzz
