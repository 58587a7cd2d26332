// The merges of byte-pair encoding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tensorcache::tokenizer {

// The merge of two tokens. Its rank is its place in the list: lower goes first.
struct Merge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t merged = 0;
};

// Immutable and thread-safe.
class BpeMerges {
 public:
  static constexpr int64_t kMaxTokens = 1 << 21;
  static constexpr int64_t kMaxMerges = (1 << 22) - 1;

  // Working memory of Apply, to be used again from word to word by one thread.
  struct Scratch {
    std::vector<int32_t> symbols;
    std::vector<uint32_t> ranks;
    std::vector<uint32_t> previous, next;
    std::vector<uint64_t> heap;
  };

  // Tokens are below kMaxTokens; at most kMaxMerges merges, each pair at most once. ranks[i] is the rank of merge i, if it
  // is not its place in the list; several may have the same.
  explicit BpeMerges(std::vector<Merge> merges, std::vector<uint32_t> ranks = {});

  std::span<const Merge> merges() const { return merges_; }
  // The rank of the merge of two neighbours, or kNone.
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t Rank(int32_t left, int32_t right) const {
    const uint32_t place = Find(left, right);
    return place == kNone || ranks_.empty() ? place : ranks_[place];
  }

  // Merges scratch->symbols, one word, until no merge is left: always the lowest rank, the leftmost among equals.
  // O(n log n) in the length of the word.
  void Apply(Scratch* scratch) const {
    if (scratch->symbols.size() <= kShort) {
      ApplyShort(scratch);
    } else {
      ApplyLong(scratch);
    }
  }
  // The two ways of doing it: rescan all neighbours after every merge, or keep them in a heap.
  void ApplyShort(Scratch* scratch) const;
  void ApplyLong(Scratch* scratch) const;

 private:
  static constexpr size_t kShort = 40;
  // An entry of the table is left (21 bits), right (21), place in the list (22). The largest place is never used: it marks
  // no entry.
  static constexpr int kPlaceBits = 22;
  static constexpr uint64_t kEmpty = UINT64_MAX;

  static uint64_t Key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 21 | static_cast<uint64_t>(right);
  }
  uint32_t Find(int32_t left, int32_t right) const {
    const uint64_t key = Key(left, right);
    for (size_t slot = Slot(key);; slot = (slot + 1) & (table_.size() - 1)) {
      const uint64_t entry = table_[slot];
      if (entry == kEmpty) return kNone;
      if (entry >> kPlaceBits == key) return static_cast<uint32_t>(entry & ((1 << kPlaceBits) - 1));
    }
  }
  // What two neighbours with a merge of this rank make.
  int32_t Merged(int32_t left, int32_t right, uint32_t rank) const {
    return merges_[ranks_.empty() ? rank : Find(left, right)].merged;
  }
  size_t Slot(uint64_t key) const { return key * 0x9E3779B97F4A7C15 >> shift_; }

  std::vector<Merge> merges_;
  std::vector<uint32_t> ranks_;  // empty if they are the places
  std::vector<uint64_t> table_;  // open addressing; a power of two, at most half full
  int shift_ = 0;
};

}  // namespace tensorcache::tokenizer
