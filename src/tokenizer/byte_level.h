// The spelling of bytes as visible characters that byte-level vocabularies are stored in: printable Latin-1 stands for
// itself, the other 68 bytes for U+0100 and up, so that a space is written as U+0120.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tensorcache::tokenizer {

std::string ToByteLevel(std::string_view bytes);
// Nothing if `text` has a character that stands for no byte.
std::optional<std::string> FromByteLevel(std::string_view text);

}  // namespace tensorcache::tokenizer
