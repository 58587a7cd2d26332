#include <fmt/format.h>

#include "tensorcache/tokenizer.h"
#include "tokenizer/files.h"
#include "tokenizer/fingerprint.h"

namespace tensorcache {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  std::string kind() const override { return "bytes"; }
  int64_t vocab_size() const override { return 256; }

  uint64_t fingerprint() const override {
    tokenizer::Fingerprint fingerprint;
    fingerprint.Add("bytes");
    return fingerprint.value();
  }

 private:
  Status DoEncode(const EncodeOptions& /*options*/, std::string_view text,
                  std::vector<int32_t>* tokens) const override {
    tokens->reserve(tokens->size() + text.size());
    for (const char byte : text) tokens->push_back(static_cast<uint8_t>(byte));
    return OkStatus();
  }

  Status DoDecode(int32_t /*previous*/, std::span<const int32_t> tokens, std::string* text) const override {
    for (const int32_t token : tokens) {
      if (token < 0 || token > 255)
        return InvalidArgument(fmt::format("there is no token {}: bytes are 0 to 255", token));
      text->push_back(static_cast<char>(token));
    }
    return OkStatus();
  }

  Status DoSave(const std::string& folder) const override {
    return tokenizer::SaveTokenizerFile(folder, tokenizer::kBytesJson, "{\"bytes\": 256}\n");
  }
};

}  // namespace

std::shared_ptr<const Tokenizer> MakeByteTokenizer() {
  static const ByteTokenizer tokenizer;
  return {std::shared_ptr<const Tokenizer>(), &tokenizer};  // owns nothing, so that it needs no memory
}

}  // namespace tensorcache
