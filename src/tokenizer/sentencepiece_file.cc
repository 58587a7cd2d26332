#include "tokenizer/sentencepiece_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "core/text.h"
#include "tokenizer/bpe.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/protobuf.h"
#include "tokenizer/sentencepiece_tokenizer.h"

namespace tensorcache::tokenizer {
namespace {

// Numbers of the fields in the library's sentencepiece_model.proto.
namespace model_field {
constexpr uint32_t kPiece = 1, kTrainer = 2, kNormalizer = 3, kSelfTest = 4, kDenormalizer = 5;
}
namespace piece_field {
constexpr uint32_t kText = 1, kScore = 2, kType = 3;
}
namespace trainer_field {
constexpr uint32_t kModelType = 3, kSpaceAsSuffix = 24, kByteFallback = 35, kBegin = 46, kEnd = 47;
}
namespace normalizer_field {
constexpr uint32_t kName = 1, kCharsmap = 2, kDummyPrefix = 3, kRemoveExtra = 4, kEscape = 5;
}

using Kind = ProtoField::Kind;

// At each place of a text, the library follows pieces as far as they go; and finding all ways to cut a piece in two, as we
// do, takes the square of its length. Real ones have at most some dozens.
constexpr size_t kMaxPieceBytes = 512;

Status NotAModel() { return Corrupt("not a SentencePiece model, or damaged; fetch or convert it again"); }

// Calls `read` with each field of a message.
template <class Read>
Status ForEachField(std::string_view message, const Read& read) {
  ProtoReader reader(message);
  while (!reader.AtEnd()) {
    const auto field = reader.Next();
    if (!field) return NotAModel();
    TC_RETURN_IF_ERROR(read(*field));
  }
  return OkStatus();
}

Status ReadPiece(std::string_view message, SentencePieceFile* file) {
  ModelPiece piece;
  uint64_t type = 1;
  TC_RETURN_IF_ERROR(ForEachField(message, [&](const ProtoField& field) {
    if (field.number == piece_field::kText && field.IsBytes()) piece.text = field.bytes;
    if (field.number == piece_field::kScore && field.kind == Kind::kFixed32) piece.score = field.AsFloat();
    if (field.number == piece_field::kType && field.kind == Kind::kNumber) type = field.value;
    return OkStatus();
  }));
  const size_t token = file->pieces.size();
  if (std::cmp_greater_equal(token, BpeMerges::kMaxTokens)) {
    return Unsupported(fmt::format("more than {} pieces, the largest vocabulary", BpeMerges::kMaxTokens));
  }
  if (piece.text.size() > kMaxPieceBytes) {
    return Unsupported(
        fmt::format("piece {} has {} bytes; the longest may have {}", token, piece.text.size(), kMaxPieceBytes));
  }
  if (piece.text.empty()) return Corrupt(fmt::format("piece {} is empty", token));
  if (!IsValidUtf8(piece.text)) return Corrupt(fmt::format("piece {}, {}, is not UTF-8", token, Quoted(piece.text)));
  if (!std::isfinite(piece.score)) return Corrupt(fmt::format("the score of piece {} is not a number", token));
  if (type < 1 || type > 6) return Corrupt(fmt::format("piece {} has the unknown type {}", token, type));
  piece.type = static_cast<PieceType>(type);
  if (piece.type == PieceType::kByte && ByteOfPiece(piece.text) < 0) {
    return Corrupt(fmt::format("piece {} is a byte but is spelled {}, not like <0x0A>", token, Quoted(piece.text)));
  }
  file->pieces.push_back(std::move(piece));
  return OkStatus();
}

Status ReadTrainer(std::string_view message, SentencePieceFile* file) {
  return ForEachField(message, [&](const ProtoField& field) {
    if (field.number == trainer_field::kBegin && field.IsBytes()) file->begin = field.bytes;
    if (field.number == trainer_field::kEnd && field.IsBytes()) file->end = field.bytes;
    if (field.kind != Kind::kNumber) return OkStatus();
    if (field.number == trainer_field::kModelType) {
      if (field.value < 1 || field.value > 4) return Unsupported(fmt::format("unknown model type {}", field.value));
      file->model = static_cast<PieceModel>(field.value);
    }
    if (field.number == trainer_field::kByteFallback) file->byte_fallback = field.value != 0;
    if (field.number == trainer_field::kSpaceAsSuffix && field.value != 0) {
      return Unsupported("treat_whitespace_as_suffix is not supported");
    }
    return OkStatus();
  });
}

Status ReadNormalizer(std::string_view message, SentencePieceFile* file) {
  return ForEachField(message, [&](const ProtoField& field) {
    if (field.number == normalizer_field::kCharsmap && field.IsBytes()) {
      file->has_charsmap = !field.bytes.empty();
      if (file->has_charsmap && !IsSoundCharsmap(field.bytes)) return Corrupt("the table of the normalizer is damaged");
    }
    if (field.kind != Kind::kNumber) return OkStatus();
    if (field.number == normalizer_field::kDummyPrefix) file->add_dummy_prefix = field.value != 0;
    if (field.number == normalizer_field::kRemoveExtra) file->remove_extra_whitespaces = field.value != 0;
    if (field.number == normalizer_field::kEscape && field.value == 0) {
      return Unsupported("a model without escape_whitespaces is not supported");
    }
    return OkStatus();
  });
}

Status ReadDenormalizer(std::string_view message) {
  return ForEachField(message, [](const ProtoField& field) {
    if (field.number != normalizer_field::kCharsmap || !field.IsBytes() || field.bytes.empty()) return OkStatus();
    return Unsupported("a model with a denormalizer is not supported");
  });
}

Status CheckPieces(const SentencePieceFile& file) {
  if (file.pieces.empty()) return NotAModel();
  std::unordered_set<std::string_view> texts;
  int64_t unknown = 0, bytes = 0;
  for (size_t i = 0; i < file.pieces.size(); ++i) {
    const ModelPiece& piece = file.pieces[i];
    if (!texts.insert(piece.text).second) return Corrupt(fmt::format("piece {} is there twice", Quoted(piece.text)));
    unknown += piece.type == PieceType::kUnknown;
    bytes += piece.type == PieceType::kByte;
  }
  if (unknown != 1) return Corrupt(fmt::format("{} pieces for the unknown; expected one", unknown));
  if (bytes != (file.byte_fallback ? 256 : 0)) {
    return Corrupt(fmt::format("{} pieces for single bytes; expected {}", bytes, file.byte_fallback ? 256 : 0));
  }
  return OkStatus();
}

std::string WritePiece(const ModelPiece& piece) {
  return ProtoBytes(model_field::kPiece, ProtoBytes(piece_field::kText, piece.text) +
                                             ProtoFloat(piece_field::kScore, piece.score) +
                                             ProtoNumber(piece_field::kType, static_cast<uint64_t>(piece.type)));
}

}  // namespace

Result<SentencePieceFile> ReadSentencePieceFile(std::string_view bytes) {
  if (bytes.empty()) return Corrupt("the file is empty; fetch or convert it again");
  SentencePieceFile file;
  bool has_trainer = false, has_normalizer = false;
  TC_RETURN_IF_ERROR(ForEachField(bytes, [&](const ProtoField& field) {
    if (field.number == model_field::kSelfTest) return OkStatus();
    has_trainer |= field.number == model_field::kTrainer;
    has_normalizer |= field.number == model_field::kNormalizer;
    file.proto += field.encoded;
    if (field.number > model_field::kDenormalizer) return OkStatus();
    if (!field.IsBytes()) return NotAModel();
    switch (field.number) {
      case model_field::kPiece: return ReadPiece(field.bytes, &file);
      case model_field::kTrainer: return ReadTrainer(field.bytes, &file);
      case model_field::kNormalizer: return ReadNormalizer(field.bytes, &file);
      default: return ReadDenormalizer(field.bytes);
    }
  }));
  if (!has_trainer || !has_normalizer) return NotAModel();  // they stand last: the file was cut
  TC_RETURN_IF_ERROR(CheckPieces(file));
  return file;
}

std::string WriteSentencePieceFile(const SentencePieceFile& file) {
  std::string model;
  for (const ModelPiece& piece : file.pieces) model += WritePiece(piece);
  std::string trainer = ProtoNumber(trainer_field::kModelType, static_cast<uint64_t>(file.model)) +
                        ProtoNumber(trainer_field::kByteFallback, file.byte_fallback ? 1 : 0);
  const SentencePieceFile defaults;
  if (file.begin != defaults.begin) trainer += ProtoBytes(trainer_field::kBegin, file.begin);
  if (file.end != defaults.end) trainer += ProtoBytes(trainer_field::kEnd, file.end);
  model += ProtoBytes(model_field::kTrainer, trainer);
  model += ProtoBytes(model_field::kNormalizer,
                      ProtoBytes(normalizer_field::kName, "identity") +
                          ProtoNumber(normalizer_field::kDummyPrefix, file.add_dummy_prefix ? 1 : 0) +
                          ProtoNumber(normalizer_field::kRemoveExtra, file.remove_extra_whitespaces ? 1 : 0) +
                          ProtoNumber(normalizer_field::kEscape, 1));
  return model;
}

}  // namespace tensorcache::tokenizer
