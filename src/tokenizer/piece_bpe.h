// BPE over characters, as SentencePiece has it: characters outside the vocabulary fall back to bytes, and a text is not
// cut into words first, so that merges may go beyond a space.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tensorcache/status.h"
#include "tokenizer/bpe.h"
#include "tokenizer/piece_trie.h"

namespace tensorcache::tokenizer {

struct PieceBpeParts {
  // By token: its text, with spaces as spaces. Empty where no merge makes it: control tokens, bytes, the unknown.
  std::vector<std::string> pieces;
  std::vector<Merge> merges;               // of tokens in `pieces`; the result is the text of both
  std::vector<uint32_t> ranks;             // of the merges, as BpeMerges has it
  std::array<int32_t, 256> byte_tokens{};  // -1 for those that are not there
  int32_t unknown = -1;                    // the token of characters that have neither token nor bytes
  bool fuse_unknown = false;               // one for each run of them
  bool split_words = false;                // no merge goes beyond the start of a word, which is at each space
};

// Immutable and thread-safe.
class PieceBpe {
 public:
  explicit PieceBpe(PieceBpeParts parts);

  // Appends the tokens of `text`. Bytes that are not UTF-8 are characters outside the vocabulary. kInvalidArgument if
  // there is such a character and neither bytes nor an unknown token.
  Status Encode(std::string_view text, std::vector<int32_t>* tokens) const;

 private:
  int32_t CharacterToken(uint32_t code) const {
    if (code < ascii_.size()) return ascii_[code];
    const auto found = characters_.find(code);
    return found == characters_.end() ? -1 : found->second;
  }
  // scratch->symbols becomes the tokens of the characters of `text`, not merged yet.
  Status ReadSymbols(std::string_view text, BpeMerges::Scratch* scratch) const;
  Status AddUnknown(std::string_view character, std::vector<int32_t>* symbols) const;
  // The end of the part of `text` from `begin` on that is merged for itself: no piece of the vocabulary reaches over it,
  // wherever it stands in the text. *match becomes the longest piece at `begin`.
  size_t PartEnd(std::string_view text, size_t begin, PieceTrie::Match* match) const;
  // Whether some piece has these bytes side by side.
  bool AreNeighbours(char left, char right) const { return neighbours_[Pair(left, right)]; }
  static size_t Pair(char left, char right) { return static_cast<uint8_t>(left) << 8 | static_cast<uint8_t>(right); }

  BpeMerges merges_;
  std::array<int32_t, 128> ascii_{};
  std::unordered_map<uint32_t, int32_t> characters_;  // beyond ASCII
  std::array<int32_t, 256> byte_tokens_;
  int32_t unknown_;
  bool fuse_unknown_;
  bool split_words_;
  // What merges make. The value is the token whose own characters merge into it; -1 if that is another sequence.
  PieceTrie trie_;
  std::bitset<1 << 16> neighbours_;  // by Pair
};

}  // namespace tensorcache::tokenizer
