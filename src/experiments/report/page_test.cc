#include "experiments/report/page.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "experiments/report/report_testing.h"

namespace tensorcache::experiments::report {
namespace {

// The parts in the order in which they are on the page.
void ExpectInOrder(const std::string& page, const std::vector<std::string>& parts) {
  size_t at = 0;
  for (const std::string& part : parts) {
    const size_t found = page.find(part, at);
    ASSERT_NE(found, page.npos) << part;
    at = found + part.size();
  }
}

TEST(PageTest, OneSectionForEachExperimentInThePapersOrder) {
  std::vector<ExperimentResult> results;
  for (const char* name : {"zebra", "chunks", "recall", "aardvark", "shakespeare", "scaling", "gates"}) {
    results.push_back(SampleResult(name));
  }
  const std::string page = PageHtml(results);
  EXPECT_EQ(MarkupError(page), "");
  ExpectInOrder(
      page, {"<header>", "<nav", "href=\"#e-scaling\"", "href=\"#e-recall\"", "id=\"headlines\"",
             "<a href=\"#e-scaling\">State against context", "<a href=\"#e-shakespeare\">Accuracy",
             "<a href=\"#e-recall\">Accuracy", "<a href=\"#e-chunks\">Accuracy", "id=\"e-scaling\"", "id=\"e-recall\"",
             "id=\"e-shakespeare\"", "id=\"e-chunks\"", "id=\"e-gates\"", "id=\"e-aardvark\"", "id=\"e-zebra\""});
  // Each figure twice, for wide and for narrow screens; four of them also as headlines.
  EXPECT_EQ(Occurrences(page, "<svg "), 2 * (7 + 4u));
  EXPECT_EQ(Occurrences(page, "<details>"), 7u);
  // Headlines of one title say whose they are.
  EXPECT_EQ(Occurrences(page, ": shakespeare</a>"), 1u);
  EXPECT_EQ(Occurrences(page, ": scaling</a>"), 0u);
}

TEST(PageTest, TheSameResultsGiveTheSameBytes) {
  std::vector<ExperimentResult> results = {SampleResult("recall"), SampleResult("chunks"), SampleResult("other")};
  const std::string page = PageHtml(results);
  std::ranges::reverse(results);
  EXPECT_EQ(PageHtml(results), page);
}

TEST(PageTest, NeedsNothingElse) {
  const std::string page = PageHtml({SampleResult("recall")});
  for (const char* part : {"<script", "<link", "<img", "@import", "src=", "url(http", "onload"}) {
    EXPECT_EQ(page.find(part), page.npos) << part;
  }
  EXPECT_EQ(Occurrences(page, "http"), Occurrences(page, "http://www.w3.org/2000/svg") + 1);  // and http-equiv
  EXPECT_NE(page.find("prefers-color-scheme:dark"), page.npos);
  EXPECT_NE(page.find("width=device-width"), page.npos);
}

TEST(PageTest, TellsHowItWasMade) {
  const std::string page = PageHtml({SampleResult("recall")});
  ExpectInOrder(page, {"id=\"e-recall\"",
                       "About recall",
                       "In the paper: Table 1",
                       "Two layers of <code>width</code> 64.",
                       "Tensor Cache answers every query.",
                       "<svg ",
                       "Bars: deviation",
                       "Answer accuracy",
                       "How it was made",
                       "tensorcache reproduce recall",
                       "full",
                       "87 min",
                       "1337, 2027, 3037",
                       "A CPU, 2 threads",
                       "0123456789",
                       "0.1.0, Release",
                       "recall-full",
                       "1,234,567",
                       "0.5000",
                       "cache.method=full"});
}

TEST(PageTest, QuickRunsSaySo) {
  ExperimentResult result = SampleResult("recall");
  EXPECT_EQ(PageHtml({result}).find("quick run"), std::string::npos);
  result.made.budget = "quick";
  // At the headline, and at the section.
  EXPECT_EQ(Occurrences(PageHtml({result}), "quick run</span>"), 2u);
}

TEST(PageTest, OnlyMeansOfThePapersSetupAreCompared) {
  ExperimentResult result = SampleResult("recall");
  ASSERT_FALSE(result.tables[0].rows.empty());
  EXPECT_NE(PageHtml({result}).find("than the paper’s</span>"), std::string::npos);
  result.made.changes = {"train.steps=3"};
  const std::string changed = PageHtml({result});
  EXPECT_EQ(Occurrences(changed, "changed run</span>"), 2u);
  EXPECT_EQ(changed.find("than the paper’s</span>"), std::string::npos);
  result.made.changes.clear();
  for (Row& row : result.tables[0].rows) {
    for (Cell& cell : row.cells) cell.std.reset();
  }
  EXPECT_EQ(PageHtml({result}).find("than the paper’s</span>"), std::string::npos);
}

TEST(PageTest, EmptyResults) {
  EXPECT_EQ(MarkupError(PageHtml({})), "");
  EXPECT_EQ(MarkupError(PageHtml({{}})), "");
  EXPECT_EQ(MarkupError(PageHtml({{.experiment = "recall"}, {.experiment = "scaling", .figures = {{.id = "f"}}}})), "");
}

TEST(PageTest, EscapesEveryString) {
  const std::string evil = "</style><script>alert(\"1\")</script>&'`<b>`\x01";
  ExperimentResult result = SampleResult("recall");
  result.experiment = result.title = result.paper = result.setup = result.findings[0] = evil;
  result.made = {.version = evil, .commit = evil, .build = evil, .cpu = evil, .command = evil, .budget = evil};
  result.runs[0].name = result.runs[0].changes = evil;
  Figure& figure = result.figures[0];
  figure.id = figure.title = figure.note = figure.x.title = figure.x.unit = figure.y.title = figure.y.unit = evil;
  for (Series& series : figure.series) series.name = series.method = evil;
  for (Guide& guide : figure.guides) guide.label = evil;
  Table& table = result.tables[0];
  table.id = table.title = table.note = table.row_title = evil;
  for (Column& column : table.columns) column.title = column.group = column.unit = evil;
  for (Row& row : table.rows) row.label = row.cells[0].text = evil;
  const std::string page = PageHtml({result});
  EXPECT_EQ(MarkupError(page), "");
  EXPECT_EQ(page.find("<script"), page.npos);
  EXPECT_EQ(page.find('\x01'), page.npos);
  EXPECT_EQ(FigureFileName(result, figure).find('/'), std::string::npos);
}

TEST(PageTest, FigureFileNames) {
  const ExperimentResult result = SampleResult("recall");
  EXPECT_EQ(FigureFileName(result, result.figures[0]), "recall-curve.svg");
}

}  // namespace
}  // namespace tensorcache::experiments::report
