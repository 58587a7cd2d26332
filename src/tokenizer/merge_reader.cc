#include "tokenizer/merge_reader.h"

#include <fmt/format.h>

#include <utility>

#include "core/text.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/sentencepiece_tokenizer.h"

namespace tensorcache::tokenizer {

MergeReader::MergeReader(const BpeParts& parts) : spelling_(MergeSpelling::kByteLevel) {
  const std::vector<bool> is_mergeable = MergeableTokens(parts);
  numbers_.reserve(parts.tokens.size());
  for (size_t i = 0; i < parts.tokens.size(); ++i) {
    if (is_mergeable[i]) numbers_.emplace(parts.tokens[i], static_cast<int32_t>(i));
  }
}

MergeReader::MergeReader(const std::vector<std::string>& tokens, MergeSpelling spelling) : spelling_(spelling) {
  numbers_.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!tokens[i].empty()) numbers_.emplace(tokens[i], static_cast<int32_t>(i));
  }
}

std::optional<std::string> MergeReader::Read(std::string_view spelled) const {
  return spelling_ == MergeSpelling::kByteLevel ? FromByteLevel(spelled) : WithSpaces(spelled);
}

Status MergeReader::Add(std::string_view left, std::string_view right) {
  const auto left_bytes = Read(left), right_bytes = Read(right);
  const auto find = [&](const std::string& bytes) {
    const auto found = numbers_.find(bytes);
    return found == numbers_.end() ? -1 : found->second;
  };
  Merge merge{-1, -1, -1};
  if (left_bytes && right_bytes) {
    merge = {find(*left_bytes), find(*right_bytes), find(*left_bytes + *right_bytes)};
  }
  if (merge.left < 0 || merge.right < 0 || merge.merged < 0) {
    const std::string_view what = merge.left < 0 ? "the first" : merge.right < 0 ? "the second" : "the result";
    return Corrupt(fmt::format("merge {} of {} and {}: {} is not in the vocabulary", merges_.size(), Quoted(left),
                               Quoted(right), what));
  }
  merges_.push_back(merge);
  return OkStatus();
}

Status MergeReader::Add(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == line.npos || space == 0 || space + 1 == line.size() || line.find(' ', space + 1) != line.npos) {
    return Corrupt(
        fmt::format("merge {} is {}; expected two tokens with a space between", merges_.size(), Quoted(line)));
  }
  return Add(line.substr(0, space), line.substr(space + 1));
}

}  // namespace tensorcache::tokenizer
