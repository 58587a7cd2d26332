// The content of a SentencePiece model file, read and checked before the library sees it: the library trusts some of what
// it reads, and complains about the rest on stderr.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensorcache/status.h"

namespace tensorcache::tokenizer {

enum class PieceType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
enum class PieceModel { kUnigram = 1, kBpe = 2, kWord = 3, kCharacter = 4 };

struct ModelPiece {
  std::string text;  // UTF-8, not empty
  float score = 0;   // finite
  PieceType type = PieceType::kNormal;
};

// As the file has it, or its defaults.
struct SentencePieceFile {
  std::vector<ModelPiece> pieces;  // by token
  PieceModel model = PieceModel::kUnigram;
  bool byte_fallback = false;
  bool add_dummy_prefix = true;          // a space before the first word
  bool remove_extra_whitespaces = true;  // outer spaces go, runs of them become one
  bool has_charsmap = false;             // characters are replaced by others first
  std::string begin = "<s>";             // the control pieces that begin and end a text, if there are such pieces
  std::string end = "</s>";
  std::string proto;  // the file without its self-test, for the library
};

// kCorrupt for what is no such file, kUnsupported for options that are not known here. Messages do not name the file.
Result<SentencePieceFile> ReadSentencePieceFile(std::string_view bytes);
// The file with these pieces and options, without a table of characters; `proto` is not looked at.
std::string WriteSentencePieceFile(const SentencePieceFile& file);

}  // namespace tensorcache::tokenizer
