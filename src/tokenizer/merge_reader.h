// Merges as files spell them: pairs of tokens by name.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tensorcache/status.h"
#include "tokenizer/byte_level_bpe.h"

namespace tensorcache::tokenizer {

class MergeReader {
 public:
  // The vocabulary of `parts`, which must outlive the reader.
  explicit MergeReader(const BpeParts& parts);

  // Two byte-level spelled tokens, given apart or as "left right".
  Status Add(std::string_view left, std::string_view right);
  Status Add(std::string_view line);
  std::vector<Merge> TakeMerges() { return std::move(merges_); }

 private:
  std::unordered_map<std::string_view, int32_t> numbers_;
  std::vector<Merge> merges_;
};

}  // namespace tensorcache::tokenizer
