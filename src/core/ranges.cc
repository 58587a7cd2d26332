#include "core/ranges.h"

#include <fmt/format.h>

namespace tensorcache {
namespace {

template <class Number>
Status Check(std::string_view name, Number value, Number low, Number high) {
  if (value >= low && value <= high) return OkStatus();
  return InvalidArgument(fmt::format("{} is {}; it must be {} to {}", name, value, low, high));
}

}  // namespace

Status CheckRange(std::string_view name, double value, double low, double high) {
  return Check(name, value, low, high);
}

Status CheckRange(std::string_view name, int64_t value, int64_t low, int64_t high) {
  return Check(name, value, low, high);
}

Status CheckPositive(std::string_view name, int64_t value, int64_t high) {
  return Check<int64_t>(name, value, 1, high);
}

Status CheckInside(std::string_view name, double value, double low, double high) {
  if (value > low && value < high) return OkStatus();
  return InvalidArgument(fmt::format("{} is {}; it must lie between {} and {}", name, value, low, high));
}

}  // namespace tensorcache
