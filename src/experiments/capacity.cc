#include "experiments/capacity.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/statistics.h"
#include "tensorcache/kernels/memory_scan.h"

namespace tensorcache::experiments {
namespace {

constexpr double kDecay = 0.995;
constexpr double kWriteStrength = 0.05;

struct Published {
  double mean;
  double std;
};

// Table "Raw capacity of a single fast-weight memory head" of the Tensor Cache paper: a row per dimension, a column per
// regime.
constexpr Published kPublished[kCapacityDims.size()][kCapacityRegimes.size()] = {
    {{31.8, 5.0}, {19.8, 4.7}, {15.4, 8.9}},
    {{63.8, 12.0}, {30.8, 2.6}, {32.2, 2.9}},
    {{128.4, 18.9}, {79.0, 18.2}, {51.8, 6.5}},
    {{240.8, 15.5}, {143.8, 27.0}, {84.2, 6.0}},
};

// Keys and values, dimensions and regimes draw from streams of their own, so that no two cells of the table share
// noise.
uint64_t Stream(int64_t dim, CapacityRegime regime, int purpose) {
  return static_cast<uint64_t>((dim * 8 + static_cast<int>(regime)) * 2 + purpose);
}

double Norm(const std::vector<float>& x) {
  double sum = 0;
  for (const float value : x) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

}  // namespace

std::string_view CapacityRegimeName(CapacityRegime regime) {
  switch (regime) {
    case CapacityRegime::kOrthoPrefix: return "ortho_prefix";
    case CapacityRegime::kRandom: return "random";
    case CapacityRegime::kDecayed: return "decayed";
  }
  return "";
}

std::vector<float> RandomOrthonormalRows(int64_t dim, Rng& rng) {
  std::vector<std::vector<double>> rows;
  while (static_cast<int64_t>(rows.size()) < dim) {
    std::vector<double> row(static_cast<size_t>(dim));
    for (double& x : row) x = rng.Normal();
    // Gram-Schmidt; the second pass removes what rounding left of the first.
    for (int pass = 0; pass < 2; ++pass) {
      for (const auto& other : rows) {
        const double overlap = std::inner_product(row.begin(), row.end(), other.begin(), 0.0);
        for (size_t d = 0; d < row.size(); ++d) row[d] -= overlap * other[d];
      }
    }
    const double norm = std::sqrt(std::inner_product(row.begin(), row.end(), row.begin(), 0.0));
    if (norm < 1e-6) continue;  // almost inside the span so far: draw again
    for (double& x : row) x /= norm;
    rows.push_back(std::move(row));
  }
  std::vector<float> result;
  for (const auto& row : rows) result.insert(result.end(), row.begin(), row.end());
  return result;
}

CapacityTrial::CapacityTrial(int64_t dim, CapacityRegime regime, uint64_t seed)
    : dim_(dim),
      decay_(regime == CapacityRegime::kDecayed ? kDecay : 1.0),
      log_decay_(static_cast<float>(std::log(decay_))),
      write_strength_(static_cast<float>(regime == CapacityRegime::kDecayed ? kWriteStrength : 1.0)),
      keys_(seed, Stream(dim, regime, 0)),
      values_(seed, Stream(dim, regime, 1)),
      key_(static_cast<size_t>(dim)),
      value_(static_cast<size_t>(dim)),
      read_(static_cast<size_t>(dim)),
      memory_(static_cast<size_t>(dim * dim), 0.0f) {
  TC_CHECK(dim > 0);
  if (regime == CapacityRegime::kOrthoPrefix) prefix_ = RandomOrthonormalRows(dim, keys_);
}

void CapacityTrial::NextKey() {
  if (!prefix_.empty() && writes_ < dim_) {
    for (int64_t d = 0; d < dim_; ++d) key_[static_cast<size_t>(d)] = prefix_[static_cast<size_t>(writes_ * dim_ + d)];
    return;
  }
  double norm = 0;
  do {
    for (float& x : key_) x = static_cast<float>(keys_.Normal());
    norm = Norm(key_);
  } while (norm == 0);
  for (float& x : key_) x = static_cast<float>(x / norm);
}

double CapacityTrial::WriteNext() {
  NextKey();
  for (float& x : value_) x = static_cast<float>(values_.Normal());
  if (writes_ == 0) {
    oldest_key_ = key_;
    oldest_value_ = value_;
  }
  const Status status = MemoryStep({.Dk = dim_,
                                    .Dv = dim_,
                                    .rule = WriteRule::kOuter,
                                    .evicted = {.k = {.data = key_.data()},
                                                .v = {.data = value_.data()},
                                                .log_decay = {.data = &log_decay_},
                                                .write_strength = {.data = &write_strength_}},
                                    .q = {.data = oldest_key_.data()},
                                    .state = {.data = memory_.data(), .token = dim_},
                                    .reads = {.data = read_.data()}},
                                   0, 1);
  TC_CHECK(status.ok());
  ++writes_;

  signal_ = writes_ == 1 ? write_strength_ : signal_ * decay_;
  double error = 0;
  double size = 0;
  for (size_t d = 0; d < read_.size(); ++d) {
    const double target = signal_ * oldest_value_[d];
    error += (read_[d] - target) * (read_[d] - target);
    size += target * target;
  }
  return std::sqrt(error / size);
}

int64_t MeasureCapacity(int64_t dim, CapacityRegime regime, uint64_t seed) {
  CapacityTrial trial(dim, regime, seed);
  while (trial.WriteNext() <= 1.0) {
  }
  return trial.writes();
}

double ExpectedCapacity(int64_t dim, CapacityRegime regime) {
  const auto D = static_cast<double>(dim);
  switch (regime) {
    case CapacityRegime::kOrthoPrefix: return 2 * D;
    case CapacityRegime::kRandom: return D;
    case CapacityRegime::kDecayed: return std::log1p(2 * (1 - kDecay) * D) / (2 * (1 - kDecay));
  }
  return 0;
}

CapacityRow MeasureCapacityRow(int64_t dim, CapacityRegime regime, const std::vector<uint64_t>& seeds) {
  TC_CHECK(!seeds.empty());
  std::vector<double> capacities;
  for (const uint64_t seed : seeds) capacities.push_back(static_cast<double>(MeasureCapacity(dim, regime, seed)));
  const Spread spread = SpreadOf(capacities);
  CapacityRow row{.dim = dim, .regime = regime, .mean = spread.mean, .std = spread.std};
  for (size_t i = 0; i < kCapacityDims.size(); ++i) {
    if (kCapacityDims[i] != dim) continue;
    row.paper_mean = kPublished[i][static_cast<size_t>(regime)].mean;
    row.paper_std = kPublished[i][static_cast<size_t>(regime)].std;
  }
  return row;
}

}  // namespace tensorcache::experiments
