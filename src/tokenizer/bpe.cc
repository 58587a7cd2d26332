#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "core/check.h"

namespace tensorcache::tokenizer {

BpeMerges::BpeMerges(std::vector<Merge> merges, std::vector<uint32_t> ranks)
    : merges_(std::move(merges)), ranks_(std::move(ranks)) {
  TC_CHECK(std::ssize(merges_) <= kMaxMerges);
  TC_CHECK(ranks_.empty() || ranks_.size() == merges_.size());
  const size_t size = std::bit_ceil(2 * merges_.size() + 2);
  shift_ = 64 - std::countr_zero(size);
  table_.assign(size, kEmpty);
  for (size_t place = 0; place < merges_.size(); ++place) {
    const auto [left, right, merged] = merges_[place];
    TC_CHECK(left >= 0 && left < kMaxTokens && right >= 0 && right < kMaxTokens);
    const uint64_t key = Key(left, right);
    size_t slot = Slot(key);
    while (table_[slot] != kEmpty) {
      TC_CHECK(table_[slot] >> kPlaceBits != key);
      slot = (slot + 1) & (size - 1);
    }
    table_[slot] = key << kPlaceBits | place;
  }
}

void BpeMerges::ApplyShort(Scratch* scratch) const {
  std::vector<int32_t>& symbols = scratch->symbols;
  size_t size = symbols.size();
  if (size < 2) return;
  scratch->ranks.resize(size);
  uint32_t* const ranks = scratch->ranks.data();  // ranks[i]: of symbols i and i + 1
  for (size_t i = 0; i + 1 < size; ++i) ranks[i] = Rank(symbols[i], symbols[i + 1]);
  while (size > 1) {
    const size_t at = std::min_element(ranks, ranks + size - 1) - ranks;
    if (ranks[at] == kNone) break;
    symbols[at] = Merged(symbols[at], symbols[at + 1], ranks[at]);
    std::copy(symbols.begin() + at + 2, symbols.begin() + size, symbols.begin() + at + 1);
    if (at + 2 < size) std::copy(ranks + at + 2, ranks + size - 1, ranks + at + 1);
    --size;
    if (at > 0) ranks[at - 1] = Rank(symbols[at - 1], symbols[at]);
    if (at + 1 < size) ranks[at] = Rank(symbols[at], symbols[at + 1]);
  }
  symbols.resize(size);
}

void BpeMerges::ApplyLong(Scratch* scratch) const {
  auto& [symbols, ranks, previous, next, heap] = *scratch;
  const auto size = static_cast<uint32_t>(symbols.size());
  TC_CHECK(size == symbols.size());
  if (size < 2) return;
  // A linked list of symbols, and a heap of rank << 32 | place of the left one. An entry counts only while ranks[place] is
  // still its rank: places that were merged away or got another neighbour keep their old entries in the heap.
  ranks.resize(size);
  previous.resize(size);
  next.resize(size);
  heap.clear();
  for (uint32_t i = 0; i < size; ++i) {
    previous[i] = i - 1;
    next[i] = i + 1;
    ranks[i] = i + 1 < size ? Rank(symbols[i], symbols[i + 1]) : kNone;
    if (ranks[i] != kNone) heap.push_back(uint64_t{ranks[i]} << 32 | i);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto update = [&](uint32_t at) {
    ranks[at] = next[at] < size ? Rank(symbols[at], symbols[next[at]]) : kNone;
    if (ranks[at] == kNone) return;
    heap.push_back(uint64_t{ranks[at]} << 32 | at);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto rank = static_cast<uint32_t>(heap.back() >> 32), at = static_cast<uint32_t>(heap.back());
    heap.pop_back();
    if (ranks[at] != rank) continue;
    const uint32_t gone = next[at];
    symbols[at] = Merged(symbols[at], symbols[gone], rank);
    ranks[gone] = kNone;
    next[at] = next[gone];
    if (next[at] < size) previous[next[at]] = at;
    update(at);
    if (at > 0) update(previous[at]);
  }
  size_t kept = 0;
  for (uint32_t i = 0; i < size; i = next[i]) symbols[kept++] = symbols[i];
  symbols.resize(kept);
}

}  // namespace tensorcache::tokenizer
