#include "testing/kernel_testing.h"

#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tensorcache::testing {
namespace {

template <class Expected>
::testing::AssertionResult Compare(const float* actual, const Expected* expected, int64_t n, double magnitude,
                                   double ulps) {
  const double tolerance = ulps * std::numeric_limits<float>::epsilon() * magnitude;
  double worst = -1;
  int64_t at = -1;
  for (int64_t i = 0; i < n; ++i) {
    const double error = std::abs(static_cast<double>(actual[i]) - static_cast<double>(expected[i]));
    if (!(error <= worst)) {  // also true for NaN
      worst = error;
      at = i;
      if (std::isnan(error)) break;
    }
  }
  if (n == 0 || worst <= tolerance) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "element " << at << " of " << n << ": got " << actual[at] << ", expected "
                                       << expected[at] << ", difference " << worst << " > tolerance " << tolerance
                                       << " = " << ulps << " eps * magnitude " << magnitude;
}

}  // namespace

void ForEachTarget(const std::function<void(const std::string&)>& body) {
  hwy::SetSupportedTargetsForTest(0);
  int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  for (; targets != 0; targets &= targets - 1) {
    const int64_t target = targets & -targets;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    const std::string name = hwy::TargetName(target);
    SCOPED_TRACE("SIMD target " + name);
    body(name);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

::testing::AssertionResult WithinNorm(const float* actual, const float* expected, int64_t n, double magnitude,
                                      double ulps) {
  return Compare(actual, expected, n, magnitude, ulps);
}

::testing::AssertionResult WithinNorm(const float* actual, const double* expected, int64_t n, double magnitude,
                                      double ulps) {
  return Compare(actual, expected, n, magnitude, ulps);
}

double Norm2(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return std::sqrt(sum);
}

double MaxAbs(const float* x, int64_t n) {
  double worst = 0;
  for (int64_t i = 0; i < n; ++i) worst = std::max(worst, std::abs(static_cast<double>(x[i])));
  return worst;
}

}  // namespace tensorcache::testing
