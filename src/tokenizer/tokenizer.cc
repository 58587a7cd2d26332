#include "tensorcache/tokenizer.h"

#include "core/no_throw.h"

namespace tensorcache {

Status Tokenizer::EncodeWith(const EncodeOptions& options, std::string_view text, std::vector<int32_t>* tokens) const {
  const size_t before = tokens->size();
  Status status = NoThrow("encode a text", [&] { return DoEncode(options, text, tokens); });
  if (!status.ok()) tokens->resize(before);
  return status;
}

Status Tokenizer::DecodeAfter(int32_t previous, std::span<const int32_t> tokens, std::string* text) const {
  const size_t before = text->size();
  Status status = NoThrow("decode tokens", [&] { return DoDecode(previous, tokens, text); });
  if (!status.ok()) text->resize(before);
  return status;
}

Status Tokenizer::Save(const std::string& folder) const {
  return NoThrow("save a tokenizer", [&] { return DoSave(folder); });
}

}  // namespace tensorcache
