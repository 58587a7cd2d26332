// What the tokenizers of SentencePiece's kind have in common, wherever they come from: a space before the first word,
// tokens that are single bytes, control tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tensorcache/tokenizer.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/piece_bpe.h"
#include "tokenizer/token_table.h"

namespace tensorcache::tokenizer {

// U+2581, which stands for a space in vocabularies.
inline constexpr std::string_view kSpaceSign = "\u2581";
// `text` with spaces in the place of these signs; `start` before it.
std::string WithSpaces(std::string_view text, std::string start = "");

// The byte of a token that is spelled <0x0A>, or -1.
int ByteOfPiece(std::string_view piece);

// Where Encode adds the space before the first word: at the start of the text, or also behind each special token.
enum class SpacePrefix { kNever, kFirst, kAlways };

// Text without special tokens to tokens. Immutable and thread-safe.
class SegmentEncoder {
 public:
  virtual ~SegmentEncoder() = default;
  // Appends the tokens of `text`, which is not empty. `has_prefix`: a space belongs before it. May leave some tokens
  // after an error.
  virtual Status Encode(std::string_view text, bool has_prefix, std::vector<int32_t>* tokens) const = 0;
};

// By PieceBpe. `only_missing_prefix`: text that begins with a space gets no second one.
std::unique_ptr<const SegmentEncoder> MakeBpeSegments(PieceBpeParts parts, bool only_missing_prefix);

struct SentencePieceParts {
  std::string kind;
  std::vector<std::string> tokens;  // bytes by token, which Decode gives; empty where there is no such token
  std::vector<AddedToken> added;    // found in the text before it is encoded
  // Known by name but not looked for here: what the encoder finds itself, and the unknown, which no text names.
  std::vector<AddedToken> named;
  SpacePrefix prefix = SpacePrefix::kAlways;
  int32_t begin_of_text = -1;
  int32_t end_of_text = -1;
  uint64_t fingerprint = 0;
  std::unique_ptr<const SegmentEncoder> encoder;
  // What Save writes; `config` is tokenizer_config.json, "" for none.
  std::string file_name;
  std::string file;
  std::string config;
};

// kCorrupt if the added tokens contradict each other.
Result<std::shared_ptr<const Tokenizer>> MakeSentencePieceTokenizer(SentencePieceParts parts);

}  // namespace tensorcache::tokenizer
