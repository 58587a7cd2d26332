// tokenizer.model: SentencePiece's own files, through its library.
#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/file.h"
#include "core/text.h"
#include "tokenizer/files.h"
#include "tokenizer/fingerprint.h"
#include "tokenizer/piece_bpe.h"
#include "tokenizer/sentencepiece_file.h"
#include "tokenizer/sentencepiece_tokenizer.h"
#include "tokenizer/unicode.h"

namespace tensorcache::tokenizer {
namespace {

constexpr int64_t kMaxBytes = int64_t{64} << 20;

Status LibraryError(std::string_view message) {
  return Corrupt(fmt::format("the SentencePiece library refuses it: {}", FirstLine(message)));
}

// Throws std::bad_alloc if there is not as much memory. At some places the library ends the program where it finds none,
// so what it is going to need is asked for first.
void AskForMemory(size_t bytes) { ::operator delete(::operator new(bytes)); }

// Any model, by the library: about 1 MB/s. Bytes that are not UTF-8 become U+FFFD.
class LibrarySegments final : public SegmentEncoder {
 public:
  static Result<std::unique_ptr<const SegmentEncoder>> Make(const SentencePieceFile& file) {
    constexpr size_t kBytesPerByte = 16;  // measured: up to 8
    AskForMemory(kBytesPerByte * file.proto.size());
    auto segments = std::make_unique<LibrarySegments>();
    try {
      const auto status = segments->processor_.LoadFromSerializedProto(file.proto);
      if (!status.ok()) return LibraryError(status.message());
    } catch (const std::exception& error) {
      return LibraryError(error.what());
    }
    if (segments->processor_.GetPieceSize() != std::ssize(file.pieces)) {
      return LibraryError(fmt::format("it finds {} pieces", segments->processor_.GetPieceSize()));
    }
    return std::unique_ptr<const SegmentEncoder>(std::move(segments));
  }

  // The model itself says whether a space belongs before the text.
  Status Encode(std::string_view text, bool /*has_prefix*/, std::vector<int32_t>* tokens) const override {
    constexpr size_t kBytesPerByte = 256;  // measured: up to 237
    AskForMemory(kBytesPerByte * text.size());
    std::vector<int> ids;
    const auto status = processor_.Encode(text, &ids);
    if (!status.ok()) {
      return InvalidArgument(fmt::format("the SentencePiece library: {}", FirstLine(status.message())));
    }
    tokens->insert(tokens->end(), ids.begin(), ids.end());
    return OkStatus();
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

// Whether PieceBpe does what the library does, only many times faster. The library merges any two neighbours that make a
// piece, the best score first: a list of merges if the characters of all pieces are pieces themselves. Llama 2's model and
// its like are so.
bool IsPlainBpe(const SentencePieceFile& file) {
  if (file.model != PieceModel::kBpe || file.has_charsmap || file.remove_extra_whitespaces) return false;
  std::unordered_set<uint32_t> known;
  for (const auto& [text, score, type] : file.pieces) {
    if (type == PieceType::kUserDefined || type == PieceType::kUnused) return false;
    const Utf8Char c = DecodeUtf8(text, 0);
    const bool is_character = static_cast<size_t>(c.length) == text.size();
    if (type == PieceType::kNormal) {
      if (is_character) known.insert(c.code);
      if (text.find(' ') != text.npos) return false;
    } else if (is_character) {
      return false;
    }
  }
  return std::ranges::all_of(file.pieces, [&](const ModelPiece& piece) {
    if (piece.type != PieceType::kNormal) return true;
    for (size_t at = 0; at < piece.text.size();) {
      const Utf8Char c = DecodeUtf8(piece.text, at);
      if (!known.contains(c.code)) return false;
      at += c.length;
    }
    return true;
  });
}

// Nothing if there are more merges than BpeMerges takes.
std::optional<PieceBpeParts> BpePartsOf(const SentencePieceFile& file) {
  PieceBpeParts parts{.fuse_unknown = true};
  parts.byte_tokens.fill(-1);
  parts.pieces.resize(file.pieces.size());
  std::unordered_map<std::string_view, int32_t> numbers;
  std::vector<int32_t> order;
  for (size_t i = 0; i < file.pieces.size(); ++i) {
    const auto& [text, score, type] = file.pieces[i];
    const auto token = static_cast<int32_t>(i);
    if (type == PieceType::kUnknown) parts.unknown = token;
    if (type == PieceType::kByte) parts.byte_tokens[ByteOfPiece(text)] = token;
    if (type != PieceType::kNormal) continue;
    parts.pieces[i] = WithSpaces(text);
    numbers.emplace(parts.pieces[i], token);
    order.push_back(token);
  }
  const auto score_of = [&](int32_t token) { return file.pieces[token].score; };
  std::ranges::stable_sort(order, std::ranges::greater{}, score_of);
  uint32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && score_of(order[i]) != score_of(order[i - 1])) ++rank;
    const std::string_view text = parts.pieces[order[i]];
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const auto left = numbers.find(text.substr(0, cut)), right = numbers.find(text.substr(cut));
      if (left == numbers.end() || right == numbers.end()) continue;
      if (std::ssize(parts.merges) == BpeMerges::kMaxMerges) return std::nullopt;
      parts.merges.push_back({left->second, right->second, order[i]});
      parts.ranks.push_back(rank);
    }
  }
  return parts;
}

std::string_view ModelName(PieceModel model) {
  switch (model) {
    case PieceModel::kUnigram: return "unigram";
    case PieceModel::kBpe: return "BPE";
    case PieceModel::kWord: return "words";
    case PieceModel::kCharacter: return "characters";
  }
  return "";
}

void AddTokens(const SentencePieceFile& file, SentencePieceParts* parts) {
  for (size_t i = 0; i < file.pieces.size(); ++i) {
    const auto& [text, score, type] = file.pieces[i];
    const auto token = static_cast<int32_t>(i);
    const bool is_control = type == PieceType::kControl, is_special = is_control || type == PieceType::kUnknown;
    parts->tokens.push_back(type == PieceType::kByte ? std::string(1, static_cast<char>(ByteOfPiece(text)))
                            : is_special             ? text
                                                     : WithSpaces(text));
    if (is_control) {
      parts->added.push_back({.id = token, .text = text});
      if (text == file.begin) parts->begin_of_text = token;
      if (text == file.end) parts->end_of_text = token;
    }
    if (type == PieceType::kUnknown || type == PieceType::kUserDefined) {
      parts->named.push_back({.id = token, .text = text, .special = is_special});
    }
  }
}

Result<std::shared_ptr<const Tokenizer>> MakeModelTokenizer(std::string bytes) {
  TC_ASSIGN_OR_RETURN(const SentencePieceFile file, ReadSentencePieceFile(bytes));
  SentencePieceParts parts{.kind = fmt::format("SentencePiece {} (tokenizer.model)", ModelName(file.model)),
                           .prefix = file.add_dummy_prefix ? SpacePrefix::kAlways : SpacePrefix::kNever};
  AddTokens(file, &parts);
  Fingerprint fingerprint;
  fingerprint.Add("SentencePiece model");
  fingerprint.Add(file.proto);
  parts.fingerprint = fingerprint.value();
  if (IsPlainBpe(file)) {
    if (auto bpe = BpePartsOf(file)) parts.encoder = MakeBpeSegments(std::move(*bpe), false);
  }
  if (parts.encoder == nullptr) {
    TC_ASSIGN_OR_RETURN(parts.encoder, LibrarySegments::Make(file));
  }
  parts.file_name = kTokenizerModel;
  parts.file = std::move(bytes);
  return MakeSentencePieceTokenizer(std::move(parts));
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> LoadSentencePieceModel(const std::string& path) {
  TC_ASSIGN_OR_RETURN(std::string bytes, ReadWholeFile(path, kMaxBytes));
  auto tokenizer = MakeModelTokenizer(std::move(bytes));
  if (!tokenizer.ok()) return Status(tokenizer.status().code(), path + ": " + tokenizer.status().message());
  return tokenizer;
}

}  // namespace tensorcache::tokenizer
