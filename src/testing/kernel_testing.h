// What every kernel test needs: poisoned buffers with canaries, every SIMD target, and tolerances from norms.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/rng.h"
#include "kernels/rows.h"

namespace tensorcache::testing {

// `size` floats filled with NaN, followed (and preceded) by canary words. A kernel that reads its output before writing it
// shows NaN; one that writes outside shows in Intact(). The data pointer is deliberately only 4-byte aligned.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(int64_t size);
  float* data() { return storage_.data() + kGuard; }
  const float* data() const { return storage_.data() + kGuard; }
  int64_t size() const { return size_; }
  float& operator[](int64_t i) { return data()[i]; }
  float operator[](int64_t i) const { return data()[i]; }
  // Fills with standard normals times `scale`.
  void FillNormal(Rng& rng, double scale = 1.0);
  void Fill(float value);
  void Poison();
  bool Intact() const;

 private:
  static constexpr int64_t kGuard = 33;
  int64_t size_;
  std::vector<float> storage_;
};

// A (B, H, T) array of rows of width D inside a GuardedBuffer, in (B, T, H, D) order with `pad` unused floats after each
// row, so that strides are odd. The pads keep their poison: CheckPads() fails if a kernel wrote there.
struct RowBuffer {
  RowBuffer(int64_t B, int64_t H, int64_t T, int64_t D, int64_t pad = 0);
  Rows<float> rows();
  Rows<const float> crows() const;
  float* Row(int64_t b, int64_t h, int64_t t);
  const float* Row(int64_t b, int64_t h, int64_t t) const;
  void FillNormal(Rng& rng, double scale = 1.0);  // rows only; the pads stay poisoned
  bool PadsIntact() const;

  int64_t B, H, T, D, pad;
  GuardedBuffer buffer;
};

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
