#include "core/statistics.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/check.h"

namespace tensorcache {

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Spread SpreadOf(std::span<const double> values) {
  TC_CHECK(!values.empty());
  const auto n = static_cast<double>(values.size());
  Spread spread;
  for (const double value : values) spread.mean += value;
  spread.mean /= n;
  if (values.size() == 1) return spread;
  double squares = 0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  spread.std = std::sqrt(squares / (n - 1));
  spread.standard_error = spread.std / std::sqrt(n);
  return spread;
}

Spread PairedDifference(std::span<const double> a, std::span<const double> b) {
  TC_CHECK(a.size() == b.size());
  std::vector<double> differences(a.size());
  std::ranges::transform(b, a, differences.begin(), std::minus());
  return SpreadOf(differences);
}

}  // namespace tensorcache
