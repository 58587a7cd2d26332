// A trie of byte strings: which of them stand at a place of a text?
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tensorcache::tokenizer {

// Immutable and thread-safe after the last Insert().
class PieceTrie {
 public:
  // Longest() follows a piece no farther, so that it takes linear time to ask at every place of a text.
  static constexpr size_t kMaxSteps = 512;

  struct Match {
    size_t end = 0;      // behind the longest piece that begins there; where it was asked for if there is none
    int32_t value = -1;  // of that piece
  };

  PieceTrie();

  // `value` of a piece that is there already takes the place of the old one.
  void Insert(std::string_view piece, int32_t value);
  // The longest piece that begins at `at`. If there may be one of more than kMaxSteps bytes, {text.size(), -1}: it reaches
  // no farther.
  Match Longest(std::string_view text, size_t at) const;

 private:
  struct Edge {
    uint64_t key = kNoEdge;  // node << 8 | byte
    uint32_t child = 0;
  };
  static constexpr uint64_t kNoEdge = UINT64_MAX;
  static constexpr int32_t kNoPiece = INT32_MIN;

  size_t Slot(uint64_t key) const { return key * 0x9E3779B97F4A7C15 >> shift_; }
  // The child of `node`, which is not the root, or 0.
  uint32_t Child(uint32_t node, uint8_t byte) const {
    const uint64_t key = uint64_t{node} << 8 | byte;
    for (size_t slot = Slot(key);; slot = (slot + 1) & (edges_.size() - 1)) {
      if (edges_[slot].key == key) return edges_[slot].child;
      if (edges_[slot].key == kNoEdge) return 0;
    }
  }
  void AddEdge(const Edge& edge);
  void Grow();

  std::array<uint32_t, 256> root_{};  // children of node 0
  std::vector<Edge> edges_;           // of the other nodes: open addressing; a power of two, at most half full
  size_t edge_count_ = 0;
  int shift_ = 0;
  std::vector<int32_t> values_;  // by node; kNoPiece if no piece ends there
};

}  // namespace tensorcache::tokenizer
