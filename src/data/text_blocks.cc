#include "data/text_blocks.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/check.h"

namespace tensorcache::data {
namespace {

// Index i with first[i] <= at < first[i + 1].
size_t FindRun(const std::vector<int64_t>& first, int64_t at) {
  TC_CHECK(at >= 0 && at < first.back());
  return static_cast<size_t>(std::ranges::upper_bound(first, at) - first.begin()) - 1;
}

}  // namespace

std::vector<TextDocument> ListDocuments(const TokenRange& range, Documents documents) {
  constexpr int64_t kFewest = 2;  // an input and its target
  std::vector<TextDocument> list;
  const auto add = [&](TextDocument document) {
    if (document.tokens() >= kFewest) list.push_back(document);
  };
  if (range.begin >= range.end) return list;
  if (documents == Documents::kConcatenate) {
    add({range.begin, range.end});
    return list;
  }
  for (int64_t i = 0; i < range.file->documents(); ++i) {
    const auto [begin, end] = range.file->document(i);
    add({std::max(begin, range.begin), std::min(end, range.end)});
  }
  return list;
}

BlockList::BlockList(std::vector<TextDocument> documents, int64_t length)
    : documents_(std::move(documents)), length_(length) {
  int64_t blocks = 0;
  first_block_.reserve(documents_.size() + 1);
  for (const TextDocument& document : documents_) {
    first_block_.push_back(blocks);
    blocks += (document.tokens() - 1 + length - 1) / length;
  }
  first_block_.push_back(blocks);
}

TextBlock BlockList::at(int64_t block) const {
  const size_t i = FindRun(first_block_, block);
  const TextDocument& document = documents_[i];
  const int64_t begin = document.begin + (block - first_block_[i]) * length_;
  return {.begin = begin,
          .inputs = std::min(length_, document.end - begin),
          .targets = std::min(length_, document.end - begin - 1),
          .fresh = begin == document.begin};
}

StartList::StartList(std::vector<TextDocument> documents, int64_t tokens) : documents_(std::move(documents)) {
  int64_t starts = 0;
  std::erase_if(documents_, [&](const TextDocument& document) { return document.tokens() < tokens; });
  first_start_.reserve(documents_.size() + 1);
  for (const TextDocument& document : documents_) {
    first_start_.push_back(starts);
    starts += document.tokens() - tokens + 1;
  }
  first_start_.push_back(starts);
}

int64_t StartList::at(int64_t start) const {
  const size_t i = FindRun(first_start_, start);
  return documents_[i].begin + start - first_start_[i];
}

int64_t SpreadStride(int64_t n) {
  TC_CHECK(n >= 1);
  int64_t stride = std::max<int64_t>(1, std::llround(static_cast<double>(n) * 0.6180339887498949));
  while (std::gcd(stride, n) != 1) ++stride;
  return stride;
}

int64_t SpreadIndex(int64_t k, int64_t stride, int64_t n) {
  return static_cast<int64_t>(static_cast<__int128>(k) * stride % n);
}

}  // namespace tensorcache::data
