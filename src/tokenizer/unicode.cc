#include "tokenizer/unicode.h"

#include "tokenizer/unicode_tables.h"

namespace tensorcache::tokenizer {

Utf8Char DecodeUtf8(std::string_view text, size_t at) {
  const auto lead = static_cast<uint8_t>(text[at]);
  if (lead < 0x80) return {.code = lead};
  if (lead < 0xC2 || lead > 0xF4) return {};
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint32_t code = lead & (0x7F >> length);
  // The second byte's range excludes overlong forms, surrogates and what is above U+10FFFF.
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (int i = 1; i < length; ++i) {
    if (at + i >= text.size()) return {.length = i, .truncated = true};
    const auto byte = static_cast<uint8_t>(text[at + i]);
    if (byte < low || byte > high) return {.length = i};
    code = code << 6 | (byte & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {.code = code, .length = length};
}

void AppendUtf8(uint32_t code, std::string* text) {
  const auto add = [&](uint32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xC0 | code >> 6);
    add(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  } else {
    add(0xF0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3F));
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  }
}

const CharClasses& CharClasses::Get() {
  static const CharClasses classes;
  return classes;
}

CharClasses::CharClasses() : packed_((kLastCode + 1) / 4, 0) {
  for (size_t i = 0; i < kCharClassRuns.size(); ++i) {
    const uint32_t first = kCharClassRuns[i] >> 2, value = kCharClassRuns[i] & 3;
    const uint32_t end = i + 1 < kCharClassRuns.size() ? kCharClassRuns[i + 1] >> 2 : kLastCode + 1;
    for (uint32_t code = first; code < end; ++code) packed_[code / 4] |= static_cast<uint8_t>(value << code % 4 * 2);
  }
}

}  // namespace tensorcache::tokenizer
