#include "experiments/report/chart_layout.h"

#include <algorithm>
#include <cmath>

#include "experiments/report/markup.h"
#include "experiments/report/number_text.h"

namespace tensorcache::experiments::report {
namespace {

constexpr double kLine = 19;   // height of a row of text
constexpr double kMargin = 6;  // at the picture's edges

constexpr double kItemGap = 18;       // between names in the legend
constexpr double kBesideGap = 30;     // from the plot to the names: leader and marker
constexpr double kBesideWidth = 165;  // names that are wider go to the legend
constexpr size_t kMostBeside = 8;

std::vector<double> Values(const Figure& figure, bool x) {
  std::vector<double> values;
  for (const Series& series : figure.series) {
    for (const Point& point : series.points) {
      if (x) {
        values.push_back(point.x);
      } else {
        // Half a bar that would reach below zero of a log axis is not a reason to show all of it.
        for (const double y : {point.y, point.y - std::abs(point.error), point.y + std::abs(point.error)}) {
          values.push_back(y);
        }
      }
    }
  }
  for (const Guide& guide : figure.guides) {
    if (const auto& value = x ? guide.x : guide.y) values.push_back(*value);
  }
  return values;
}

std::vector<double> PointsAtX(const Figure& figure) {
  std::vector<double> values;
  for (const Series& series : figure.series) {
    for (const Point& point : series.points) values.push_back(point.x);
  }
  return values;
}

std::vector<std::string> Wrapped(const std::string& text, double font, double width) {
  std::vector<std::string> lines;
  std::string line;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find(' ', start), text.size());
    const std::string word = text.substr(start, end - start);
    std::string longer = line;
    if (!line.empty()) longer += ' ';
    longer += word;
    if (line.empty() || TextWidth(longer, font) <= width) {
      line = std::move(longer);
    } else {
      lines.push_back(line);
      line = word;
    }
    start = end + 1;
  }
  if (!line.empty()) lines.push_back(line);
  for (std::string& each : lines) each = Shortened(each, font, width);
  return lines;
}

// Puts spans into the first row that has room for them.
class RowFiller {
 public:
  // The row's number.
  double Take(double left, double right) {
    const auto free = std::ranges::find_if(rows_, [&](const std::vector<Span>& row) {
      return std::ranges::none_of(
          row, [&](const Span& other) { return left - 14 < other.right && right + 14 > other.left; });
    });
    const auto number = free - rows_.begin();
    if (free == rows_.end()) rows_.emplace_back();
    rows_[static_cast<size_t>(number)].push_back({left, right});
    return static_cast<double>(number);
  }
  double Count() const { return static_cast<double>(rows_.size()); }

 private:
  struct Span {
    double left, right;
  };
  std::vector<std::vector<Span>> rows_;
};

class Layouter {
 public:
  Layouter(const Figure& figure, const ChartSize& size)
      : figure_(figure),
        size_(size),
        out_{.width = size.width,
             .x = Scale::Fit(figure.x, Values(figure, true), false),
             .y = Scale::Fit(figure.y, Values(figure, false), true),
             .looks = LooksOf(figure.series)} {}

  ChartLayout Run() {
    // The height of the plot is given, so its vertical ticks are known before anything else.
    out_.y_ticks = MakeTicks(
        out_.y, {.length = size_.plot_height, .font_size = kChartFont, .horizontal = false, .unit = figure_.y.unit});
    double widest = 0;
    for (const Tick& tick : out_.y_ticks) widest = std::max(widest, TextWidth(tick.label, kChartFont));
    out_.plot.left = kMargin + widest + 8;
    const bool beside = NamesFitBeside();
    out_.plot.right = beside ? size_.width - kMargin - kBesideGap - WidestName() : size_.width - kMargin - 14;

    double top = kMargin;
    if (size_.heading) top = Heading(top);
    if (!beside) top = Legend(top, Names());
    top = TitleRows(top, beside && HasPartnered());
    out_.plot.top = top + (out_.guides.empty() ? 8 : 6);
    out_.plot.bottom = out_.plot.top + size_.plot_height;
    out_.height = out_.plot.bottom + kLine + (AxisTitle(figure_.x).empty() ? 0 : kLine) + kMargin;
    out_.x_ticks = MakeTicks(out_.x, {.length = out_.plot.Width(),
                                      .font_size = kChartFont,
                                      .preferred = PointsAtX(figure_),
                                      .unit = figure_.x.unit});
    if (beside) NamesBeside();
    return std::move(out_);
  }

 private:
  bool HasPartnered() const {
    return std::ranges::any_of(out_.looks, [](const SeriesLook& look) { return look.partner.has_value(); });
  }
  static NameLabel PaperName() { return {.kind = NameLabel::Kind::kPaper, .text = "the paper"}; }

  // Everything that needs a name, Tensor Cache first.
  std::vector<NameLabel> Names() const {
    std::vector<NameLabel> names;
    for (size_t i = 0; i < figure_.series.size(); ++i) {
      const Series& series = figure_.series[i];
      if (!out_.looks[i].labelled || series.points.empty()) continue;
      NameLabel name{.index = i, .text = series.name};
      names.insert(out_.looks[i].strong ? names.begin() : names.end(), std::move(name));
    }
    if (HasPartnered()) names.push_back(PaperName());
    for (size_t i = 0; i < figure_.guides.size(); ++i) {
      const Guide& guide = figure_.guides[i];
      if (guide.y && !guide.label.empty()) {
        names.push_back({.kind = NameLabel::Kind::kGuide, .index = i, .text = guide.label});
      }
    }
    return names;
  }

  double WidestName() const {
    double widest = 0;
    for (const NameLabel& name : Names()) {
      if (name.kind != NameLabel::Kind::kPaper) widest = std::max(widest, 1.08 * TextWidth(name.text, kChartFont));
    }
    return widest;
  }

  // Every curve ends near the right edge, and there are not too many nor too long names.
  bool NamesFitBeside() const {
    const std::vector<NameLabel> names = Names();
    if (!size_.names_beside || names.empty() || names.size() > kMostBeside || WidestName() > kBesideWidth) return false;
    double last = 0;
    for (const Series& series : figure_.series) {
      for (const Point& point : series.points) last = std::max(last, out_.x.At(point.x));
    }
    return std::ranges::all_of(names, [&](const NameLabel& name) {
      return name.kind != NameLabel::Kind::kSeries || out_.x.At(LastPoint(name).x) > last - 0.1;
    });
  }
  const Point& LastPoint(const NameLabel& name) const {
    return *std::ranges::max_element(figure_.series[name.index].points, {}, &Point::x);
  }

  double Heading(double top) {
    out_.heading = Wrapped(figure_.title, kHeadingFont * 1.06, size_.width - 2 * kMargin - 8);
    return top + 21.0 * static_cast<double>(out_.heading.size()) + 6;
  }

  // In columns of one width.
  double Legend(double top, std::vector<NameLabel> names) {
    if (names.empty()) return top;
    const double left = kMargin + 2, all = size_.width - kMargin - left;
    double widest = 0;
    for (NameLabel& name : names) {
      name.text = Shortened(name.text, kChartFont, all - kSample - 8);
      widest = std::max(widest, kSample + 8 + TextWidth(name.text, kChartFont));
    }
    const double columns = std::max(1.0, std::floor((all + kItemGap) / (widest + kItemGap)));
    double column = 0, row = 0;
    for (NameLabel& name : names) {
      name.x = left + column * std::max(widest + kItemGap, all / columns);
      name.y = top + (row + 0.5) * kLine;
      if (++column == columns && &name != &names.back()) {
        column = 0;
        ++row;
      }
      out_.legend.push_back(name);
    }
    return top + (row + 1) * kLine + 8;
  }

  // The title of the y axis, what dashes mean and the labels of vertical guides share rows where they do not touch.
  double TitleRows(double top, bool explain_dashes) {
    const auto middle = [&](double row) { return top + (row + 0.5) * kLine; };
    RowFiller rows;
    const std::string title = AxisTitle(figure_.y);
    out_.y_title_at = middle(0);
    if (!title.empty()) rows.Take(kMargin, kMargin + TextWidth(title, kChartFont));
    if (explain_dashes) {
      NameLabel name = PaperName();
      name.x = size_.width - kMargin - kSample - 8 - TextWidth(name.text, kChartFont);
      name.y = middle(rows.Take(name.x, size_.width));
      out_.legend.push_back(std::move(name));
    }
    for (const Guide& guide : figure_.guides) {
      if (!guide.x || guide.y || guide.label.empty() || !out_.x.Contains(*guide.x)) continue;
      const std::string text = Shortened(guide.label, kChartFont, size_.width - 2 * kMargin);
      const double width = TextWidth(text, kChartFont), line = out_.X(*guide.x);
      const bool fits = line - 2 + width <= size_.width - kMargin;
      const double left = fits ? line - 2 : std::max(kMargin, line + 2 - width);
      const double row = rows.Take(left, left + width);
      out_.guides.push_back({.text = text, .x = fits ? left : left + width, .y = middle(row), .before = !fits});
    }
    return top + rows.Count() * kLine;
  }

  void NamesBeside() {
    std::vector<NameLabel> names = Names();
    std::erase_if(names, [](const NameLabel& name) { return name.kind == NameLabel::Kind::kPaper; });
    for (NameLabel& name : names) {
      const bool guide = name.kind == NameLabel::Kind::kGuide;
      name.from = out_.Y(guide ? *figure_.guides[name.index].y : LastPoint(name).y);
      name.from = std::clamp(name.from, out_.plot.top, out_.plot.bottom);
    }
    std::ranges::stable_sort(names, {}, &NameLabel::from);
    std::vector<double> at;
    for (const NameLabel& name : names) at.push_back(name.from);
    at = SpreadApart(at, 18, out_.plot.top, out_.plot.bottom);
    for (size_t i = 0; i < names.size(); ++i) {
      names[i].x = out_.plot.right + kBesideGap;
      names[i].y = at[i];
    }
    out_.beside = std::move(names);
  }

  const Figure& figure_;
  const ChartSize& size_;
  ChartLayout out_;
};

}  // namespace

std::vector<double> SpreadApart(const std::vector<double>& at, double height, double top, double bottom) {
  // Labels that touch form a block around the mean of where they want to be; blocks that touch become one.
  struct Block {
    double sum = 0;  // of where each label wants the block to begin
    double count = 0;

    double Begin() const { return sum / count; }
  };
  std::vector<Block> blocks;
  const auto placed = [&](const Block& block) {
    return std::max(top, std::min(block.Begin(), bottom - height * block.count));
  };
  for (const double y : at) {
    Block block{.sum = y - height / 2, .count = 1};
    while (!blocks.empty() && placed(blocks.back()) + height * blocks.back().count > placed(block)) {
      const Block& before = blocks.back();
      block = {.sum = before.sum + block.sum - height * before.count * block.count,
               .count = before.count + block.count};
      blocks.pop_back();
    }
    blocks.push_back(block);
  }
  std::vector<double> spread;
  for (const Block& block : blocks) {
    for (double i = 0; i < block.count; ++i) spread.push_back(placed(block) + (i + 0.5) * height);
  }
  return spread;
}

std::string AxisTitle(const Axis& axis) {
  const bool in_labels = axis.unit == "B" || axis.unit == "bytes";
  if (axis.unit.empty() || in_labels) return axis.title;
  return axis.title.empty() ? axis.unit : axis.title + " (" + axis.unit + ")";
}

ChartLayout LayOut(const Figure& figure, const ChartSize& size) { return Layouter(figure, size).Run(); }

}  // namespace tensorcache::experiments::report
