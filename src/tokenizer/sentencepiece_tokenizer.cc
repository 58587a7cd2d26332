#include "tokenizer/sentencepiece_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <filesystem>
#include <utility>

#include "core/file.h"
#include "core/text.h"
#include "tokenizer/files.h"

namespace tensorcache::tokenizer {
namespace {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(SentencePieceParts parts)
      : parts_(std::move(parts)),
        tokens_(parts_.tokens),
        added_(std::move(parts_.added)),
        named_(std::move(parts_.named)),
        is_added_(tokens_.size()),
        is_special_(tokens_.size()) {
    parts_.tokens.clear();
    for (const AddedToken& token : added_.tokens()) {
      is_added_[token.id] = true;
      is_special_[token.id] = token.special;
    }
    for (const AddedToken& token : named_.tokens()) is_special_[token.id] = token.special;
  }

  std::string kind() const override { return parts_.kind; }
  int64_t vocab_size() const override { return tokens_.size(); }
  int32_t end_of_text() const override { return parts_.end_of_text; }
  int32_t begin_of_text() const override { return parts_.begin_of_text; }
  int32_t FindSpecial(std::string_view text) const override {
    const int32_t token = added_.Find(text);
    return token >= 0 ? token : named_.Find(text);
  }
  bool IsSpecial(int32_t token) const override { return token >= 0 && token < tokens_.size() && is_special_[token]; }
  uint64_t fingerprint() const override { return parts_.fingerprint; }

 private:
  Status DoEncode(const EncodeOptions& options, std::string_view text, std::vector<int32_t>* tokens) const override;
  Status DoDecode(int32_t previous, std::span<const int32_t> tokens, std::string* text) const override;
  Status DoSave(const std::string& folder) const override;

  // Whether the space of the token behind `previous` is one that Encode added. With kFirst, a begin token counts as no
  // token: callers put it before what Encode gave.
  bool DropsSpaceAfter(int32_t previous) const {
    if (parts_.prefix == SpacePrefix::kNever) return false;
    if (previous < 0 || previous >= tokens_.size()) return true;
    return parts_.prefix == SpacePrefix::kAlways ? is_added_[previous] : previous == parts_.begin_of_text;
  }

  SentencePieceParts parts_;  // without `tokens`, `added` and `named`, which are the next three
  TokenTable tokens_;
  AddedTokens added_;
  AddedTokens named_;
  std::vector<bool> is_added_;    // by token
  std::vector<bool> is_special_;  // by token
};

Status SentencePieceTokenizer::DoEncode(const EncodeOptions& options, std::string_view text,
                                        std::vector<int32_t>* tokens) const {
  if (text.size() > INT_MAX / 2) {
    return InvalidArgument(fmt::format("a text of {} bytes is too long to encode at once; cut it", text.size()));
  }
  for (size_t at = 0; at < text.size();) {
    const AddedTokens::Match match = added_.Next(text, at, options.special_tokens);
    if (match.begin > at) {
      const bool has_prefix =
          parts_.prefix == SpacePrefix::kAlways || (parts_.prefix == SpacePrefix::kFirst && at == 0);
      TC_RETURN_IF_ERROR(parts_.encoder->Encode(text.substr(at, match.begin - at), has_prefix, tokens));
    }
    if (match.token == nullptr) break;
    tokens->push_back(match.token->id);
    at = match.begin + match.token->text.size();
  }
  return OkStatus();
}

Status SentencePieceTokenizer::DoDecode(int32_t previous, std::span<const int32_t> tokens, std::string* text) const {
  for (const int32_t token : tokens) {
    if (!tokens_.Has(token)) {
      return InvalidArgument(fmt::format("there is no token {} in a vocabulary of {}", token, tokens_.size()));
    }
    std::string_view bytes = tokens_.Bytes(token);
    if (bytes.front() == ' ' && DropsSpaceAfter(previous)) bytes.remove_prefix(1);
    text->append(bytes);
    previous = token;
  }
  return OkStatus();
}

Status SentencePieceTokenizer::DoSave(const std::string& folder) const {
  TC_RETURN_IF_ERROR(SaveTokenizerFile(folder, parts_.file_name, parts_.file));
  if (parts_.config.empty()) return OkStatus();
  return WriteFileAtomically((std::filesystem::path(folder) / kTokenizerConfigJson).string(), parts_.config);
}

class BpeSegments final : public SegmentEncoder {
 public:
  BpeSegments(PieceBpeParts parts, bool only_missing_prefix)
      : bpe_(std::move(parts)), only_missing_prefix_(only_missing_prefix) {}

  Status Encode(std::string_view text, bool has_prefix, std::vector<int32_t>* tokens) const override {
    const bool is_spaced = text.starts_with(' ') || text.starts_with(kSpaceSign);
    return bpe_.Encode(WithSpaces(text, has_prefix && !(only_missing_prefix_ && is_spaced) ? " " : ""), tokens);
  }

 private:
  PieceBpe bpe_;
  bool only_missing_prefix_;
};

}  // namespace

std::string WithSpaces(std::string_view text, std::string start) {
  std::string spaced = std::move(start);
  for (size_t at = 0; at < text.size();) {
    const size_t sign = std::min(text.find(kSpaceSign, at), text.size());
    spaced.append(text.substr(at, sign - at));
    if (sign < text.size()) spaced.push_back(' ');
    at = sign + kSpaceSign.size();
  }
  return spaced;
}

int ByteOfPiece(std::string_view piece) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  const size_t high = kDigits.find(piece[3]), low = kDigits.find(piece[4]);
  return high == kDigits.npos || low == kDigits.npos ? -1 : static_cast<int>(16 * high + low);
}

std::unique_ptr<const SegmentEncoder> MakeBpeSegments(PieceBpeParts parts, bool only_missing_prefix) {
  return std::make_unique<BpeSegments>(std::move(parts), only_missing_prefix);
}

Result<std::shared_ptr<const Tokenizer>> MakeSentencePieceTokenizer(SentencePieceParts parts) {
  TC_RETURN_IF_ERROR(CheckAddedTokens(parts.added));
  return std::shared_ptr<const Tokenizer>(std::make_shared<SentencePieceTokenizer>(std::move(parts)));
}

}  // namespace tensorcache::tokenizer
