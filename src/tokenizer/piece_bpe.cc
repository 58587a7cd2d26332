#include "tokenizer/piece_bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/text.h"
#include "tokenizer/unicode.h"

namespace tensorcache::tokenizer {

PieceBpe::PieceBpe(PieceBpeParts parts)
    : merges_(std::move(parts.merges), std::move(parts.ranks)),
      byte_tokens_(parts.byte_tokens),
      unknown_(parts.unknown),
      fuse_unknown_(parts.fuse_unknown),
      split_words_(parts.split_words) {
  ascii_.fill(-1);
  for (size_t i = 0; i < parts.pieces.size(); ++i) {
    const std::string& piece = parts.pieces[i];
    if (piece.empty()) continue;
    const Utf8Char c = DecodeUtf8(piece, 0);
    if (c.code == kInvalidCode || static_cast<size_t>(c.length) != piece.size()) continue;
    if (c.code < ascii_.size()) {
      ascii_[c.code] = static_cast<int32_t>(i);
    } else {
      characters_[c.code] = static_cast<int32_t>(i);
    }
  }
  BpeMerges::Scratch scratch;
  std::vector<bool> is_done(parts.pieces.size());
  for (const Merge& merge : merges_.merges()) {
    if (is_done[merge.merged]) continue;  // as many merges may make it as it has bytes
    is_done[merge.merged] = true;
    const std::string& piece = parts.pieces[merge.merged];
    const bool is_known = ReadSymbols(piece, &scratch).ok();
    if (is_known) merges_.Apply(&scratch);
    const bool is_whole = is_known && scratch.symbols.size() == 1 && scratch.symbols[0] == merge.merged;
    trie_.Insert(piece, is_whole ? merge.merged : -1);
    for (size_t i = 0; i + 1 < piece.size(); ++i) neighbours_[Pair(piece[i], piece[i + 1])] = true;
  }
}

Status PieceBpe::AddUnknown(std::string_view character, std::vector<int32_t>* symbols) const {
  const auto byte_token = [&](char byte) { return byte_tokens_[static_cast<uint8_t>(byte)]; };
  if (std::ranges::none_of(character, [&](char byte) { return byte_token(byte) < 0; })) {
    for (const char byte : character) symbols->push_back(byte_token(byte));
    return OkStatus();
  }
  if (unknown_ < 0) return InvalidArgument(fmt::format("the character {} is not in the vocabulary", Quoted(character)));
  symbols->push_back(unknown_);
  return OkStatus();
}

Status PieceBpe::ReadSymbols(std::string_view text, BpeMerges::Scratch* scratch) const {
  scratch->symbols.clear();
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = DecodeUtf8(text, at);
    if (const int32_t token = CharacterToken(c.code); token >= 0) {
      scratch->symbols.push_back(token);
    } else {
      TC_RETURN_IF_ERROR(AddUnknown(text.substr(at, c.length), &scratch->symbols));
    }
    at += c.length;
  }
  return OkStatus();
}

size_t PieceBpe::PartEnd(std::string_view text, size_t begin, PieceTrie::Match* match) const {
  const auto next = [&](size_t at) { return at + DecodeUtf8(text, at).length; };
  *match = trie_.Longest(text, begin);
  size_t at = next(begin), end = std::max(at, match->end);
  // A piece that reaches over `end` begins at one of the places before it, and has the bytes on both sides of it in it.
  while (at < end && end < text.size() && AreNeighbours(text[end - 1], text[end])) {
    end = std::max(end, trie_.Longest(text, at).end);
    at = next(at);
  }
  return end;
}

// The parts are short in real text, and most of them are one token.
Status PieceBpe::Encode(std::string_view text, std::vector<int32_t>* tokens) const {
  const size_t first = tokens->size();
  const auto add = [&](int32_t token) {
    const bool is_fused = fuse_unknown_ && token == unknown_ && tokens->size() > first && tokens->back() == unknown_;
    if (!is_fused) tokens->push_back(token);
  };
  BpeMerges::Scratch scratch;
  PieceTrie::Match match;
  size_t word_end = split_words_ ? 0 : text.size();
  for (size_t begin = 0; begin < text.size();) {
    if (begin == word_end) word_end = std::min(text.find(' ', begin + 1), text.size());
    const size_t end = PartEnd(text.substr(0, word_end), begin, &match);
    if (match.end == end && match.value >= 0) {
      add(match.value);
    } else {
      TC_RETURN_IF_ERROR(ReadSymbols(text.substr(begin, end - begin), &scratch));
      merges_.Apply(&scratch);
      for (const int32_t token : scratch.symbols) add(token);
    }
    begin = end;
  }
  return OkStatus();
}

}  // namespace tensorcache::tokenizer
