#include "experiments/report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "experiments/report/markup.h"
#include "experiments/report/number_text.h"
#include "experiments/report/style.h"

namespace tensorcache::experiments::report {
namespace {

constexpr double kBarStep = 2;       // between error bars at one x
constexpr double kShortestBar = 12;  // shorter ones are hidden by the marker

std::string At(double x, double y) { return Coordinate(x) + " " + Coordinate(y); }

// Closed outlines of about the same area around (x, y).
std::string MarkerPath(Marker marker, double x, double y, double r) {
  switch (marker) {
    case Marker::kSquare:
      r *= 1.05;
      return fmt::format("M{}H{}V{}H{}Z", At(x - r, y - r), Coordinate(x + r), Coordinate(y + r), Coordinate(x - r));
    case Marker::kTriangle:
      r *= 1.3;
      return fmt::format("M{}L{}L{}Z", At(x, y - r), At(x + r, y + 0.8 * r), At(x - r, y + 0.8 * r));
    case Marker::kTriangleDown:
      r *= 1.3;
      return fmt::format("M{}L{}L{}Z", At(x, y + r), At(x + r, y - 0.8 * r), At(x - r, y - 0.8 * r));
    case Marker::kDiamond:
      r *= 1.4;
      return fmt::format("M{}L{}L{}L{}Z", At(x, y - r), At(x + r, y), At(x, y + r), At(x - r, y));
    case Marker::kDot: r *= 0.45; [[fallthrough]];
    case Marker::kCircle: break;
  }
  return fmt::format("M{0}A{1} {1} 0 1 1 {2}A{1} {1} 0 1 1 {0}Z", At(x - r, y), Coordinate(r), At(x + r, y));
}

std::string TextAt(std::string_view css, double x, double y, std::string_view text, std::string_view more = "") {
  return fmt::format("<text class=\"{}\" x=\"{}\" y=\"{}\"{}>{}</text>", css, Coordinate(x), Coordinate(y), more,
                     Escape(text));
}

std::string Line(std::string_view css, double x1, double y1, double x2, double y2) {
  return fmt::format("<path class=\"{}\" d=\"M{}L{}\"/>", css, At(x1, y1), At(x2, y2));
}

class Painter {
 public:
  Painter(const Figure& figure, const ChartSize& size, std::string key)
      : figure_(figure), layout_(LayOut(figure, size)), key_(std::move(key)) {}

  // `inside` stands before the drawing: a style, a background.
  std::string Paint(std::string_view attributes, std::string_view inside) {
    const std::string title = figure_.title.empty() ? "Figure" : figure_.title;
    out_ = fmt::format(
        "<svg class=\"chart\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\"{2} role=\"img\" "
        "aria-labelledby=\"{3}-t {3}-d\">\n<title id=\"{3}-t\">{4}</title>\n<desc id=\"{3}-d\">{5}</desc>\n{6}",
        Coordinate(layout_.width), Coordinate(layout_.height), attributes, key_, Escape(title), Escape(Description()),
        inside);
    const Box& plot = layout_.plot;
    out_ += fmt::format("<clipPath id=\"{}-c\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/></clipPath>\n", key_,
                        Coordinate(plot.left), Coordinate(plot.top - 7), Coordinate(plot.Width()),
                        Coordinate(plot.Height() + 14));
    Heading();
    Axes();
    Guides();
    Curves();
    Names();
    return out_ + "</svg>\n";
  }

 private:
  // For those who cannot see it: axes, and where each curve begins and ends.
  std::string Description() const {
    const auto named = [](const Axis& axis, const char* fallback) {
      const std::string title = AxisTitle(axis);
      return title.empty() ? std::string(fallback) : title;
    };
    std::string text = fmt::format("{} against {}{}.", named(figure_.y, "y"), named(figure_.x, "x"),
                                   figure_.x.log || figure_.y.log ? ", on a logarithmic scale" : "");
    for (const Series& series : figure_.series) {
      if (series.points.empty()) continue;
      const Point &first = series.points.front(), &last = series.points.back();
      text += fmt::format(" {}{}: {} at {}", series.name, series.paper ? " (published)" : "", ShortText(first.y),
                          ShortText(first.x));
      text += series.points.size() > 1 ? fmt::format(", {} at {}.", ShortText(last.y), ShortText(last.x)) : ".";
    }
    return text;
  }

  void Heading() {
    double y = 6;
    for (const std::string& line : layout_.heading) out_ += TextAt("heading", 8, y += 21, line) + "\n";
  }

  void Axes() {
    const Box& plot = layout_.plot;
    out_ += "<g class=\"axes\">";
    for (const Tick& tick : layout_.y_ticks) {
      const double y = layout_.Y(tick.value);
      out_ += Line("grid", plot.left, y, plot.right, y) + TextAt("ytick", plot.left - 8, y, tick.label) + "\n";
    }
    for (const Tick& tick : layout_.x_ticks) {
      const double x = layout_.X(tick.value);
      out_ +=
          Line("tick", x, plot.bottom, x, plot.bottom + 5) + TextAt("xtick", x, plot.bottom + 13, tick.label) + "\n";
    }
    out_ += Line("base", plot.left, plot.bottom, plot.right, plot.bottom);
    if (const std::string title = AxisTitle(figure_.y); !title.empty()) {
      out_ += TextAt("ytitle", 6, layout_.y_title_at, Shortened(title, kChartFont, layout_.width - 12));
    }
    if (const std::string title = AxisTitle(figure_.x); !title.empty()) {
      const double x = (plot.left + plot.right) / 2;
      out_ += TextAt("xtitle", x, layout_.height - 14, Shortened(title, kChartFont, plot.Width()));
    }
    out_ += "</g>\n";
  }

  void Guides() {
    const Box& plot = layout_.plot;
    out_ += "<g class=\"guides\">";
    for (const Guide& guide : figure_.guides) {
      if (guide.x && layout_.x.Contains(*guide.x)) {
        out_ += Line("guide", layout_.X(*guide.x), plot.top - 3, layout_.X(*guide.x), plot.bottom);
      }
      if (guide.y && layout_.y.Contains(*guide.y)) {
        out_ += Line("guide", plot.left, layout_.Y(*guide.y), plot.right, layout_.Y(*guide.y));
      }
    }
    for (const GuideLabel& label : layout_.guides) {
      out_ += TextAt(label.before ? "gname end" : "gname", label.x, label.y, label.text);
    }
    out_ += "</g>\n";
  }

  // Behind everything the bars, then ours, then the paper's thin lines, which would drown below; Tensor Cache last.
  void Curves() {
    out_ += fmt::format("<g clip-path=\"url(#{}-c)\">\n", key_);
    const auto each = [&](bool paper, auto draw) {
      for (const bool strong : {false, true}) {
        for (size_t i = 0; i < figure_.series.size(); ++i) {
          if (figure_.series[i].paper == paper && layout_.looks[i].strong == strong) draw(i);
        }
      }
    };
    each(false, [&](size_t i) { ErrorBars(i); });
    each(false, [&](size_t i) { Curve(i); });
    each(true, [&](size_t i) { Curve(i); });
    each(true, [&](size_t i) { Markers(i); });
    each(false, [&](size_t i) { Markers(i); });
    out_ += "</g>\n";
  }

  std::string Open(size_t i) const {
    const SeriesLook& look = layout_.looks[i];
    return fmt::format("<g class=\"{}{}{}\">", look.css, look.strong ? " strong" : "",
                       figure_.series[i].paper ? " paper" : "");
  }

  void Curve(size_t i) {
    const Series& series = figure_.series[i];
    if (series.points.size() < 2) return;
    std::string path;
    for (const Point& point : series.points) {
      path += path.empty() ? 'M' : 'L';
      path += At(layout_.X(point.x), layout_.Y(point.y));
    }
    out_ += Open(i) + fmt::format("<path class=\"curve\" d=\"{}\"/></g>\n", path);
  }

  // Bars at one x stand side by side, a few pixels apart, or they would hide each other.
  void ErrorBars(size_t i) {
    const Series& series = figure_.series[i];
    const auto barred = [](const Series& s) {
      return !s.paper && std::ranges::any_of(s.points, [](const Point& point) { return point.error != 0; });
    };
    if (!barred(series)) return;
    double all = 0, before = 0;
    for (size_t j = 0; j < figure_.series.size(); ++j) {
      if (!barred(figure_.series[j])) continue;
      all += 1;
      before += j < i;
    }
    const double shift = (before - (all - 1) / 2) * kBarStep;
    out_ += Open(i);
    for (const Point& point : series.points) {
      const double half = std::abs(point.error);
      if (half == 0 || !layout_.x.Contains(point.x)) continue;
      const double x = layout_.X(point.x) + shift;
      const double high = layout_.Y(point.y + half), low = layout_.Y(point.y - half);
      if (low - high < kShortestBar) continue;
      out_ += fmt::format("<path class=\"bar\" d=\"M{}V{}M{}H{}M{}H{}\"/>", At(x, low), Coordinate(high),
                          At(x - 2.5, high), Coordinate(x + 2.5), At(x - 2.5, low), Coordinate(x + 2.5));
    }
    out_ += "</g>\n";
  }

  void Markers(size_t i) {
    const Series& series = figure_.series[i];
    const SeriesLook& look = layout_.looks[i];
    out_ += Open(i);
    for (const Point& point : series.points) {
      if (!layout_.x.Contains(point.x) || !layout_.y.Contains(point.y)) continue;
      const std::string error = point.error == 0 ? "" : " ± " + ShortText(std::abs(point.error));
      const std::string tip = fmt::format("{}{}, {}: {}{}", series.name, series.paper ? " (published)" : "",
                                          ShortText(point.x), ShortText(point.y), error);
      out_ += fmt::format("<path class=\"mark\" d=\"{}\"><title>{}</title></path>",
                          MarkerPath(look.marker, layout_.X(point.x), layout_.Y(point.y), Radius(look)), Escape(tip));
    }
    out_ += "</g>\n";
  }
  static double Radius(const SeriesLook& look) { return look.strong || look.marker == Marker::kSquare ? 4.6 : 4; }

  void Names() {
    out_ += "<g class=\"names\">";
    for (const NameLabel& name : layout_.legend) LegendItem(name);
    for (const NameLabel& name : layout_.beside) BesideItem(name);
    out_ += "</g>\n";
  }

  void LegendItem(const NameLabel& name) {
    const double x = name.x, y = name.y;
    if (name.kind == NameLabel::Kind::kGuide) {
      out_ += Line("guide", x, y, x + kSample, y) + TextAt("gname", x + kSample + 8, y, name.text) + "\n";
    } else if (name.kind == NameLabel::Kind::kPaper) {
      out_ += "<g class=\"plain paper\">" + Line("curve", x, y, x + kSample, y) + "</g>" +
              TextAt("gname", x + kSample + 8, y, name.text) + "\n";
    } else {
      const SeriesLook& look = layout_.looks[name.index];
      out_ +=
          Open(name.index) + Line("curve", x, y, x + kSample, y) +
          fmt::format("<path class=\"mark\" d=\"{}\"/>", MarkerPath(look.marker, x + kSample / 2, y, Radius(look))) +
          TextAt("name", x + kSample + 8, y, name.text) + "</g>\n";
    }
  }

  void BesideItem(const NameLabel& name) {
    const double right = layout_.plot.right, x = name.x;
    const bool guide = name.kind == NameLabel::Kind::kGuide;
    // A leader from the plot's edge to the name's marker.
    const std::string leader =
        fmt::format("<path class=\"leader\" d=\"M{}H{}L{}H{}\"/>", At(right + 2, name.from), Coordinate(right + 4),
                    At(x - 15, name.y), Coordinate(guide ? x - 4 : x - 11));
    if (guide) {
      out_ += "<g class=\"plain\">" + leader + TextAt("gname", x, name.y, name.text) + "</g>\n";
      return;
    }
    const SeriesLook& look = layout_.looks[name.index];
    out_ += Open(name.index) + leader +
            fmt::format("<path class=\"mark\" d=\"{}\"/>", MarkerPath(look.marker, x - 9, name.y, Radius(look))) +
            TextAt("name", x, name.y, name.text) + "</g>\n";
  }

  const Figure& figure_;
  const ChartLayout layout_;
  const std::string key_;
  std::string out_;
};

}  // namespace

std::string ChartSvg(const Figure& figure, const ChartSize& size, const std::string& key) {
  return Painter(figure, size, key).Paint("", "");
}

std::string ChartFile(const Figure& figure) {
  const ChartSize size{.width = 720, .plot_height = 300, .heading = true};
  const ChartLayout layout = LayOut(figure, size);
  const std::string sizes =
      fmt::format(" width=\"{}\" height=\"{}\"", Coordinate(layout.width), Coordinate(layout.height));
  const std::string inside = "<style>" + ColourCss("svg") + ChartCss() +
                             "</style>\n<rect class=\"surface\" width=\"100%\" height=\"100%\" rx=\"8\"/>\n";
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n" + Painter(figure, size, "f").Paint(sizes, inside);
}

}  // namespace tensorcache::experiments::report
