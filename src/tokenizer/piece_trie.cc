#include "tokenizer/piece_trie.h"

#include <bit>
#include <utility>

namespace tensorcache::tokenizer {

PieceTrie::PieceTrie() : edges_(64), values_(1, kNoPiece) { shift_ = 64 - std::countr_zero(edges_.size()); }

void PieceTrie::AddEdge(const Edge& edge) {
  size_t slot = Slot(edge.key);
  while (edges_[slot].key != kNoEdge) slot = (slot + 1) & (edges_.size() - 1);
  edges_[slot] = edge;
}

void PieceTrie::Grow() {
  const std::vector<Edge> old = std::exchange(edges_, std::vector<Edge>(2 * edges_.size()));
  --shift_;
  for (const Edge& edge : old) {
    if (edge.key != kNoEdge) AddEdge(edge);
  }
}

void PieceTrie::Insert(std::string_view piece, int32_t value) {
  uint32_t node = 0;
  for (size_t i = 0; i < piece.size(); ++i) {
    const auto byte = static_cast<uint8_t>(piece[i]);
    uint32_t child = i == 0 ? root_[byte] : Child(node, byte);
    if (child == 0) {
      child = static_cast<uint32_t>(values_.size());
      values_.push_back(kNoPiece);
      if (i == 0) {
        root_[byte] = child;
      } else {
        if (2 * ++edge_count_ > edges_.size()) Grow();
        AddEdge({.key = uint64_t{node} << 8 | byte, .child = child});
      }
    }
    node = child;
  }
  values_[node] = value;
}

PieceTrie::Match PieceTrie::Longest(std::string_view text, size_t at) const {
  Match match{.end = at};
  uint32_t node = root_[static_cast<uint8_t>(text[at])];
  for (size_t end = at + 1; node != 0; ++end) {
    if (end - at > kMaxSteps) return {text.size(), -1};
    if (values_[node] != kNoPiece) match = {end, values_[node]};
    if (end == text.size()) break;
    node = Child(node, static_cast<uint8_t>(text[end]));
  }
  return match;
}

}  // namespace tensorcache::tokenizer
