// How a curve is drawn: one fixed colour and marker for each cache method, and others for what has no method.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/result.h"

namespace tensorcache::experiments::report {

enum class Marker { kCircle, kSquare, kTriangle, kDiamond, kTriangleDown, kDot };

struct SeriesLook {
  std::string css;  // the class that sets the colour, --c: "m-full", "x-0"
  Marker marker = Marker::kCircle;
  bool strong = false;            // Tensor Cache
  bool labelled = true;           // false: published figures of a curve that has a label itself
  std::optional<size_t> partner;  // of published figures: our curve that they stand beside
};

// One for each series. Published figures look like our curve of the same name or method.
std::vector<SeriesLook> LooksOf(const std::vector<Series>& series);

// The class of a method's colour, or "" if it has none.
std::string MethodClass(std::string_view method);

// Rules that set the colours by those classes; --m-... and --x-... are variables of the page (style.h).
std::string LookCss();

}  // namespace tensorcache::experiments::report
