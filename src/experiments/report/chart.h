// A figure as SVG.
#pragma once

#include <string>

#include "experiments/report/chart_layout.h"
#include "experiments/result.h"

namespace tensorcache::experiments::report {

// An <svg> element for a page with ChartCss. `key` begins the ids in it: plain letters, unique on the page.
std::string ChartSvg(const Figure& figure, const ChartSize& size, const std::string& key);

// A file of its own, with its style and its title inside.
std::string ChartFile(const Figure& figure);

}  // namespace tensorcache::experiments::report
