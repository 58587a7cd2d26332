// Text for HTML and SVG: escaping, coordinates, and how wide a text will be.
#pragma once

#include <string>
#include <string_view>

namespace tensorcache::experiments::report {

// Fit for element content and for attributes in double quotes, in HTML and in XML. Control characters and bytes that
// are not UTF-8 become U+FFFD.
std::string Escape(std::string_view text);

// Escaped, with `code` between backticks as <code>.
std::string Prose(std::string_view text);

// Lower-case letters, digits, '-' and '_' only: for ids and file names. Never empty.
std::string Slug(std::string_view text);

// A coordinate or length with at most two digits after the point. `value` is finite.
std::string Coordinate(double value);

// An upper estimate: fonts differ, and this follows one of the widest (DejaVu Sans).
double TextWidth(std::string_view text, double font_size);

// `text`, cut with an ellipsis if it is wider than `width`.
std::string Shortened(std::string_view text, double font_size, double width);

}  // namespace tensorcache::experiments::report
