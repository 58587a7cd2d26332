#include "runtime/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/rng.h"
#include "core/text.h"

namespace tensorcache {
namespace {

using Strings = std::vector<std::string>;

// What is shown after each piece, and at the end.
Strings Shown(const Strings& stops, const Strings& pieces) {
  StopStrings stop_strings = StopStrings::Create(stops).value();
  Strings shown;
  for (const std::string& piece : pieces) shown.push_back(stop_strings.Push(piece));
  shown.push_back(stop_strings.Finish());
  return shown;
}

TEST(StopStrings, HoldsBackWhatMayBeABeginning) {
  EXPECT_EQ(Shown({"END"}, {"the E", "N", "E", "ND", "more"}), (Strings{"the ", "", "EN", "", "", ""}));
  EXPECT_EQ(Shown({"END"}, {"the E", "N"}), (Strings{"the ", "", "EN"}));
  EXPECT_EQ(Shown({"\n\n"}, {"a\n", "b\n", "\nc"}), (Strings{"a", "\nb", "", ""}));
  EXPECT_EQ(Shown({"aab"}, {"a", "a", "a", "a", "b"}), (Strings{"", "", "a", "a", "", ""}));
  EXPECT_EQ(Shown({"."}, {"one. Two."}), (Strings{"one", ""}));
}

TEST(StopStrings, TheFirstToBeCompleteWins) {
  const Strings stops = {"ab", "abc", "aab"};
  EXPECT_EQ(Shown(stops, {"xabc"}), (Strings{"x", ""}));
  EXPECT_EQ(Shown(stops, {"xaab"}), (Strings{"x", ""})) << "the longest that ends there";
  EXPECT_EQ(Shown(stops, {"xaa", "c"}), (Strings{"x", "aac", ""}));
  EXPECT_EQ(Shown({"abcd", "bc"}, {"a", "b", "c", "d"}), (Strings{"", "", "a", "", ""}));
  EXPECT_EQ(Shown({"abcd", "x"}, {"abc", "x"}), (Strings{"", "abc", ""})) << "what another stop string held back";
}

TEST(StopStrings, KnowsThatItStopped) {
  StopStrings stop_strings = StopStrings::Create({"stop"}).value();
  EXPECT_EQ(stop_strings.Push("go st"), "go ");
  EXPECT_FALSE(stop_strings.stopped());
  EXPECT_EQ(stop_strings.Push("op and on"), "");
  EXPECT_TRUE(stop_strings.stopped());
  EXPECT_EQ(stop_strings.Push("and on"), "");
  EXPECT_EQ(stop_strings.Finish(), "");
}

TEST(StopStrings, FinishForgetsTheBeginning) {
  StopStrings stop_strings = StopStrings::Create({"stop"}).value();
  EXPECT_EQ(stop_strings.Push("st"), "");
  EXPECT_EQ(stop_strings.Finish(), "st");
  EXPECT_EQ(stop_strings.Push("op"), "op");
  EXPECT_FALSE(stop_strings.stopped());
}

TEST(StopStrings, WithoutAnyShowsEverything) { EXPECT_EQ(Shown({}, {"a", "", "bc"}), (Strings{"a", "", "bc", ""})); }

TEST(StopStrings, RefusesEmptyAndBrokenStrings) {
  EXPECT_EQ(StopStrings::Create({"a", ""}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(StopStrings::Create({"\xA9"}).status().code(), StatusCode::kInvalidArgument);
}

TEST(StopStrings, DoesNotTearCharacters) {
  // The two characters share their first two bytes.
  EXPECT_EQ(Shown({"\u20AC"}, {"a\u20AD"}), (Strings{"a\u20AD", ""}));
  EXPECT_EQ(Shown({"\u20AC"}, {"a\xE2", "\x82", "\xAD"}), (Strings{"a", "", "\u20AD", ""}));
  EXPECT_EQ(Shown({"\u20AC"}, {"a\xE2", "\x82", "\xAC"}), (Strings{"a", "", "", ""}));
  EXPECT_EQ(Shown({"\u20AC"}, {"\u20AC"}), (Strings{"", ""}));
}

// Where the text should end: before the stop string whose end is first, the longest of those.
size_t EndOfText(const std::string& text, const Strings& stops) {
  size_t end = std::string::npos, length = 0;
  for (const std::string& stop : stops) {
    const size_t at = text.find(stop);
    if (at == std::string::npos) continue;
    if (at + stop.size() < end || (at + stop.size() == end && stop.size() > length)) {
      end = at + stop.size();
      length = stop.size();
    }
  }
  return end == std::string::npos ? end : end - length;
}

std::string RandomText(Rng& rng, const Strings& alphabet, uint64_t max_characters) {
  std::string text;
  for (uint64_t n = 1 + rng.Below(max_characters); n > 0; --n) text += alphabet[rng.Below(alphabet.size())];
  return text;
}

// Whether some stop string begins with `text` and goes on.
bool IsBeginning(const std::string& text, const Strings& stops) {
  return std::any_of(stops.begin(), stops.end(),
                     [&](const std::string& stop) { return stop.size() > text.size() && stop.starts_with(text); });
}

TEST(StopStrings, AnyCutGivesWhatFindGives) {
  const Strings alphabet = {"a", "b", "\u00E9", "\u00E8", "\u20AC", "\u20AD"};
  Rng rng(1);
  int stopped = 0;
  constexpr int kTrials = 5000;
  for (int trial = 0; trial < kTrials; ++trial) {
    const Strings letters(alphabet.begin(), alphabet.begin() + 2 + static_cast<ptrdiff_t>(rng.Below(5)));
    Strings stops(rng.Below(4));
    for (std::string& stop : stops) stop = RandomText(rng, letters, 6);
    const std::string text = RandomText(rng, letters, 40);
    const size_t end = EndOfText(text, stops);
    const std::string expected = text.substr(0, end);

    StopStrings stop_strings = StopStrings::Create(stops).value();
    std::string shown;
    const bool whole_characters = trial % 2 == 0;
    const uint64_t max_piece = 1 + rng.Below(8);
    for (size_t at = 0; at < text.size();) {
      size_t length = std::min<size_t>(1 + rng.Below(max_piece), text.size() - at);
      while (whole_characters && !IsValidUtf8(text.substr(at, length))) ++length;
      shown += stop_strings.Push(text.substr(at, length));
      at += length;
      ASSERT_TRUE(!whole_characters || IsValidUtf8(shown));
      if (stop_strings.stopped()) break;
      // What is held back is the longest end of the text that may still become a stop string, and no more.
      size_t held_from = 0;
      while (held_from < at && !IsBeginning(text.substr(held_from, at - held_from), stops)) ++held_from;
      ASSERT_EQ(shown, text.substr(0, held_from)) << "of " << Quoted(text.substr(0, at));
    }
    EXPECT_EQ(stop_strings.stopped(), end != std::string::npos);
    stopped += stop_strings.stopped();
    shown += stop_strings.Finish();
    ASSERT_EQ(shown, expected) << "of " << Quoted(text);
  }
  EXPECT_GT(stopped, kTrials / 10);
  EXPECT_LT(stopped, kTrials * 9 / 10);
}

}  // namespace
}  // namespace tensorcache
