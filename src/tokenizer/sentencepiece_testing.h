// SentencePiece models for tests, written by hand.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/sentencepiece_file.h"

namespace tensorcache::tokenizer {

inline std::string ProtoVarint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
inline std::string ProtoNumber(int field, uint64_t value) { return ProtoVarint(field << 3) + ProtoVarint(value); }
inline std::string ProtoBytes(int field, std::string_view bytes) {
  return ProtoVarint(field << 3 | 2) + ProtoVarint(bytes.size()) + std::string(bytes);
}
inline std::string ProtoFloat(int field, float value) {
  std::string bytes = ProtoVarint(field << 3 | 5);
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(std::bit_cast<uint32_t>(value) >> 8 * i);
  return bytes;
}

inline std::string ProtoPiece(const ModelPiece& piece) {
  return ProtoBytes(
      1, ProtoBytes(1, piece.text) + ProtoFloat(2, piece.score) + ProtoNumber(3, static_cast<uint64_t>(piece.type)));
}

// The file with these pieces and options.
inline std::string WriteModel(const SentencePieceFile& file) {
  std::string model;
  for (const ModelPiece& piece : file.pieces) model += ProtoPiece(piece);
  model += ProtoBytes(2, ProtoNumber(3, static_cast<uint64_t>(file.model)) + ProtoNumber(35, file.byte_fallback));
  model += ProtoBytes(3, ProtoBytes(1, "identity") + ProtoNumber(3, file.add_dummy_prefix) +
                             ProtoNumber(4, file.remove_extra_whitespaces) + ProtoNumber(5, 1));
  return model;
}

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
