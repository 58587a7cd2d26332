#include "tokenizer/unicode.h"

#include <gtest/gtest.h>

#include "core/text.h"
#include "tokenizer/nfc.h"

namespace tensorcache::tokenizer {
namespace {

// Digests over all code points, from `scripts/make_unicode_tables.py --digests`, which uses another normaliser.
constexpr uint64_t kClassDigest = 0x48B1698009766D10, kNfcDigest = 0xD0ECEE5F39644480;

class Fnv1a {
 public:
  void Add(uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001B3; }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xCBF29CE484222325;
};

bool IsSurrogate(uint32_t code) { return code >= 0xD800 && code < 0xE000; }

std::string Utf8(std::initializer_list<char32_t> codes) {
  std::string text;
  for (const char32_t code : codes) AppendUtf8(code, &text);
  return text;
}

std::string NfcOf(std::string_view text) {
  std::string storage;
  return std::string(Nfc(text, &storage));
}

TEST(Unicode, EncodesAndDecodesEveryCodePoint) {
  for (uint32_t code = 0; code <= kLastCode; ++code) {
    std::string text = "x";
    AppendUtf8(code, &text);
    text += 'y';
    ASSERT_EQ(IsValidUtf8(text), !IsSurrogate(code));
    const Utf8Char c = DecodeUtf8(text, 1);
    if (IsSurrogate(code)) {
      ASSERT_EQ(c.code, kInvalidCode);
    } else {
      ASSERT_EQ(c.code, code);
      ASSERT_EQ(c.length, std::ssize(text) - 2);
    }
  }
}

TEST(Unicode, FindsTheLongestPieceOfABrokenCharacter) {
  struct Case {
    std::string_view text;
    int length;
    bool truncated;
  };
  for (const auto& [text, length, truncated] : std::vector<Case>{{"\x80", 1, false},
                                                                 {"\xC1\x80", 1, false},
                                                                 {"\xF5\x80\x80\x80", 1, false},
                                                                 {"\xE0\x9F\x80", 1, false},
                                                                 {"\xED\xA0\x80", 1, false},
                                                                 {"\xF4\x90\x80\x80", 1, false},
                                                                 {"\xE2\x82y", 2, false},
                                                                 {"\xF0\x9F\xA6y", 3, false},
                                                                 {"\xC3", 1, true},
                                                                 {"\xE2\x82", 2, true},
                                                                 {"\xF0\x9F\xA6", 3, true}}) {
    const Utf8Char c = DecodeUtf8(text, 0);
    EXPECT_EQ(c.code, kInvalidCode) << Quoted(text);
    EXPECT_EQ(c.length, length) << Quoted(text);
    EXPECT_EQ(c.truncated, truncated) << Quoted(text);
  }
}

TEST(Unicode, KnowsTheClassOfEveryCodePoint) {
  const CharClasses& classes = CharClasses::Get();
  EXPECT_EQ(classes.Of('a'), CharClass::kLetter);
  EXPECT_EQ(classes.Of(0x4E00), CharClass::kLetter);
  EXPECT_EQ(classes.Of(0xBD), CharClass::kNumber);  // one half
  EXPECT_EQ(classes.Of(0xA0), CharClass::kSpace);
  EXPECT_EQ(classes.Of(0x1C), CharClass::kOther);
  EXPECT_EQ(classes.Of(0x301), CharClass::kOther);
  EXPECT_EQ(classes.Of(kInvalidCode), CharClass::kOther);
  Fnv1a digest;
  for (uint32_t code = 0; code <= kLastCode; ++code) digest.Add(static_cast<uint8_t>(classes.Of(code)));
  EXPECT_EQ(digest.value(), kClassDigest);
}

TEST(Nfc, NormalizesKnownCases) {
  EXPECT_EQ(NfcOf("e\u0301"), "\u00E9");
  EXPECT_EQ(NfcOf("\u212B"), "\u00C5");              // the Angstrom sign is the letter
  EXPECT_EQ(NfcOf("e\u0302\u0323"), "\u1EC7");       // marks are put in order first
  EXPECT_EQ(NfcOf("\u1100\u1161\u11A8"), "\uAC01");  // Hangul
  EXPECT_EQ(NfcOf("\uAC00\u11A8"), "\uAC01");
  EXPECT_EQ(NfcOf("\u0958"), "\u0915\u093C");  // excluded from composition
  EXPECT_EQ(NfcOf("a\u0315\u0300\u05AEb"), "\u00E0\u05AE\u0315b");
  EXPECT_EQ(NfcOf("\u0301e\u0301"), "\u0301\u00E9");                 // begins with a mark
  EXPECT_EQ(NfcOf("\U00016D63\U00016D67\U00016D67"), "\U00016D6A");  // of three, none of which is a mark
}

TEST(Nfc, NormalizesEveryCodePointInThreePlaces) {
  Fnv1a digest;
  for (char32_t code = 0; code <= kLastCode; ++code) {
    if (IsSurrogate(code)) continue;
    for (const char byte : NfcOf(Utf8({code, U'a', code, U'\u0301', U'\u0323', code}))) {
      digest.Add(static_cast<uint8_t>(byte));
    }
  }
  EXPECT_EQ(digest.value(), kNfcDigest);
}

TEST(Nfc, LeavesTextAloneThatIsInTheForm) {
  for (const std::string_view text : {"", "plain", "\u00E9\u4E00\uAC01", "\u1EC7 x"}) {
    std::string storage;
    EXPECT_EQ(Nfc(text, &storage).data(), text.data()) << text;
  }
}

TEST(Nfc, KeepsBytesThatAreNotUtf8) {
  EXPECT_EQ(NfcOf("e\xCC\xFF\u0301z\xE2\x82"), "e\xCC\xFF\u0301z\xE2\x82");
  EXPECT_EQ(NfcOf("\xFF"
                  "e\u0301\xFF"),
            "\xFF\u00E9\xFF");
}

TEST(Nfc, SortsManyMarks) {
  std::string text = "a";
  for (int i = 0; i < 100'000; ++i) text += "\u0301\u0323";
  const std::string normalized = NfcOf(text);
  EXPECT_TRUE(normalized.starts_with("\u1EA1\u0323"));
  EXPECT_TRUE(normalized.ends_with("\u0301\u0301"));
}

}  // namespace
}  // namespace tensorcache::tokenizer
