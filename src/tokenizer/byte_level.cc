#include "tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "tokenizer/unicode.h"

namespace tensorcache::tokenizer {
namespace {

constexpr uint32_t kHiddenBytes = 68;

constexpr bool IsVisible(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Map {
  std::array<uint32_t, 256> code_of{};
  std::array<uint8_t, 0x100 + kHiddenBytes> byte_of{};
};

constexpr Map kMap = [] {
  Map map;
  uint32_t hidden = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    map.code_of[byte] = IsVisible(byte) ? byte : hidden++;
    map.byte_of[map.code_of[byte]] = static_cast<uint8_t>(byte);
  }
  return map;
}();

}  // namespace

std::string ToByteLevel(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) AppendUtf8(kMap.code_of[static_cast<uint8_t>(byte)], &text);
  return text;
}

std::optional<std::string> FromByteLevel(std::string_view text) {
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = DecodeUtf8(text, at);
    if (c.code >= kMap.byte_of.size() || (c.code < 0x100 && !IsVisible(static_cast<int>(c.code)))) return std::nullopt;
    bytes.push_back(static_cast<char>(kMap.byte_of[c.code]));
    at += c.length;
  }
  return bytes;
}

}  // namespace tensorcache::tokenizer
