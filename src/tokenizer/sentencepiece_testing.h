// SentencePiece models for tests, written by hand.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/protobuf.h"
#include "tokenizer/sentencepiece_file.h"

namespace tensorcache::tokenizer {

// <unk>, <s>, </s> as 0 to 2, the bytes if asked for, then `texts` with falling scores, as BPE models have them.
inline SentencePieceFile BpeFile(const std::vector<std::string>& texts, bool byte_fallback) {
  SentencePieceFile file{.model = PieceModel::kBpe,
                         .byte_fallback = byte_fallback,
                         .remove_extra_whitespaces = false,
                         .has_charsmap = false,
                         .proto = ""};
  file.pieces = {{"<unk>", 0, PieceType::kUnknown}, {"<s>", 0, PieceType::kControl}, {"</s>", 0, PieceType::kControl}};
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  for (int byte = 0; byte_fallback && byte < 256; ++byte) {
    const std::string text = std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">";
    file.pieces.push_back({text, 0, PieceType::kByte});
  }
  float score = 0;
  for (const std::string& text : texts) file.pieces.push_back({text, score--, PieceType::kNormal});
  return file;
}

}  // namespace tensorcache::tokenizer
