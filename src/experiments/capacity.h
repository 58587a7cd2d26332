// Raw capacity of one memory head: how many associations fit into a D x D matrix before the oldest one drowns?
//
// Pairs (k_j, v_j) are written one after the other, A <- lambda A + eta k_j^T v_j, with unit keys and standard normal
// values. After each write the oldest key is read back and compared with what is left of its value:
//
//   error(N) = |k_1 A_N - lambda^(N-1) eta v_1| / |lambda^(N-1) eta v_1|
//
// The capacity is the first N with error(N) > 1: crosstalk has become as large as the signal. A random unit key
// overlaps k_1 by 1/D on average in the square, so one expects, with lambda = 1 - e,
//
//   random keys: N = D    orthonormal prefix of D keys: N = 2 D    decayed: N = ln(1 + 2 e D) / (2 e)
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "core/rng.h"

namespace tensorcache::experiments {

enum class CapacityRegime {
  kOrthoPrefix,  // the first D keys are orthonormal, the rest random; lambda = eta = 1
  kRandom,       // all keys random; lambda = eta = 1
  kDecayed,      // all keys random; lambda = 0.995, eta = 0.05
};

inline constexpr std::array kCapacityRegimes = {CapacityRegime::kOrthoPrefix, CapacityRegime::kRandom,
                                                CapacityRegime::kDecayed};
inline constexpr std::array<int64_t, 4> kCapacityDims = {16, 32, 64, 128};

std::string_view CapacityRegimeName(CapacityRegime regime);  // "ortho_prefix", "random", "decayed"

// One memory being filled. The n-th pair is a function of (dim, regime, seed, n) alone.
class CapacityTrial {
 public:
  CapacityTrial(int64_t dim, CapacityRegime regime, uint64_t seed);

  // Writes the next pair and returns the oldest item's relative error. O(D^2).
  double WriteNext();
  int64_t writes() const { return writes_; }

 private:
  void NextKey();

  int64_t dim_;
  double decay_;
  float log_decay_;
  float write_strength_;
  int64_t writes_ = 0;
  Rng keys_;
  Rng values_;
  std::vector<float> prefix_;       // (D, D) orthonormal rows, or empty
  std::vector<float> key_, value_;  // (D)
  std::vector<float> oldest_key_, oldest_value_, read_;
  std::vector<float> memory_;  // (D, D)
  double signal_ = 0;          // lambda^(N-1) eta
};

// The first number of writes at which the oldest item's error exceeds 1.
int64_t MeasureCapacity(int64_t dim, CapacityRegime regime, uint64_t seed);

// What the crosstalk estimate above predicts.
double ExpectedCapacity(int64_t dim, CapacityRegime regime);

// `dim` orthonormal rows in random orientation, row-major.
std::vector<float> RandomOrthonormalRows(int64_t dim, Rng& rng);

struct CapacityRow {
  int64_t dim = 0;
  CapacityRegime regime = CapacityRegime::kRandom;
  double mean = 0;
  double std = 0;  // of the sample (n - 1); 0 for one seed
  double paper_mean = 0;
  double paper_std = 0;
};

// One cell of the table, measured with `seeds` and set beside the published figures.
CapacityRow MeasureCapacityRow(int64_t dim, CapacityRegime regime, const std::vector<uint64_t>& seeds);

}  // namespace tensorcache::experiments
