// Where the parts of a chart are. From top to bottom: heading, legend, title of the y axis beside the labels of vertical
// guides, plot, ticks, title of the x axis. Names stand to the right of the curves where there is room, otherwise in the
// legend; neither is ever on the plot.
#pragma once

#include <string>
#include <vector>

#include "experiments/report/scale.h"
#include "experiments/report/series_look.h"
#include "experiments/result.h"

namespace tensorcache::experiments::report {

constexpr double kChartFont = 12.5;  // as in ChartCss
constexpr double kHeadingFont = 15;
constexpr double kSample = 26;  // length of a line in the legend

struct ChartSize {
  double width = 560;
  double plot_height = 250;
  bool names_beside = true;  // if they fit
  bool heading = false;      // the figure's title, inside the picture
};

struct Box {
  double left = 0;
  double top = 0;
  double right = 0;
  double bottom = 0;

  double Width() const { return right - left; }
  double Height() const { return bottom - top; }
};

// A name in the legend (at its middle line) or beside the plot (then `from` is where its curve ends).
struct NameLabel {
  enum class Kind { kSeries, kGuide, kPaper };  // kPaper explains dashes

  Kind kind = Kind::kSeries;
  size_t index = 0;  // of the series or guide
  std::string text;
  double x = 0;
  double y = 0;
  double from = 0;
};

struct GuideLabel {
  std::string text;
  double x = 0;
  double y = 0;
  bool before = false;  // it ends at x; otherwise it begins there
};

struct ChartLayout {
  double width = 0;
  double height = 0;
  Box plot;
  Scale x;
  Scale y;
  std::vector<Tick> x_ticks;
  std::vector<Tick> y_ticks;
  std::vector<SeriesLook> looks;     // one a series
  std::vector<std::string> heading;  // lines
  std::vector<NameLabel> legend;
  std::vector<NameLabel> beside;
  std::vector<GuideLabel> guides;
  double y_title_at = 0;  // middle line

  double X(double value) const { return plot.left + x.At(value) * plot.Width(); }
  double Y(double value) const { return plot.bottom - y.At(value) * plot.Height(); }
};

ChartLayout LayOut(const Figure& figure, const ChartSize& size);

// Moves labels of one height apart, each as little as may be, and keeps them between top and bottom if they fit there.
// `at` is sorted.
std::vector<double> SpreadApart(const std::vector<double>& at, double height, double top, double bottom);

// "NLL (nats)".
std::string AxisTitle(const Axis& axis);

}  // namespace tensorcache::experiments::report
