// Colours and style sheets.
#pragma once

#include <cstddef>
#include <string>

namespace tensorcache::experiments::report {

constexpr size_t kOtherColours = 4;  // --x-0 to --x-3: curves that are no cache method's

// Colours as CSS variables of `selector`, for light and dark mode. The methods' colours keep apart in every kind of
// colour blindness (CIELAB distance 20 and more), and from the background (contrast 3 and more).
std::string ColourCss(const std::string& selector);

// Charts; the same on a page and in a file of their own.
std::string ChartCss();

// The page around them.
std::string PageCss();

}  // namespace tensorcache::experiments::report
