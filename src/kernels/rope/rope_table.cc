// Frequencies and tables: integer arithmetic for the angle, so that positions of any size lose nothing.
#include <algorithm>
#include <cmath>
#include <string>

#include "core/check.h"
#include "tensorcache/kernels/rope.h"

namespace tensorcache {
namespace {

// An unevaluated sum of two doubles, hi + lo, with about 104 bits: what frequencies need so that a position of 40 bits
// times one still has its 53 bits after the point.
struct Double2 {
  double hi;
  double lo;
};

// a + b exactly, for |a| >= |b|.
Double2 FastSum(double a, double b) {
  const double s = a + b;
  return {s, b - (s - a)};
}

Double2 Sum(double a, double b) {
  const double s = a + b;
  const double t = s - a;
  return {s, (a - (s - t)) + (b - t)};
}

Double2 operator+(Double2 a, Double2 b) {
  const Double2 s = Sum(a.hi, b.hi);
  const Double2 t = Sum(a.lo, b.lo);
  const Double2 u = FastSum(s.hi, s.lo + t.hi);
  return FastSum(u.hi, u.lo + t.lo);
}

Double2 operator*(Double2 a, Double2 b) {
  const double p = a.hi * b.hi;
  const double e = std::fma(a.hi, b.hi, -p);
  return FastSum(p, e + (a.hi * b.lo + a.lo * b.hi));
}

Double2 Quotient(double a, double b) {
  const double q = a / b;
  return FastSum(q, std::fma(-q, b, a) / b);
}

// exp(x) for |x| of a few hundred: x = n ln2 + 512 r, the series of exp(r), squared nine times. The squarings multiply
// the relative error by 512, and it starts near 2^-105.
Double2 Exp(Double2 x) {
  constexpr Double2 kLn2 = {0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56};
  constexpr int kSquarings = 9;
  const double n = std::nearbyint(x.hi / kLn2.hi);
  Double2 r = x + Double2{-n, 0} * kLn2;
  r = {std::ldexp(r.hi, -kSquarings), std::ldexp(r.lo, -kSquarings)};
  Double2 sum = {1, 0};
  for (int k = 12; k >= 1; --k) sum = Double2{1, 0} + sum * r * Quotient(1, k);
  for (int i = 0; i < kSquarings; ++i) sum = sum * sum;
  return {std::ldexp(sum.hi, static_cast<int>(n)), std::ldexp(sum.lo, static_cast<int>(n))};
}

// log(x) by one Newton step on exp, which doubles the digits of std::log.
Double2 Log(double x) {
  const Double2 y = {std::log(x), 0};
  return y + Exp({-y.hi, 0}) * Double2{x, 0} + Double2{-1, 0};
}

__extension__ using Uint128 = unsigned __int128;

// x * 2^128 for 0 <= x < 1.
Uint128 Fixed128(Double2 x) {
  const auto part = [](double v) {  // |v| < 1, exact: a double has 53 bits
    int exponent;
    const auto mantissa = static_cast<uint64_t>(std::ldexp(std::frexp(std::abs(v), &exponent), 53));
    const int shift = exponent - 53 + 128;
    const Uint128 magnitude = shift >= 0 ? static_cast<Uint128>(mantissa) << shift
                                         : (shift > -64 ? static_cast<Uint128>(mantissa >> -shift) : 0);
    return v < 0 ? -magnitude : magnitude;
  };
  return part(x.hi) + part(x.lo);
}

// Cosine and sine of `turns` / 2^64 of a turn. The nearest quarter turn is taken off as an integer; on the rest, at
// most pi / 4, the series up to x^12 are exact to 1e-11, far below float's rounding.
inline void CosSin(uint64_t turns, float* cos, float* sin) {
  constexpr double kRadians = 0x1.921fb54442d18p2 * 0x1p-64;  // 2 pi / 2^64
  const uint64_t quarter = (turns + (uint64_t{1} << 61)) >> 62;
  const double x = static_cast<double>(static_cast<int64_t>(turns - (quarter << 62))) * kRadians;
  const double z = x * x;
  const double c =
      1 + z * (-1.0 / 2 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 + z * (-1.0 / 3628800 + z / 479001600)))));
  const double s = x + x * z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 - z / 39916800))));
  const double even = (quarter & 1) ? s : c;  // |cos|, |sin| swap in odd quarters
  const double odd = (quarter & 1) ? c : s;
  *cos = static_cast<float>(((quarter + 1) & 2) ? -even : even);
  *sin = static_cast<float>((quarter & 2) ? -odd : odd);
}

void FillRow(const RopeFrequencies& frequencies, int64_t position, float* cos, float* sin) {
  const uint64_t p = static_cast<uint64_t>(position);
  // For a negative position p is 2^64 too large: its product with lo is lo * 2^64 too large.
  const uint64_t wrap = position < 0 ? ~uint64_t{0} : 0;
  for (int64_t i = 0; i < frequencies.pairs; ++i) {
    const uint64_t hi = frequencies.hi[static_cast<size_t>(i)];
    const uint64_t lo = frequencies.lo[static_cast<size_t>(i)];
    const uint64_t carried = static_cast<uint64_t>((static_cast<Uint128>(p) * lo) >> 64) - (wrap & lo);
    CosSin(p * hi + carried, cos + i, sin + i);
  }
}

}  // namespace

double RopeScaleOf(const RopeScaling& scaling, double wavelength) {
  if (scaling.rope_type == RopeScalingKind::kNone) return 1;
  if (scaling.rope_type == RopeScalingKind::kLinear) return 1 / scaling.factor;
  const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
  const double waves = scaling.original_max_position_embeddings / wavelength;  // in the original context
  const double kept = std::clamp((waves - low) / (high - low), 0.0, 1.0);
  return (1 - kept) / scaling.factor + kept;
}

Result<RopeFrequencies> MakeRopeFrequencies(int64_t rotary_dims, double base, const RopeScaling& scaling) {
  if (rotary_dims < 2 || rotary_dims > kMaxRotaryDims || rotary_dims % 2 != 0) {
    return InvalidArgument("rotary dimensions must be even, from 2 to " + std::to_string(kMaxRotaryDims) + ", got " +
                           std::to_string(rotary_dims));
  }
  if (!(base > 1 && base <= 1e30)) {
    return InvalidArgument("the RoPE base must be above 1 and at most 1e30, got " + std::to_string(base));
  }
  constexpr Double2 kTurnsPerRadian = {0x1.45f306dc9c883p-3, -0x1.6b01ec5417056p-57};  // 1 / (2 pi)
  const Double2 log_base = Log(base);
  RopeFrequencies frequencies;
  frequencies.pairs = rotary_dims / 2;
  frequencies.hi.fill(0);
  frequencies.lo.fill(0);
  for (int64_t i = 0; i < frequencies.pairs; ++i) {
    const Double2 exponent = Quotient(-2.0 * static_cast<double>(i), static_cast<double>(rotary_dims));
    const Double2 unscaled = Exp(log_base * exponent) * kTurnsPerRadian;  // turns a token
    const Uint128 turns = Fixed128(unscaled * Double2{RopeScaleOf(scaling, 1 / unscaled.hi), 0});
    frequencies.hi[static_cast<size_t>(i)] = static_cast<uint64_t>(turns >> 64);
    frequencies.lo[static_cast<size_t>(i)] = static_cast<uint64_t>(turns);
  }
  return frequencies;
}

double NtkAwareBase(double base, double scale, int64_t rotary_dims) {
  if (rotary_dims <= 2) return base;  // a single pair has frequency 1 whatever the base
  const double dims = static_cast<double>(rotary_dims);
  return base * std::pow(scale, dims / (dims - 2));
}

void FillRopeTable(const RopeFrequencies& frequencies, std::span<const int64_t> positions, float* cos, float* sin) {
  for (size_t t = 0; t < positions.size(); ++t) {
    const int64_t offset = static_cast<int64_t>(t) * frequencies.pairs;
    FillRow(frequencies, positions[t], cos + offset, sin + offset);
  }
}

void FillRopeTable(const RopeFrequencies& frequencies, int64_t first, int64_t tokens, float* cos, float* sin) {
  for (int64_t t = 0; t < tokens; ++t) {
    FillRow(frequencies, first + t, cos + t * frequencies.pairs, sin + t * frequencies.pairs);
  }
}

}  // namespace tensorcache
