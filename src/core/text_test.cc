#include "core/text.h"

#include <gtest/gtest.h>

#include <array>

namespace tensorcache {
namespace {

using namespace std::string_view_literals;

TEST(EditDistance, CountsEditsAndSwaps) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("abc", ""), 3);
  EXPECT_EQ(EditDistance("window", "window"), 0);
  EXPECT_EQ(EditDistance("windw", "window"), 1);
  EXPECT_EQ(EditDistance("widnow", "window"), 1);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("ab", "ba"), 1);
}

TEST(NearestName, FindsTyposAndRefusesStrangers) {
  const std::array names = {"layers"sv, "window"sv, "heads"sv, "lr"sv};
  EXPECT_EQ(NearestName("windw", names), "window");
  EXPECT_EQ(NearestName("layer", names), "layers");
  EXPECT_EQ(NearestName("haeds", names), "heads");
  EXPECT_EQ(NearestName("temperature", names), std::nullopt);
  EXPECT_EQ(NearestName("x", names), std::nullopt);
  EXPECT_EQ(NearestName("", names), std::nullopt);
  EXPECT_EQ(NearestName(std::string(100000, 'w'), names), std::nullopt);
  EXPECT_EQ(DidYouMean("windw", names), "; did you mean 'window'?");
  EXPECT_EQ(DidYouMean("temperature", names), "");
}

TEST(Utf8, AcceptsWellFormedText) {
  for (const auto text : {""sv, "plain"sv, "\0"sv, "\u00e9\u20ac"sv, "\U0010ffff"sv, "\u0800\ud7ff\ue000"sv}) {
    EXPECT_TRUE(IsValidUtf8(text)) << text;
  }
}

TEST(Utf8, RejectsIllFormedText) {
  for (const auto text :
       {"\x80"sv, "\xc0\x80"sv, "\xc1\xbf"sv, "\xc3"sv, "\xe0\x9f\xbf"sv, "\xe2\x82"sv, "\xed\xa0\x80"sv,
        "\xf0\x8f\xbf\xbf"sv, "\xf4\x90\x80\x80"sv, "\xf5\x80\x80\x80"sv, "\xf0\x90\x80"sv, "\xff"sv}) {
    EXPECT_FALSE(IsValidUtf8(text)) << Quoted(text);
    EXPECT_EQ(Utf8ErrorOffset("ok" + std::string(text)), 2u);
  }
}

TEST(Quoted, IsOneShortPrintableLine) {
  EXPECT_EQ(Quoted("a b"), "'a b'");
  EXPECT_EQ(Quoted("a\nb\xff"), "'a\\x0ab\\xff'");
  EXPECT_EQ(Quoted("\u20ac"), "'\u20ac'");
  const std::string cut = Quoted(std::string(1000, 'x'));
  EXPECT_LT(cut.size(), 130u);
  EXPECT_TRUE(cut.ends_with("...'"));
}

TEST(FirstLine, EndsBeforeTheLineBreak) {
  EXPECT_EQ(FirstLine("what\nwhere\n"), "what");
  EXPECT_EQ(FirstLine("what"), "what");
  EXPECT_EQ(FirstLine("\n"), "");
  EXPECT_EQ(FirstLine(""), "");
}

}  // namespace
}  // namespace tensorcache
