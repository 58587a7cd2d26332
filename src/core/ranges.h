// Numbers from outside that must lie in a range. A NaN lies in none.
#pragma once

#include <cstdint>
#include <string_view>

#include "tensorcache/status.h"

namespace tensorcache {

// kInvalidArgument, "{name} is {value}; it must be {low} to {high}", unless low <= value <= high.
Status CheckRange(std::string_view name, double value, double low, double high);
Status CheckRange(std::string_view name, int64_t value, int64_t low, int64_t high);
// Unless 1 <= value <= high.
Status CheckPositive(std::string_view name, int64_t value, int64_t high);
// Unless low < value < high.
Status CheckInside(std::string_view name, double value, double low, double high);

}  // namespace tensorcache
