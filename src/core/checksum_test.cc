#include "core/checksum.h"

#include <gtest/gtest.h>

#include <string_view>

namespace tensorcache {
namespace {

uint64_t Crc(std::string_view text) {
  Crc64 crc;
  crc.Add(std::as_bytes(std::span(text)));
  return crc.value();
}

TEST(Crc64, AgreesWithTheCataloguedCheckValue) {
  EXPECT_EQ(Crc("123456789"), 0x995DC9BBDF1939FAu);
  EXPECT_EQ(Crc(""), 0u);
}

// The definition, a bit at a time: state files of every age have these values in them.
TEST(Crc64, IsWhatThePolynomialSays) {
  std::string text;
  for (int i = 0; i < 600; ++i) text += static_cast<char>(i * i % 251);
  uint64_t state = ~uint64_t{0};
  for (size_t size = 0; size < text.size(); ++size) {
    ASSERT_EQ(Crc(text.substr(0, size)), ~state) << size;
    state ^= static_cast<uint8_t>(text[size]);
    for (int bit = 0; bit < 8; ++bit) state = state & 1 ? state >> 1 ^ 0xC96C5795D7870F42 : state >> 1;
  }
}

TEST(Crc64, DoesNotDependOnHowTheBytesCome) {
  const std::string_view text = "The quick brown fox jumps over the lazy dog, and then over another one.";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Crc64 crc;
    crc.Add(std::as_bytes(std::span(text.substr(0, cut))));
    crc.Add(std::as_bytes(std::span(text.substr(cut))));
    EXPECT_EQ(crc.value(), Crc(text)) << cut;
  }
}

TEST(Crc64, SeesEveryFlippedBit) {
  std::string text = "some bytes that matter";
  const uint64_t before = Crc(text);
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ 1 << bit % 8);
    EXPECT_NE(Crc(text), before) << bit;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ 1 << bit % 8);
  }
}

}  // namespace
}  // namespace tensorcache
