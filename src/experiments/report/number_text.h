// Numbers as people read them. Minus signs are U+2212, as wide as a digit.
#pragma once

#include <cstdint>
#include <string>

namespace tensorcache::experiments::report {

// `digits` after the point; from five digits on, thousands are set apart: 12,345.6. Far too large numbers become 1.2e30.
std::string FixedText(double value, int64_t digits);

// The same with its sign, also of positive numbers: +0.012.
std::string SignedText(double value, int64_t digits);

// About four significant digits: 0.0625, 16.8, 117,440,512.
std::string ShortText(double value);

// 40 s, 12 min, 3 h 20 min.
std::string DurationText(double seconds);

}  // namespace tensorcache::experiments::report
