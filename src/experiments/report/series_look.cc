#include "experiments/report/series_look.h"

#include <algorithm>
#include <array>

#include "core/config.h"
#include "experiments/report/style.h"
#include "tensorcache/config.h"

namespace tensorcache::experiments::report {
namespace {

// Of the methods that style.cc has a colour for, which are the first; one that a program adds has no look of its own.
constexpr std::array kMarkers = {Marker::kSquare, Marker::kTriangle, Marker::kDiamond, Marker::kTriangleDown,
                                 Marker::kCircle};

std::string MethodName(size_t method) { return std::string(NameOf(static_cast<CacheMethod>(method))); }

std::optional<size_t> MethodIndex(std::string_view method) {
  for (size_t i = 0; i < kMarkers.size(); ++i) {
    if (MethodName(i) == method) return i;
  }
  return {};
}

// "Tensor Cache (paper)" is about "Tensor Cache".
std::string_view WithoutPaper(std::string_view name) {
  for (const std::string_view end : {" (paper)", ", paper", " paper", " (published)", ", published"}) {
    if (name.ends_with(end)) return name.substr(0, name.size() - end.size());
  }
  return name;
}

std::optional<size_t> PartnerOf(const std::vector<Series>& all, const Series& paper) {
  std::optional<size_t> by_method;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].paper) continue;
    if (all[i].name == WithoutPaper(paper.name)) return i;
    if (!by_method && !paper.method.empty() && all[i].method == paper.method) by_method = i;
  }
  return by_method;
}

// Hands out looks, each once as long as there are any.
class Wardrobe {
 public:
  explicit Wardrobe(const std::vector<Series>& series) {
    for (const Series& s : series) {
      if (const auto method = MethodIndex(s.method)) reserved_[*method] = true;
    }
  }

  SeriesLook Take(const Series& series) {
    const auto method = MethodIndex(series.method);
    if (method && !taken_[*method]) {
      taken_[*method] = true;
      return OfMethod(*method);
    }
    return Other();
  }

 private:
  static SeriesLook OfMethod(size_t method) {
    const bool strong = static_cast<CacheMethod>(method) == CacheMethod::kTensorCache;
    return {.css = "m-" + MethodName(method), .marker = kMarkers[method], .strong = strong};
  }
  // First the colours that are no method's, then those of methods that this figure does not show.
  SeriesLook Other() {
    const size_t turn = others_++ % (kOtherColours + kMarkers.size());
    if (turn < kOtherColours) return {.css = "x-" + std::to_string(turn), .marker = kMarkers[turn % kMarkers.size()]};
    SeriesLook look = OfMethod(turn - kOtherColours);
    look.strong = false;
    return reserved_[turn - kOtherColours] ? Other() : look;
  }

  std::array<bool, kMarkers.size()> reserved_{};
  std::array<bool, kMarkers.size()> taken_{};
  size_t others_ = 0;
};

}  // namespace

std::vector<SeriesLook> LooksOf(const std::vector<Series>& series) {
  Wardrobe wardrobe(series);
  std::vector<SeriesLook> looks(series.size());
  for (size_t i = 0; i < series.size(); ++i) {
    if (!series[i].paper) looks[i] = wardrobe.Take(series[i]);
  }
  for (size_t i = 0; i < series.size(); ++i) {
    if (!series[i].paper) continue;
    const auto partner = PartnerOf(series, series[i]);
    looks[i] = partner ? looks[*partner] : wardrobe.Take(series[i]);
    looks[i].marker = Marker::kDot;
    looks[i].strong = false;
    looks[i].labelled = !partner;
    looks[i].partner = partner;
  }
  return looks;
}

std::string MethodClass(std::string_view method) {
  return MethodIndex(method) ? "m-" + std::string(method) : std::string();
}

std::string LookCss() {
  std::string css;
  for (size_t i = 0; i < kMarkers.size(); ++i) css += ".m-" + MethodName(i) + "{--c:var(--m-" + MethodName(i) + ")}";
  for (size_t i = 0; i < kOtherColours; ++i) {
    css += ".x-" + std::to_string(i) + "{--c:var(--x-" + std::to_string(i) + ")}";
  }
  return css + "\n";
}

}  // namespace tensorcache::experiments::report
