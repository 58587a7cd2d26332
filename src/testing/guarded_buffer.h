// Poisoned buffers with canaries, for tests and benches of kernels. Header-only; needs no test framework.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "core/rng.h"
#include "tensorcache/kernels/rows.h"

namespace tensorcache::testing {

// A NaN with a payload that nobody computes: tells "untouched" from "computed NaN".
template <class Real>
inline Real Canary() {
  if constexpr (std::is_same_v<Real, float>)
    return std::bit_cast<float>(uint32_t{0x7FC0BEEF});
  else
    return std::bit_cast<double>(uint64_t{0x7FF800000000BEEF});
}

template <class Real>
bool IsCanary(Real x) {
  using Bits = std::conditional_t<std::is_same_v<Real, float>, uint32_t, uint64_t>;
  return std::bit_cast<Bits>(x) == std::bit_cast<Bits>(Canary<Real>());
}

// `size` numbers filled with canaries, between guards of canaries. A kernel that reads its output before writing it shows
// NaN; one that writes outside shows in Intact(). The data is deliberately aligned to nothing but its element.
template <class Real>
class GuardedBufferOf {
 public:
  explicit GuardedBufferOf(int64_t size)
      : size_(size), storage_(static_cast<size_t>(size + 2 * kGuard), Canary<Real>()) {}

  Real* data() { return storage_.data() + kGuard; }
  const Real* data() const { return storage_.data() + kGuard; }
  int64_t size() const { return size_; }
  Real& operator[](int64_t i) { return data()[i]; }
  Real operator[](int64_t i) const { return data()[i]; }

  // Fills with standard normals times `scale`.
  void FillNormal(Rng& rng, double scale = 1.0) {
    for (int64_t i = 0; i < size_; ++i) data()[i] = static_cast<Real>(rng.Normal() * scale);
  }
  void Fill(Real value) {
    for (int64_t i = 0; i < size_; ++i) data()[i] = value;
  }
  void Poison() { Fill(Canary<Real>()); }
  bool Intact() const {
    for (int64_t i = 0; i < kGuard; ++i) {
      if (!IsCanary(storage_[static_cast<size_t>(i)])) return false;
      if (!IsCanary(storage_[static_cast<size_t>(kGuard + size_ + i)])) return false;
    }
    return true;
  }

 private:
  static constexpr int64_t kGuard = 33;
  int64_t size_;
  std::vector<Real> storage_;
};

// A (B, H, T) array of rows of width D inside a guarded buffer, in (B, T, H, D) order with `pad` unused numbers after each
// row, so that strides are odd. The pads keep their poison.
template <class Real>
struct RowBufferOf {
  RowBufferOf() : RowBufferOf(0, 0, 0, 0) {}
  RowBufferOf(int64_t B, int64_t H, int64_t T, int64_t D, int64_t pad = 0)
      : B(B), H(H), T(T), D(D), pad(pad), buffer(B * H * T * (D + pad)) {}

  Rows<Real> rows() {
    return {.data = buffer.data(), .batch = T * H * (D + pad), .head = D + pad, .token = H * (D + pad)};
  }
  Rows<const Real> crows() const {
    return {.data = buffer.data(), .batch = T * H * (D + pad), .head = D + pad, .token = H * (D + pad)};
  }
  Real* Row(int64_t b, int64_t h, int64_t t) { return rows().At(b, h, t); }
  const Real* Row(int64_t b, int64_t h, int64_t t) const { return crows().At(b, h, t); }

  // Visits the elements of the rows, in memory order, without the pads.
  template <class Body>
  void ForEach(const Body& body) {
    for (int64_t row = 0; row < B * H * T; ++row) {
      for (int64_t d = 0; d < D; ++d) body(buffer[row * (D + pad) + d]);
    }
  }
  std::vector<Real> Values() const {
    std::vector<Real> values;
    values.reserve(static_cast<size_t>(B * H * T * D));
    for (int64_t row = 0; row < B * H * T; ++row) {
      for (int64_t d = 0; d < D; ++d) values.push_back(buffer[row * (D + pad) + d]);
    }
    return values;
  }
  void FillNormal(Rng& rng, double scale = 1.0) {
    ForEach([&](Real& x) { x = static_cast<Real>(rng.Normal() * scale); });
  }
  // Nothing outside the rows was written.
  bool PadsIntact() const {
    if (!buffer.Intact()) return false;
    for (int64_t row = 0; row < B * H * T; ++row) {
      for (int64_t d = D; d < D + pad; ++d) {
        if (!IsCanary(buffer[row * (D + pad) + d])) return false;
      }
    }
    return true;
  }
  template <class Other>
  RowBufferOf<Other> Cast() const {
    RowBufferOf<Other> other(B, H, T, D, pad);
    const std::vector<Real> values = Values();
    size_t i = 0;
    other.ForEach([&](Other& x) { x = static_cast<Other>(values[i++]); });
    return other;
  }

  int64_t B, H, T, D, pad;
  GuardedBufferOf<Real> buffer;
};

using GuardedBuffer = GuardedBufferOf<float>;
using RowBuffer = RowBufferOf<float>;

}  // namespace tensorcache::testing
