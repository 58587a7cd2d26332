// The result of an experiment: an error, or a page and figures that are sound markup.
#include "experiments/report/chart.h"
#include "experiments/report/page.h"
#include "experiments/report/report_testing.h"
#include "experiments/result.h"
#include "tests/fuzz/driver.h"

namespace tensorcache::fuzz {

using experiments::ExperimentResult;
using experiments::ReadResult;
using experiments::report::MarkupError;

void Run(std::string_view input) {
  const auto result = ReadResult(Put("result.json", input));
  if (!result.ok()) return CheckMessage(result.status());
  const std::string text = ResultToJson(*result);
  const auto again = ReadResult(Put("again.json", text));
  TC_CHECK(again.ok());
  TC_CHECK(ResultToJson(*again) == text);
  TC_CHECK(MarkupError(experiments::report::PageHtml({*result})).empty());
  for (const experiments::Figure& figure : result->figures) {
    TC_CHECK(MarkupError(experiments::report::ChartFile(figure)).empty());
    TC_CHECK(experiments::report::FigureFileName(*result, figure).find('/') == std::string::npos);
  }
}

std::vector<std::string> Seeds() {
  const auto cut = [](ExperimentResult result, size_t curves) {
    for (experiments::Figure& figure : result.figures) {
      figure.series.resize(std::min(figure.series.size(), curves));
      for (experiments::Series& series : figure.series) series.points.resize(2);
    }
    for (experiments::Table& table : result.tables) {
      table.rows.resize(1);
      table.columns.resize(2);
      table.rows[0].cells.resize(2);
    }
    return ToJson(result).dump();
  };
  return {cut(experiments::report::SampleResult("recall"), 1), cut(experiments::report::SampleResult("scaling"), 2),
          R"({"experiment":"x","figures":[{"id":"f","series":[{"points":[{"x":1,"y":2}]}],"guides":[{"x":1}]}]})",
          R"({"experiment":"x","tables":[{"id":"t","columns":[{"title":"c"}],"rows":[{"cells":[{"value":1}]}]}]})"};
}

std::vector<std::string> Words() {
  return {R"("experiment":)",
          R"("figures":[)",
          R"("tables":[)",
          R"("series":[)",
          R"("points":[)",
          R"("guides":[)",
          R"("columns":[)",
          R"("rows":[)",
          R"("cells":[)",
          R"("log":true)",
          R"("min":)",
          R"("max":)",
          R"("error":)",
          R"("digits":)",
          R"("paper":)",
          R"("std":)",
          R"("method":"full")",
          R"("unit":"bytes")",
          "1e308",
          "-1e308",
          "5e-324",
          "1e15",
          "<",
          "&",
          "\\\"",
          "`",
          "--"};
}

}  // namespace tensorcache::fuzz
