#include "experiments/result.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "testing/temp_folder.h"

namespace tensorcache::experiments {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

ExperimentResult Full() {
  return {.experiment = "recall",
          .title = "Recall \"quoted\" λ",
          .paper = "Table 1",
          .setup = "Two layers.",
          .findings = {"One.", "Two."},
          .made = {.command = "tensorcache reproduce recall",
                   .budget = "quick",
                   .seeds = {1, std::numeric_limits<uint64_t>::max()},
                   .seconds = 0.1},
          .figures = {{.id = "f",
                       .title = "Figure",
                       .x = {.title = "x", .log = true, .min = 0.5},
                       .series = {{.name = "a", .method = "full", .points = {{.x = 1, .y = -2, .error = 0.5}}}},
                       .guides = {{.x = 1, .label = "g"}, {.y = 0.1}}}},
          .tables = {{.id = "t",
                      .columns = {{.title = "c", .better = Better::kLower}},
                      .rows = {{.label = "r", .cells = {{.value = 1.0 / 3, .std = 0, .n = 3, .paper = 1}}},
                               {.label = "s", .cells = {{}}}}}},
          .runs = {{.name = "run", .steps = 10, .loss = 2.5}}};
}

TEST(ResultTest, JsonKeepsEverything) {
  const testing::TempFolder temp;
  const std::string text = ResultToJson(Full());
  const auto read = ReadResult(temp.Put("recall.json", text));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(ResultToJson(read.value()), text);
  EXPECT_EQ(read.value().made.seeds, Full().made.seeds);
  EXPECT_EQ(read.value().tables[0].rows[0].cells[0].value, 1.0 / 3);
  EXPECT_FALSE(read.value().tables[0].rows[1].cells[0].value.has_value());
  EXPECT_EQ(read.value().tables[0].columns[0].better, Better::kLower);
  EXPECT_EQ(read.value().figures[0].x.min, 0.5);
}

TEST(ResultTest, ReadingErrorsNameTheFile) {
  const testing::TempFolder temp;
  for (const char* text : {"", "{", "[]", R"({"experiment": "x", "tytle": "y"})", R"({"title": "no name"})",
                           R"({"experiment": "x", "tables": [{"id": "t", "rows": [{"cells": [{}]}]}]})",
                           R"({"experiment": "x", "figures": [{"id": ""}]})"}) {
    const std::string path = temp.Put("bad.json", text);
    const auto read = ReadResult(path);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_NE(read.status().message().find(path), std::string::npos) << read.status().message();
  }
  EXPECT_FALSE(ReadResult(temp.Path("missing.json")).ok());
}

TEST(ResultTest, ValidationRefusesWhatCannotBeShown) {
  EXPECT_TRUE(ValidateResult(Full()).ok());
  EXPECT_TRUE(ValidateResult({}).ok());
  const auto refused = [](auto change) {
    ExperimentResult result = Full();
    change(result);
    return !ValidateResult(result).ok();
  };
  EXPECT_TRUE(refused([](auto& r) { r.tables[0].id = "f"; }));  // as the figure's
  EXPECT_TRUE(refused([](auto& r) { r.tables[0].id = ""; }));
  EXPECT_TRUE(refused([](auto& r) { r.tables[0].rows[0].cells.clear(); }));
  EXPECT_TRUE(refused([](auto& r) { r.tables[0].rows[0].cells[0].paper_std = kNan; }));
  EXPECT_TRUE(refused([](auto& r) { r.figures[0].series[0].points[0].x = 0; }));  // of a log axis
  EXPECT_TRUE(refused([](auto& r) { r.figures[0].series[0].points[0].error = kInfinity; }));
}

TEST(ResultTest, MeasuredIsMeanAndSampleDeviation) {
  EXPECT_FALSE(Measured(std::vector<double>{}).value.has_value());
  const Cell one = Measured(std::vector<double>{3});
  EXPECT_EQ(one.value, 3);
  EXPECT_FALSE(one.std.has_value());
  const Cell three = Measured(std::vector<double>{1, 2, 3});
  EXPECT_EQ(three.value, 2);
  EXPECT_EQ(three.std, 1);
  EXPECT_EQ(three.n, 3);
  const Cell beside = Beside(three, 1.5, 0.1);
  EXPECT_EQ(beside.paper, 1.5);
  EXPECT_EQ(beside.paper_std, 0.1);
}

}  // namespace
}  // namespace tensorcache::experiments
