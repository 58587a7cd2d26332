// Merges as files spell them: pairs of tokens by name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tensorcache/status.h"
#include "tokenizer/byte_level_bpe.h"

namespace tensorcache::tokenizer {

enum class MergeSpelling {
  kByteLevel,  // byte_level.h
  kSpaceSign,  // as it is, with U+2581 in the place of spaces
};

class MergeReader {
 public:
  // The vocabulary of `parts`, which must outlive the reader, spelled kByteLevel.
  explicit MergeReader(const BpeParts& parts);
  // The tokens with these texts, which must outlive the reader; an empty one has no part in any merge.
  MergeReader(const std::vector<std::string>& tokens, MergeSpelling spelling);

  // Two tokens, given apart or as "left right".
  Status Add(std::string_view left, std::string_view right);
  Status Add(std::string_view line);
  std::vector<Merge> TakeMerges() { return std::move(merges_); }

 private:
  std::optional<std::string> Read(std::string_view spelled) const;

  MergeSpelling spelling_;
  std::unordered_map<std::string_view, int32_t> numbers_;
  std::vector<Merge> merges_;
};

}  // namespace tensorcache::tokenizer
