#include "tokenizer/charsmap.h"

#include <cstdint>
#include <cstring>
#include <vector>

namespace tensorcache::tokenizer {
namespace {

// A unit of the trie: bits 0 to 7 and 31 are the label, 8 tells that a value follows, 9 and 10 to 30 are the offset of
// the children. A unit with a value has it in bits 0 to 30.
uint32_t Label(uint32_t unit) { return unit & (0x80000000 | 0xFF); }
bool HasValue(uint32_t unit) { return unit >> 8 & 1; }
uint32_t Value(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t Offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); }

}  // namespace

bool IsSoundCharsmap(std::string_view charsmap) {
  uint32_t trie_bytes = 0;
  if (charsmap.size() <= sizeof(trie_bytes)) return false;
  std::memcpy(&trie_bytes, charsmap.data(), sizeof(trie_bytes));
  charsmap.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes == 0 || trie_bytes % sizeof(uint32_t) != 0 || trie_bytes >= charsmap.size()) return false;
  std::vector<uint32_t> units(trie_bytes / sizeof(uint32_t));
  std::memcpy(units.data(), charsmap.data(), trie_bytes);
  const std::string_view texts = charsmap.substr(trie_bytes);
  if (texts.back() != '\0') return false;

  // A node is the place that the label of a child is xored with. Every node that some text reaches is visited once, with
  // every byte that may come next.
  std::vector<bool> seen(units.size());
  std::vector<uint32_t> nodes = {Offset(units[0])};
  while (!nodes.empty()) {
    const uint32_t node = nodes.back();
    nodes.pop_back();
    if (node >= units.size()) return false;
    if (seen[node]) continue;
    seen[node] = true;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t place = node ^ byte;
      if (place >= units.size()) return false;
      if (Label(units[place]) != byte) continue;
      const uint32_t child = place ^ Offset(units[place]);
      if (child >= units.size()) return false;
      if (HasValue(units[place]) && Value(units[child]) >= texts.size()) return false;
      nodes.push_back(child);
    }
  }
  return true;
}

}  // namespace tensorcache::tokenizer
