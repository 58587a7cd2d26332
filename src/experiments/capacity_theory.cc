// What is to be expected of the capacity of a memory: expectations over random keys and values, which are exact.
//
// Let k be the watched key, and (k_i, v_i) the m-th pair before the read. Read backwards, the query of a delta rule turns
// into w <- lambda w (I - eta k_i^T k_i) at each write; the value v_i is read with the factor eta w k_i^T. With uniformly
// distributed unit keys E[k_i^T k_i] = I / D, and so, without the powers of lambda,
//
//   E|w|^2    falls by rho  = 1 - (2 eta - eta^2) / D   a write,
//   E(w k^T)^2 = rho^n / D + (1 - 1/D) rho_2^n,   rho_2 = 1 - 2 eta / D + 2 eta^2 / (D (D + 2)),   after n writes.
//
// The latter is the solution of s' = rho_2 s + eta^2 / (D (D + 2)) |w|^2, which E[(I - eta k_i^T k_i) S (I - eta k_i^T
// k_i)] gives for S = w^T w by the fourth moments of the sphere. An outer rule leaves w alone: rho = rho_2 = 1. With it
//
//   left       E c^2 = eta^2 lambda^2n E(w k^T)^2
//   crosstalk  of n later pairs     eta^2 / D sum_{m < n} (lambda^2 rho)^m
//              of M earlier ones    eta^2 / D sum_{m < M} (lambda^2 rho)^m lambda^(2n + 2) (E|w|^2 - (2 eta - eta^2) E(w k^T)^2)
//
// since the watched write itself takes w to w (I - eta k^T k). A pair is lost where crosstalk is as large as what is left.
// In the limit of many dimensions, from an empty memory, that is after
//
//   outer: D writes    decayed: ln(1 + 2 e D) / (2 e), lambda = 1 - e    delta: ln((1 + sqrt 5) / 2) D = 0.48 D
//
// and of the delta rule in a full memory after ln(2) / 2 D = 0.35 D, where the outer rule has lost it before.
#include <cmath>
#include <numbers>

#include "core/check.h"
#include "experiments/capacity.h"

namespace tensorcache::experiments {
namespace {

// 1 + x + ... + x^(n - 1), also for n in between.
double Geometric(double x, double n) { return x == 1 ? n : (1 - std::pow(x, n)) / (1 - x); }

// E[max^2] of n standard normal numbers.
double LargestSquare(int64_t n) {
  constexpr double kStep = 1e-3, kEnd = 12;
  double sum = 0;
  for (double x = -kEnd; x < kEnd; x += kStep) {
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
    const double below = std::erfc(-x / std::numbers::sqrt2) / 2;
    sum += x * x * static_cast<double>(n) * density * std::pow(below, n - 1) * kStep;
  }
  return sum;
}

// D E(k k'^T)^2 of two keys that are written to the same slot. Slot vectors are nearly orthogonal: of a key's components z
// along them, times sqrt(D), its own slot's is the largest, and E[z^T z] is, for that one and the S - 1 others,
//
//   E z_1^2 = m    E z_t^2 = (S - m) / (S - 1)    E z_1 z_t = (1 - m) / (S - 1)    E z_t z_u = 2 (m - 1) / ((S - 1) (S - 2))
//
// by symmetry and E[z_1 sum(z)] = 1. The components along all else are as those of any key.
double Likeness(double D, int64_t slots) {
  if (slots <= 2) return 1;
  const auto S = static_cast<double>(slots);
  const double m = LargestSquare(slots), other = (S - m) / (S - 1), with_first = (1 - m) / (S - 1);
  const double between = 2 * (m - 1) / ((S - 1) * (S - 2));
  const double squares = m * m + (S - 1) * (other * other + 2 * with_first * with_first + (S - 2) * between * between);
  return (squares + D - S) / D;
}

}  // namespace

CapacityRead ExpectedRead(int64_t dim, CapacityRegime regime, double later, int64_t earlier) {
  TC_CHECK(regime != CapacityRegime::kOrthoPrefix);
  const CapacitySpec& spec = SpecOf(regime);
  const auto D = static_cast<double>(dim);
  const double eta = spec.strength, taken = IsDelta(spec.rule) ? eta : 0, erased = 2 * taken - taken * taken;
  const double rho = 1 - erased / D, rho_2 = 1 - 2 * taken / D + 2 * taken * taken / (D * (D + 2));
  const double size = std::pow(rho, later);                              // E|w|^2
  const double along = size / D + (1 - 1 / D) * std::pow(rho_2, later);  // E(w k^T)^2
  const double kept = std::pow(spec.decay, 2 * later), square = eta * eta;
  const double overlap = Likeness(D, spec.slots) / (D * static_cast<double>(spec.slots));
  const double step = spec.decay * spec.decay * rho;
  const double before = Geometric(step, static_cast<double>(earlier)) * kept * spec.decay * spec.decay;
  return {.left_square = square * kept * along,
          .crosstalk = square * overlap * (Geometric(step, later) + before * (size - erased * along))};
}

double ExpectedLaterWrites(int64_t dim, CapacityRegime regime, int64_t earlier) {
  const auto is_lost = [&](double later) {
    const CapacityRead read = ExpectedRead(dim, regime, later, earlier);
    return read.crosstalk >= read.left_square;
  };
  if (is_lost(0)) return 0;
  double kept = 0, lost = 1;
  while (!is_lost(lost)) lost *= 2;
  while (lost - kept > 1e-9 * lost) {
    const double middle = (kept + lost) / 2;
    (is_lost(middle) ? lost : kept) = middle;
  }
  return lost;
}

double ExpectedCapacity(int64_t dim, CapacityRegime regime) {
  const auto D = static_cast<double>(dim);
  const double loss = 1 - SpecOf(regime).decay;
  switch (regime) {
    case CapacityRegime::kOrthoPrefix: return 2 * D;
    case CapacityRegime::kRandom: return D;
    case CapacityRegime::kDecayed: return std::log1p(2 * loss * D) / (2 * loss);
    default: break;
  }
  TC_CHECK(false);
  return 0;
}

}  // namespace tensorcache::experiments
