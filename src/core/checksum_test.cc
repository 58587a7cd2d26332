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
