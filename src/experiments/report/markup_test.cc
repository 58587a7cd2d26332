#include "experiments/report/markup.h"

#include <gtest/gtest.h>

#include <limits>

#include "experiments/report/number_text.h"
#include "experiments/report/report_testing.h"

namespace tensorcache::experiments::report {
namespace {

TEST(MarkupTest, EscapesWhatMarkupMeans) {
  EXPECT_EQ(Escape("a < b & \"c\" > 'd'"), "a &lt; b &amp; &quot;c&quot; &gt; &#39;d&#39;");
  EXPECT_EQ(Escape("λ ≈ η\n"), "λ ≈ η\n");
  // What XML cannot hold at all.
  EXPECT_EQ(Escape(std::string_view("a\0b\x1b", 4)), "a\uFFFDb\uFFFD");
  EXPECT_EQ(Escape("\xFFz\xC3"), "\uFFFDz\uFFFD");
}

TEST(MarkupTest, ProseHasCode) {
  EXPECT_EQ(Prose("set `a<b` and `c`"), "set <code>a&lt;b</code> and <code>c</code>");
  EXPECT_EQ(Prose("one ` alone <"), "one ` alone &lt;");
  EXPECT_EQ(Prose("``"), "<code></code>");
}

TEST(MarkupTest, ProseKeepsNumbersAndUnitsTogether) {
  EXPECT_EQ(Prose("6.3 % at 4 nats, 2 GB"), "6.3\u00A0% at 4\u00A0nats, 2\u00A0GB");
  EXPECT_EQ(Prose("3 seeds, 4 nations, a % b"), "3 seeds, 4 nations, a % b");
  EXPECT_EQ(Prose("`1 s` 1 s"), "<code>1 s</code> 1\u00A0s");
}

TEST(MarkupTest, SlugsAreFileNames) {
  EXPECT_EQ(Slug("accuracy_by-gap2"), "accuracy_by-gap2");
  EXPECT_EQ(Slug("../NLL λ"), "---nll---");
  EXPECT_EQ(Slug(""), "-");
}

TEST(MarkupTest, CoordinatesAreShort) {
  EXPECT_EQ(Coordinate(1.0), "1");
  EXPECT_EQ(Coordinate(12.345), "12.35");
  EXPECT_EQ(Coordinate(-0.001), "0");
  EXPECT_EQ(Coordinate(100), "100");
  EXPECT_DEATH(Coordinate(std::numeric_limits<double>::quiet_NaN()), "isfinite");
}

TEST(MarkupTest, LongTextIsCutBetweenCharacters) {
  EXPECT_EQ(Shortened("short", 12, 100), "short");
  const std::string cut = Shortened("ααααααααα ββββββ", 10, 60);
  EXPECT_EQ(cut, "αααααα…");
  EXPECT_LE(TextWidth(cut, 10), 60);
  EXPECT_EQ(Shortened("anything", 12, 0), "…");
  // In one pass: what is measured anew for every character that goes would not end here.
  EXPECT_EQ(Shortened(std::string(1 << 24, 'x'), 10, 60), "xxxxxxxx…");
}

TEST(NumberTextTest, FixedAndSigned) {
  EXPECT_EQ(FixedText(0.0625, 3), "0.062");
  EXPECT_EQ(FixedText(-1.5, 1), "−1.5");
  EXPECT_EQ(FixedText(-0.0001, 3), "0.000");
  EXPECT_EQ(FixedText(9999, 0), "9999");
  EXPECT_EQ(FixedText(1234567.25, 1), "1,234,567.2");
  EXPECT_EQ(FixedText(2e300, 3), "2e+300");
  EXPECT_EQ(SignedText(0.012, 3), "+0.012");
  EXPECT_EQ(SignedText(-0.012, 3), "−0.012");
  EXPECT_EQ(SignedText(0.0001, 3), "0.000");
}

TEST(NumberTextTest, ShortNumbersAndDurations) {
  EXPECT_EQ(ShortText(0), "0");
  EXPECT_EQ(ShortText(0.0625), "0.0625");
  EXPECT_EQ(ShortText(16), "16");
  EXPECT_EQ(ShortText(-2.5), "−2.5");
  EXPECT_EQ(ShortText(117440512), "117,440,512");
  EXPECT_EQ(ShortText(1e-7), "1e-07");
  EXPECT_EQ(DurationText(0.5), "0.5 s");
  EXPECT_EQ(DurationText(90), "90 s");
  EXPECT_EQ(DurationText(600), "10 min");
  EXPECT_EQ(DurationText(7200), "2 h");
  EXPECT_EQ(DurationText(12000), "3 h 20 min");
}

// The reader that the other tests trust.
TEST(MarkupReaderTest, FindsMistakes) {
  EXPECT_EQ(MarkupError("<!DOCTYPE html>\n<p id=\"a\">x &lt; <b>y</b><br/></p>"), "");
  EXPECT_EQ(MarkupError("<style>a>b</style>"), "");
  for (const char* bad : {"<p><b></p></b>", "<p>", "</p>", "<p>a & b</p>", "<p>a < b</p>", "<p a=b></p>", "<p a></p>",
                          "<p a=\"1\" a=\"2\"></p>", "<p><i id=\"a\"/><i id=\"a\"/></p>", "<a href=\"#b\"></a>", "text",
                          "<p d=\"Mnan 1\"></p>", "<p title=\"<\"></p>"}) {
    EXPECT_NE(MarkupError(bad), "") << bad;
  }
}

}  // namespace
}  // namespace tensorcache::experiments::report
