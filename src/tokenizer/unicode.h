// UTF-8 and the character classes of the pre-tokenisers' patterns. Unicode version: see unicode_tables.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tensorcache::tokenizer {

inline constexpr uint32_t kLastCode = 0x10FFFF;
inline constexpr uint32_t kInvalidCode = UINT32_MAX;

// What stands at one place of a text: a character, or bytes that are none (the maximal subpart: the longest piece that
// starts like a character, at least one byte).
struct Utf8Char {
  uint32_t code = kInvalidCode;
  int length = 1;
  bool truncated = false;  // invalid only because the text ends here
};

// The character at byte `at` < text.size(). RFC 3629: no overlong forms, no surrogates.
Utf8Char DecodeUtf8(std::string_view text, size_t at);
void AppendUtf8(uint32_t code, std::string* text);

enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };  // the rest, \p{L}, \p{N}, \s

// The class of every code point: 278 KB, made once, shared.
class CharClasses {
 public:
  static const CharClasses& Get();
  // kOther for kInvalidCode.
  CharClass Of(uint32_t code) const {
    if (code > kLastCode) return CharClass::kOther;
    return static_cast<CharClass>(packed_[code / 4] >> code % 4 * 2 & 3);
  }

 private:
  CharClasses();

  std::vector<uint8_t> packed_;
};

}  // namespace tensorcache::tokenizer
