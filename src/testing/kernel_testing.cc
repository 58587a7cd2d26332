#include "testing/kernel_testing.h"

#include <hwy/targets.h>

#include <bit>
#include <cmath>
#include <limits>

namespace tensorcache::testing {
namespace {

// A NaN with a payload nobody computes: distinguishes "untouched" from "computed NaN".
constexpr uint32_t kCanaryBits = 0x7FC0BEEF;
float Canary() { return std::bit_cast<float>(kCanaryBits); }
bool IsCanary(float x) { return std::bit_cast<uint32_t>(x) == kCanaryBits; }

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

GuardedBuffer::GuardedBuffer(int64_t size)
    : size_(size), storage_(static_cast<size_t>(size + 2 * kGuard), Canary()) {}

void GuardedBuffer::FillNormal(Rng& rng, double scale) {
  for (int64_t i = 0; i < size_; ++i) data()[i] = static_cast<float>(rng.Normal() * scale);
}

void GuardedBuffer::Fill(float value) {
  for (int64_t i = 0; i < size_; ++i) data()[i] = value;
}

void GuardedBuffer::Poison() { Fill(Canary()); }

bool GuardedBuffer::Intact() const {
  for (int64_t i = 0; i < kGuard; ++i) {
    if (!IsCanary(storage_[static_cast<size_t>(i)])) return false;
    if (!IsCanary(storage_[static_cast<size_t>(kGuard + size_ + i)])) return false;
  }
  return true;
}

RowBuffer::RowBuffer(int64_t B, int64_t H, int64_t T, int64_t D, int64_t pad)
    : B(B), H(H), T(T), D(D), pad(pad), buffer(B * H * T * (D + pad)) {}

Rows<float> RowBuffer::rows() {
  return {.data = buffer.data(), .batch = T * H * (D + pad), .head = D + pad, .token = H * (D + pad)};
}

Rows<const float> RowBuffer::crows() const {
  return {.data = buffer.data(), .batch = T * H * (D + pad), .head = D + pad, .token = H * (D + pad)};
}

float* RowBuffer::Row(int64_t b, int64_t h, int64_t t) { return rows().At(b, h, t); }
const float* RowBuffer::Row(int64_t b, int64_t h, int64_t t) const { return crows().At(b, h, t); }

void RowBuffer::FillNormal(Rng& rng, double scale) {
  for (int64_t row = 0; row < B * H * T; ++row) {
    for (int64_t d = 0; d < D; ++d) buffer[row * (D + pad) + d] = static_cast<float>(rng.Normal() * scale);
  }
}

bool RowBuffer::PadsIntact() const {
  if (!buffer.Intact()) return false;
  for (int64_t row = 0; row < B * H * T; ++row) {
    for (int64_t d = D; d < D + pad; ++d) {
      if (!IsCanary(buffer[row * (D + pad) + d])) return false;
    }
  }
  return true;
}

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
