// Small statistics of a handful of numbers.
#pragma once

#include <span>
#include <vector>

namespace tensorcache {

// The middle one, the upper of two; 0 of none.
double Median(std::vector<double> values);

struct Spread {
  double mean = 0;
  double std = 0;             // of the values (n - 1); 0 for a single one
  double standard_error = 0;  // of the mean
};
// Of one value or more.
Spread SpreadOf(std::span<const double> values);
// Of b - a, value by value.
Spread PairedDifference(std::span<const double> a, std::span<const double> b);

}  // namespace tensorcache
