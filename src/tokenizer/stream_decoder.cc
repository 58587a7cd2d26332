#include "core/no_throw.h"
#include "tensorcache/tokenizer.h"
#include "tokenizer/unicode.h"

namespace tensorcache {

Status StreamDecoder::Push(int32_t token, std::string* text) {
  if (tokenizer_ == nullptr) return InvalidArgument("a stream decoder without a tokenizer");
  const size_t before = pending_.size();
  TC_RETURN_IF_ERROR(tokenizer_->DecodeAfter(previous_, {&token, 1}, &pending_));
  if (Status status = Flush(false, text); !status.ok()) {
    pending_.resize(before);
    return status;
  }
  previous_ = token;
  return OkStatus();
}

Status StreamDecoder::Finish(std::string* text) {
  TC_RETURN_IF_ERROR(Flush(true, text));
  previous_ = -1;
  return OkStatus();
}

// After an error, neither *text nor pending_ has changed.
Status StreamDecoder::Flush(bool is_end, std::string* text) {
  constexpr uint32_t kReplacement = 0xFFFD;
  const size_t before = text->size();
  size_t at = 0;
  Status status = NoThrow("decode a token", [&] {
    while (at < pending_.size()) {
      const tokenizer::Utf8Char c = tokenizer::DecodeUtf8(pending_, at);
      if (c.truncated && !is_end) break;
      tokenizer::AppendUtf8(c.code == tokenizer::kInvalidCode ? kReplacement : c.code, text);
      at += c.length;
    }
    return OkStatus();
  });
  if (status.ok()) {
    pending_.erase(0, at);
  } else {
    text->resize(before);
  }
  return status;
}

}  // namespace tensorcache
