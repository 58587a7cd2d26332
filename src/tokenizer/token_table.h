// The bytes of every token, and back from bytes to token.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tensorcache::tokenizer {

// Immutable and thread-safe after the last Index().
class TokenTable {
 public:
  // Token i is tokens[i]; an empty one is not in the vocabulary.
  explicit TokenTable(const std::vector<std::string>& tokens);

  int32_t size() const { return static_cast<int32_t>(offsets_.size()) - 1; }
  bool Has(int32_t token) const { return token >= 0 && token < size() && !Bytes(token).empty(); }
  std::string_view Bytes(int32_t token) const {
    return std::string_view(bytes_).substr(offsets_[token], offsets_[token + 1] - offsets_[token]);
  }

  // From now on Find finds `token`. Tokens of the same bytes must not both be indexed.
  void Index(int32_t token);
  // The indexed token of these bytes, or -1.
  int32_t Find(std::string_view bytes) const;

 private:
  struct Slot {
    uint32_t hash = 0;
    int32_t token = -1;
  };

  std::string bytes_;
  std::vector<uint64_t> offsets_;
  std::vector<Slot> slots_;  // open addressing; a power of two, at most half full
  size_t longest_ = 0;
};

}  // namespace tensorcache::tokenizer
