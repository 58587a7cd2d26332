#include "experiments/report/chart.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "experiments/report/markup.h"
#include "experiments/report/report_testing.h"
#include "experiments/report/style.h"
#include "methods/toy_method_testing.h"

namespace tensorcache::experiments::report {
namespace {

constexpr ChartSize kSizes[] = {{}, {.width = 340, .plot_height = 200, .names_beside = false}, {.heading = true}};

// Well-formed in every size, and in a file of its own.
void ExpectGood(const Figure& figure) {
  for (const ChartSize& size : kSizes) EXPECT_EQ(MarkupError(ChartSvg(figure, size, "k")), "");
  EXPECT_EQ(MarkupError(ChartFile(figure)), "");
}

Figure Simple(std::vector<Point> points) {
  return {.id = "f", .title = "Title", .series = {{.name = "a", .points = std::move(points)}}};
}

TEST(ChartTest, DrawsEveryCurve) {
  const Figure figure = SampleFigure("f", "Recall", false);
  ExpectGood(figure);
  const std::string svg = ChartSvg(figure, {}, "k");
  // Beside the curves one sample, which explains dashes.
  EXPECT_EQ(Occurrences(svg, "class=\"curve\""), 10 + 1u);
  EXPECT_EQ(Occurrences(svg, "class=\"mark\""), 10 * 7 + 5u);
  EXPECT_EQ(Occurrences(svg, "class=\"bar\""), 6u);
  EXPECT_EQ(Occurrences(svg, "class=\"guide\""), 2u);
  for (const char* part :
       {"role=\"img\"", "<title id=\"k-t\">Recall</title>", "<desc id=\"k-d\">answer accuracy against", ">16K</text>",
        ">chance</text>", ">trained length</text>", ">the paper</text>", "Infini-attention, 512: 0.36 ± 0.05"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  }
  for (const SampleMethod& method : kSampleMethods) {
    EXPECT_EQ(Occurrences(svg, fmt::format(">{}</text>", method.name)), 1u) << method.name;
    EXPECT_NE(svg.find(fmt::format("class=\"m-{}", method.method)), std::string::npos);
  }
  EXPECT_EQ(svg.find("(paper)</text>"), std::string::npos);  // they stand beside ours
}

TEST(ChartTest, EmptyFiguresAndSinglePoints) {
  ExpectGood({});
  ExpectGood({.id = "f", .title = "No curves", .guides = {{.x = 3, .label = "x"}, {.y = 4, .label = "y"}, {}}});
  ExpectGood(Simple({}));
  ExpectGood(Simple({{.x = 5, .y = 7, .error = 1}}));
  ExpectGood(Simple({{.x = 0, .y = 0}, {.x = 0, .y = 0}}));
  ExpectGood(Simple({{.x = 1, .y = 0.5}, {.x = 2, .y = 0.5}, {.x = 3, .y = 0.5}}));
  EXPECT_EQ(Occurrences(ChartSvg(Simple({{.x = 5, .y = 7}}), {}, "k"), "class=\"curve\""), 0u);
}

TEST(ChartTest, ExtremeNumbersStayFinite) {
  const double huge = std::numeric_limits<double>::max(), tiny = std::numeric_limits<double>::denorm_min();
  ExpectGood(Simple({{.x = -huge, .y = huge, .error = huge}, {.x = huge, .y = -huge}}));
  ExpectGood(Simple({{.x = tiny, .y = tiny}, {.x = 2 * tiny, .y = -tiny}}));
  Figure log = Simple({{.x = tiny, .y = huge, .error = 1}, {.x = huge, .y = tiny, .error = huge}});
  log.x.log = log.y.log = true;
  ExpectGood(log);
  // A bar that reaches below zero.
  log = Simple({{.x = 1, .y = 1, .error = 5}, {.x = 10, .y = 100, .error = -5}});
  log.y.log = true;
  ExpectGood(log);
  log.y.min = 3;
  log.y.max = 4;
  ExpectGood(log);
}

TEST(ChartTest, EscapesNames) {
  const std::string evil = "<b>&\"'</b>]]>";
  Figure figure = Simple({{.x = 1, .y = 1}, {.x = 2, .y = 2}});
  figure.title = figure.x.title = figure.y.title = figure.x.unit = figure.series[0].name = evil;
  figure.guides = {{.x = 1, .label = evil}, {.y = 1, .label = evil}};
  ExpectGood(figure);
  EXPECT_EQ(ChartFile(figure).find("<b>"), std::string::npos);
}

TEST(ChartTest, ManyCurvesGoToTheLegend) {
  Figure figure = SampleFigure("f", "Many", false);
  for (int i = 0; i < 20; ++i) {
    figure.series.push_back(
        {.name = "curve " + std::to_string(i), .points = {{.x = 300, .y = 0.01 * i}, {.x = 900, .y = 1}}});
  }
  ExpectGood(figure);
  const ChartLayout layout = LayOut(figure, {});
  EXPECT_TRUE(layout.beside.empty());
  EXPECT_EQ(layout.legend.size(), 25 + 2u);  // and what dashes and dots mean
  for (const NameLabel& name : layout.legend) EXPECT_LT(name.y, layout.plot.top);
}

// Names never lie on the plot nor on each other, and all of them are inside the picture.
TEST(ChartLayoutTest, NamesKeepApart) {
  for (const bool log : {false, true}) {
    const Figure figure = SampleFigure("f", "Recall", log);
    for (const ChartSize& size : kSizes) {
      const ChartLayout layout = LayOut(figure, size);
      EXPECT_EQ(layout.beside.empty(), !size.names_beside);
      for (size_t i = 0; i < layout.beside.size(); ++i) {
        const NameLabel& name = layout.beside[i];
        EXPECT_GT(name.x, layout.plot.right);
        EXPECT_LE(name.x + TextWidth(name.text, kChartFont), size.width);
        EXPECT_GE(name.y, layout.plot.top);
        EXPECT_LE(name.y, layout.plot.bottom);
        if (i > 0) {
          EXPECT_GE(name.y - layout.beside[i - 1].y, kChartFont + 2);
        }
      }
      for (size_t i = 0; i < layout.legend.size(); ++i) {
        const NameLabel& name = layout.legend[i];
        const double end = name.x + kSample + 8 + TextWidth(name.text, kChartFont);
        EXPECT_LT(name.y + kChartFont / 2, layout.plot.top);
        EXPECT_LE(end, size.width + 1e-9);
        for (size_t j = i + 1; j < layout.legend.size(); ++j) {
          EXPECT_TRUE(layout.legend[j].y >= name.y + kChartFont || layout.legend[j].x > end);
        }
      }
      for (const GuideLabel& guide : layout.guides) EXPECT_LT(guide.y, layout.plot.top);
    }
  }
}

TEST(ChartLayoutTest, GuidesAtOnePlaceHaveARowEach) {
  Figure figure{.id = "f", .title = "Guides", .series = {{.name = "a", .points = {{1, 1}, {2, 2}}}}};
  figure.guides.assign(4000, {.x = 1.5, .label = "here"});
  const ChartLayout layout = LayOut(figure, {});
  ASSERT_EQ(layout.guides.size(), 4000u);
  for (size_t i = 1; i < layout.guides.size(); ++i) EXPECT_GT(layout.guides[i].y, layout.guides[i - 1].y);
}

TEST(ChartLayoutTest, CurvesThatEndEarlyGoToTheLegend) {
  Figure figure = SampleFigure("f", "Recall", false);
  figure.series[0].points.resize(3);
  EXPECT_TRUE(LayOut(figure, {}).beside.empty());
}

TEST(ChartLayoutTest, SpreadApart) {
  using Places = std::vector<double>;
  EXPECT_EQ(SpreadApart({}, 10, 0, 100), Places{});
  EXPECT_EQ(SpreadApart({20, 60}, 10, 0, 100), (Places{20, 60}));
  EXPECT_EQ(SpreadApart({50, 50}, 10, 0, 100), (Places{45, 55}));
  EXPECT_EQ(SpreadApart({50, 52, 90}, 10, 0, 100), (Places{46, 56, 90}));
  EXPECT_EQ(SpreadApart({0, 0, 0}, 10, 0, 100), (Places{5, 15, 25}));
  EXPECT_EQ(SpreadApart({100, 100}, 10, 0, 100), (Places{85, 95}));
  // Too many for the room: below each other all the same.
  const Places crowded = SpreadApart(Places(20, 50), 10, 0, 100);
  for (size_t i = 1; i < crowded.size(); ++i) EXPECT_EQ(crowded[i] - crowded[i - 1], 10);
}

TEST(SeriesLookTest, MethodsKeepTheirColours) {
  const auto looks = LooksOf({{.name = "a", .method = "tensor_cache"},
                              {.name = "b", .method = "full"},
                              {.name = "c"},
                              {.name = "d", .method = "tensor_cache"},
                              {.name = "d, published", .method = "tensor_cache", .paper = true},
                              {.name = "x", .method = "full", .paper = true},
                              {.name = "y", .method = "infini", .paper = true}});
  EXPECT_EQ(looks[0].css, "m-tensor_cache");
  EXPECT_TRUE(looks[0].strong);
  EXPECT_EQ(looks[1].css, "m-full");
  EXPECT_EQ(looks[2].css, "x-0");
  EXPECT_EQ(looks[3].css, "x-1");     // the second of one method
  EXPECT_EQ(looks[4].css, "x-1");     // by its name
  EXPECT_EQ(looks[5].css, "m-full");  // by its method
  EXPECT_FALSE(looks[5].labelled);
  EXPECT_EQ(looks[6].css, "m-infini");  // stands for itself
  EXPECT_TRUE(looks[6].labelled);
}

TEST(SeriesLookTest, AMethodWithoutAColourLooksLikeACurveWithoutAMethod) {
  methods::AddToyMethod();
  const auto looks = LooksOf({{.name = "a", .method = "running_mean"}, {.name = "b", .method = "window"}});
  EXPECT_EQ(looks[0].css, "x-0");
  EXPECT_EQ(looks[1].css, "m-window");
  EXPECT_EQ(MethodClass("running_mean"), "");
}

// A rule without its variable would draw in no colour.
TEST(SeriesLookTest, RulesAndColoursOfMethodsGoTogether) {
  const std::string colours = ColourCss(":root"), rules = LookCss();
  for (const auto& [method, name] : EnumNames(CacheMethod{})) {
    const std::string variable = fmt::format("--m-{}", name);
    EXPECT_EQ(Occurrences(colours, variable + ":"), Occurrences(rules, "var(" + variable + ")") * 2) << name;
    EXPECT_EQ(MethodClass(name).empty(), Occurrences(colours, variable + ":") == 0) << name;
  }
}

TEST(SeriesLookTest, ColoursDifferAsLongAsThereAreAny) {
  std::vector<Series> series(9);
  std::set<std::string> colours;
  for (const SeriesLook& look : LooksOf(series)) colours.insert(look.css);
  EXPECT_EQ(colours.size(), 9u);
  series.resize(100);
  for (const SeriesLook& look : LooksOf(series)) EXPECT_FALSE(look.css.empty());
}

}  // namespace
}  // namespace tensorcache::experiments::report
