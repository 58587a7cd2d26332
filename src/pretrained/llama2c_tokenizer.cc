#include "pretrained/llama2c_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/text.h"
#include "tokenizer/sentencepiece_file.h"

namespace tensorcache::pretrained {
namespace {

using tokenizer::ModelPiece;
using tokenizer::PieceType;
using tokenizer::SentencePieceFile;

// Their code relies on these numbers.
constexpr size_t kUnknown = 0, kBegin = 1, kEnd = 2, kFirstByte = 3, kBytes = 256;

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  std::optional<T> Number() {
    T value;
    if (rest_.size() < sizeof(value)) return std::nullopt;
    rest_.copy(reinterpret_cast<char*>(&value), sizeof(value));
    rest_.remove_prefix(sizeof(value));
    return value;
  }
  std::optional<std::string_view> Text(int32_t length) {
    if (length < 0 || std::cmp_less(rest_.size(), length)) return std::nullopt;
    const std::string_view text = rest_.substr(0, static_cast<size_t>(length));
    rest_.remove_prefix(text.size());
    return text;
  }
  size_t left() const { return rest_.size(); }

 private:
  std::string_view rest_;
};

// Their exporter replaced SentencePiece's sign for a space by a space.
std::string WithSpaceSigns(std::string_view text) {
  std::string piece;
  for (const char c : text) {
    if (c == ' ') {
      piece += "\u2581";
    } else {
      piece += c;
    }
  }
  return piece;
}

ModelPiece PieceOf(size_t token, std::string_view text, float score) {
  if (token == kUnknown) return {"<unk>", score, PieceType::kUnknown};
  if (token == kBegin) return {"<s>", score, PieceType::kControl};
  if (token == kEnd) return {"</s>", score, PieceType::kControl};
  if (token < kFirstByte + kBytes) return {std::string(text), score, PieceType::kByte};
  return {WithSpaceSigns(text), score, PieceType::kNormal};
}

}  // namespace

Result<std::string> ConvertLlama2cTokenizer(std::string_view bytes, int64_t vocab_size) {
  Reader reader(bytes);
  const auto cut = [&](int64_t token) {
    return Corrupt(
        fmt::format("the file ends in token {} of {}; is it the tokenizer of this model?", token, vocab_size));
  };
  if (!reader.Number<int32_t>()) return cut(0);  // the longest token, which is of no use here
  SentencePieceFile file{.model = tokenizer::PieceModel::kBpe,
                         .byte_fallback = true,
                         .add_dummy_prefix = true,
                         .remove_extra_whitespaces = false};
  for (int64_t token = 0; token < vocab_size; ++token) {
    const auto score = reader.Number<float>();
    const auto length = reader.Number<int32_t>();
    const auto text = length ? reader.Text(*length) : std::nullopt;
    if (!score || !text) return cut(token);
    file.pieces.push_back(PieceOf(static_cast<size_t>(token), *text, *score));
  }
  if (reader.left() > 0) {
    return Corrupt(fmt::format("{} bytes are left after {} tokens; is it the tokenizer of this model?", reader.left(),
                               vocab_size));
  }
  std::string model = WriteSentencePieceFile(file);
  const auto checked = tokenizer::ReadSentencePieceFile(model);
  if (!checked.ok()) return Corrupt("not a tokenizer of llama2.c: " + checked.status().message());
  return model;
}

}  // namespace tensorcache::pretrained
