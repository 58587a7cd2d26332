#include "experiments/report/number_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tensorcache::experiments::report {
namespace {

constexpr double kHuge = 1e15;  // from here on digits after the first few say nothing

std::string Unsigned(double value, int64_t digits) {
  if (value >= kHuge) return fmt::format("{:.3g}", value);
  std::string text = fmt::format("{:.{}f}", value, std::clamp<int64_t>(digits, 0, 12));
  const size_t point = std::min(text.find('.'), text.size());
  if (point < 5) return text;
  std::string grouped;
  for (size_t i = 0; i < text.size(); ++i) {
    if (i > 0 && i < point && (point - i) % 3 == 0) grouped += ',';
    grouped += text[i];
  }
  return grouped;
}

// Nothing but zeros is left of it.
bool RoundsToZero(const std::string& text) { return text.find_first_not_of("0.") == text.npos; }

}  // namespace

std::string FixedText(double value, int64_t digits) {
  const std::string text = Unsigned(std::abs(value), digits);
  return value < 0 && !RoundsToZero(text) ? "\u2212" + text : text;
}

std::string SignedText(double value, int64_t digits) {
  const std::string text = FixedText(value, digits);
  return value > 0 && !RoundsToZero(text) ? "+" + text : text;
}

std::string ShortText(double value) {
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size < 1e-4) return fmt::format("{:.3g}", value);
  const auto before = static_cast<int64_t>(std::floor(std::log10(size))) + 1;  // digits before the point
  std::string text = FixedText(value, std::max<int64_t>(0, 4 - before));
  if (text.find('.') == text.npos || text.find('e') != text.npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string DurationText(double seconds) {
  if (!(seconds >= 0) || seconds >= kHuge) return "?";
  if (seconds < 10) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 120) return fmt::format("{} s", whole);
  const int64_t minutes = (whole + 30) / 60;
  if (minutes < 120) return fmt::format("{} min", minutes);
  return minutes % 60 == 0 ? fmt::format("{} h", minutes / 60) : fmt::format("{} h {} min", minutes / 60, minutes % 60);
}

}  // namespace tensorcache::experiments::report
