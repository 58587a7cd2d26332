// What every kernel test needs: poisoned buffers (guarded_buffer.h), every SIMD target, and tolerances from norms.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>

#include "testing/guarded_buffer.h"

namespace tensorcache::testing {

// Runs `body(target name)` once for each SIMD target that was compiled in and that this CPU has, with dynamic dispatch
// pinned to it; restores the default afterwards.
void ForEachTarget(const std::function<void(const std::string&)>& body);

// A difference is judged against |tolerance| = ulps * eps * magnitude, where the caller derives `magnitude` from the
// norms of what was summed. Reports the worst element.
::testing::AssertionResult WithinNorm(const float* actual, const float* expected, int64_t n, double magnitude,
                                      double ulps);
::testing::AssertionResult WithinNorm(const float* actual, const double* expected, int64_t n, double magnitude,
                                      double ulps);

double Norm2(const float* x, int64_t n);
double MaxAbs(const float* x, int64_t n);

}  // namespace tensorcache::testing
