// Text to token numbers and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensorcache/status.h"

namespace tensorcache {

// Immutable and thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int64_t vocab_size() const = 0;
  // Appends the tokens of `text`. Fails on text the tokenizer cannot represent.
  virtual Status Encode(std::string_view text, std::vector<int32_t>* tokens) const = 0;
  // Appends the bytes of `tokens`; numbers outside the vocabulary are an error.
  virtual Status Decode(std::span<const int32_t> tokens, std::string* text) const = 0;
  // The token that ends a document, or -1.
  virtual int32_t end_of_text() const { return -1; }
  // Writes the file or files that LoadTokenizer reads again into `folder`.
  virtual Status Save(const std::string& folder) const = 0;
  // Of everything that decides how text is encoded; the same for equal tokenizers on any machine.
  virtual uint64_t fingerprint() const = 0;
};

}  // namespace tensorcache
