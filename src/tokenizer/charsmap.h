// The table of a SentencePiece normalizer: replacements of characters in a double-array trie.
#pragma once

#include <string_view>

namespace tensorcache::tokenizer {

// Whether no text can lead a reader of the table outside of it. The library follows the trie without looking.
bool IsSoundCharsmap(std::string_view charsmap);

}  // namespace tensorcache::tokenizer
