#include "tokenizer/token_table.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/check.h"

namespace tensorcache::tokenizer {
namespace {

uint64_t Mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15;
  return hash ^ hash >> 32;
}

uint32_t Hash(std::string_view bytes) {
  uint64_t hash = bytes.size(), word = 0;
  for (; bytes.size() >= sizeof(word); bytes.remove_prefix(sizeof(word))) {
    std::memcpy(&word, bytes.data(), sizeof(word));
    hash = Mix(hash, word);
  }
  word = 0;
  std::memcpy(&word, bytes.data(), bytes.size());
  return static_cast<uint32_t>(Mix(hash, word));
}

}  // namespace

TokenTable::TokenTable(const std::vector<std::string>& tokens) : slots_(std::bit_ceil(2 * tokens.size() + 2)) {
  offsets_.reserve(tokens.size() + 1);
  offsets_.push_back(0);
  for (const std::string& token : tokens) {
    bytes_ += token;
    offsets_.push_back(bytes_.size());
  }
}

void TokenTable::Index(int32_t token) {
  const std::string_view bytes = Bytes(token);
  TC_CHECK(!bytes.empty());
  const uint32_t hash = Hash(bytes);
  size_t slot = hash & (slots_.size() - 1);
  while (slots_[slot].token >= 0) slot = (slot + 1) & (slots_.size() - 1);
  slots_[slot] = {hash, token};
  longest_ = std::max(longest_, bytes.size());
}

int32_t TokenTable::Find(std::string_view bytes) const {
  if (bytes.size() > longest_ || bytes.empty()) return -1;
  const uint32_t hash = Hash(bytes);
  for (size_t slot = hash & (slots_.size() - 1);; slot = (slot + 1) & (slots_.size() - 1)) {
    const Slot& entry = slots_[slot];
    if (entry.token < 0) return -1;
    if (entry.hash == hash && Bytes(entry.token) == bytes) return entry.token;
  }
}

}  // namespace tensorcache::tokenizer
