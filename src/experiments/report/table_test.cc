#include "experiments/report/table.h"

#include <gtest/gtest.h>

#include "experiments/report/report_testing.h"

namespace tensorcache::experiments::report {
namespace {

TEST(JudgeTest, Verdicts) {
  const Column higher{.better = Better::kHigher}, lower{.better = Better::kLower}, neither{};
  EXPECT_EQ(Judge({}, higher), Verdict::kNone);
  EXPECT_EQ(Judge({.value = 1.0}, higher), Verdict::kNone);
  EXPECT_EQ(Judge({.paper = 1.0}, higher), Verdict::kNone);
  EXPECT_EQ(Judge({.value = 1.0, .paper = 2.0, .text = "diverged"}, higher), Verdict::kNone);
  EXPECT_EQ(Judge({.value = 1.0001, .paper = 1.0}, higher), Verdict::kEqual);  // in three digits
  EXPECT_EQ(Judge({.value = 1.2, .paper = 1.0}, higher), Verdict::kBetter);
  EXPECT_EQ(Judge({.value = 1.2, .paper = 1.0}, lower), Verdict::kWorse);
  EXPECT_EQ(Judge({.value = 0.8, .paper = 1.0}, lower), Verdict::kBetter);
  EXPECT_EQ(Judge({.value = 0.8, .paper = 1.0}, neither), Verdict::kOther);
  EXPECT_EQ(Judge({.value = 1.2, .std = 0.15, .paper = 1.0, .paper_std = 0.15}, lower), Verdict::kWithin);
  EXPECT_EQ(Judge({.value = 1.2, .std = 0.1, .paper = 1.0, .paper_std = 0.1}, lower), Verdict::kWorse);
}

TEST(TableTest, ShowsOursThePapersAndTheDifference) {
  const Table table{
      .id = "t",
      .title = "Accuracy",
      .note = "A `note`.",
      .row_title = "Gap",
      .columns = {{.title = "Tensor Cache", .group = "Accuracy", .better = Better::kHigher},
                  {.title = "Time", .group = "Accuracy", .unit = "s", .digits = 0},
                  {.title = "Words"}},
      .rows = {{.label = "24",
                .cells = {{.value = 0.5, .std = 0.01, .n = 3, .paper = 0.4, .paper_std = 0.02},
                          {.value = 12345, .paper = 82},
                          {.text = "as <published>"}}},
               {.label = "Tensor Cache", .cells = {{.value = 1, .paper = 1}, {.paper = 35}, {.text = "b"}}}}};
  const std::string html = TableHtml(table, {{"Tensor Cache", "m-tensor_cache"}});
  EXPECT_EQ(MarkupError(html), "");
  for (const char* part :
       {"0.500 <span class=\"dev\">± 0.010</span>", "title=\"mean of 3\"",
        "<i>0.400 <span class=\"dev\">± 0.020</span></i>", "<span class=\"diff good\" title=\"better\">",
        "✓</span> +0.100", "12,345", "Δ</span> +12,263", "colspan=\"2\"", "<span class=\"unit\">(s)</span>",
        "as &lt;published&gt;", "not measured", "class=\"left\"", "<tr class=\"tc\">", "curve-name m-tensor_cache",
        "equal</span>", "A <code>note</code>.", "Δ difference</span></li>"}) {
    EXPECT_NE(html.find(part), std::string::npos) << part << "\n" << html;
  }
}

TEST(TableTest, WithoutPublishedNumbersThereIsNoKey) {
  const Table table{
      .id = "t", .title = "T", .columns = {{.title = "a"}}, .rows = {{.label = "b", .cells = {{.value = 1}}}}};
  const std::string html = TableHtml(table, {});
  EXPECT_EQ(MarkupError(html), "");
  EXPECT_EQ(html.find("class=\"key\""), std::string::npos);
  EXPECT_EQ(html.find("class=\"group\""), std::string::npos);
}

TEST(TableTest, EmptyTablesAndOddNames) {
  EXPECT_EQ(MarkupError(TableHtml({}, {})), "");
  EXPECT_EQ(MarkupError(TableHtml({.columns = {{}, {}}}, {})), "");
  const std::string evil = "<i>&\"'";
  EXPECT_EQ(
      MarkupError(TableHtml({.title = evil,
                             .note = evil,
                             .row_title = evil,
                             .columns = {{.title = evil, .group = evil, .unit = evil, .digits = -3}},
                             .rows = {{.label = evil, .cells = {{.text = evil}}}, {.cells = {{.value = -1e300}}}}},
                            {{evil, "m-full"}})),
      "");
}

}  // namespace
}  // namespace tensorcache::experiments::report
