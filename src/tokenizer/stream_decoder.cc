#include "tensorcache/tokenizer.h"
#include "tokenizer/unicode.h"

namespace tensorcache {

Status StreamDecoder::Push(int32_t token, std::string* text) {
  TC_RETURN_IF_ERROR(tokenizer_->DecodeAfter(previous_, {&token, 1}, &pending_));
  previous_ = token;
  Flush(false, text);
  return OkStatus();
}

void StreamDecoder::Finish(std::string* text) {
  Flush(true, text);
  previous_ = -1;
}

void StreamDecoder::Flush(bool is_end, std::string* text) {
  constexpr uint32_t kReplacement = 0xFFFD;
  size_t at = 0;
  while (at < pending_.size()) {
    const tokenizer::Utf8Char c = tokenizer::DecodeUtf8(pending_, at);
    if (c.truncated && !is_end) break;
    tokenizer::AppendUtf8(c.code == tokenizer::kInvalidCode ? kReplacement : c.code, text);
    at += c.length;
  }
  pending_.erase(0, at);
}

}  // namespace tensorcache
