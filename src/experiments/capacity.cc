#include "experiments/capacity.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/statistics.h"
#include "tensorcache/kernels/memory_scan.h"

namespace tensorcache::experiments {
namespace {

constexpr double kDecay = 0.995;

constexpr std::array<CapacitySpec, 10> kSpecs = {{
    {CapacityRegime::kOrthoPrefix, "ortho_prefix", "orthonormal prefix"},
    {CapacityRegime::kRandom, "random", "outer"},
    {.regime = CapacityRegime::kDecayed,
     .name = "decayed",
     .title = "outer, decayed",
     .decay = kDecay,
     .strength = 0.05},
    {.regime = CapacityRegime::kNormalKeys, .name = "normal_keys", .title = "outer, normal keys", .unit_keys = false},
    {CapacityRegime::kDelta, "delta", "delta", WriteRule::kDelta},
    {.regime = CapacityRegime::kHalfDelta,
     .name = "half_delta",
     .title = "delta, half strength",
     .rule = WriteRule::kDelta,
     .strength = 0.5},
    {.regime = CapacityRegime::kGatedDelta,
     .name = "gated_delta",
     .title = "gated delta, decayed",
     .rule = WriteRule::kGatedDelta,
     .decay = kDecay},
    {.regime = CapacityRegime::kTwoSlots, .name = "slots_2", .title = "outer, 2 slots", .slots = 2},
    {.regime = CapacityRegime::kFourSlots, .name = "slots_4", .title = "outer, 4 slots", .slots = 4},
    {.regime = CapacityRegime::kEightSlots, .name = "slots_8", .title = "outer, 8 slots", .slots = 8},
}};

struct Published {
  double mean;
  double std;
};

// Table "Raw capacity of a single fast-weight memory head" of the Tensor Cache paper: a row per dimension, a column per
// regime.
constexpr Published kPublished[kCapacityDims.size()][kPaperRegimes.size()] = {
    {{31.8, 5.0}, {19.8, 4.7}, {15.4, 8.9}},
    {{63.8, 12.0}, {30.8, 2.6}, {32.2, 2.9}},
    {{128.4, 18.9}, {79.0, 18.2}, {51.8, 6.5}},
    {{240.8, 15.5}, {143.8, 27.0}, {84.2, 6.0}},
};

// Keys and values, dimensions and regimes draw from streams of their own, so that no two cells of the table share
// noise.
uint64_t Stream(int64_t dim, CapacityRegime regime, int purpose) {
  constexpr int kRegimes = 8;
  const int number = static_cast<int>(regime);
  return static_cast<uint64_t>((dim * kRegimes + number % kRegimes) * 2 + purpose) |
         static_cast<uint64_t>(number / kRegimes) << 32;
}

double Dot(const float* a, const float* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}
double Norm(const std::vector<float>& x) { return std::sqrt(Dot(x.data(), x.data(), x.size())); }

void DrawNormal(Rng& rng, std::vector<float>* x) {
  for (float& element : *x) element = static_cast<float>(rng.Normal());
}

}  // namespace

const CapacitySpec& SpecOf(CapacityRegime regime) {
  const CapacitySpec& spec = kSpecs[static_cast<size_t>(regime)];
  TC_CHECK(spec.regime == regime);
  return spec;
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

CapacityPairs::CapacityPairs(int64_t dim, CapacityRegime regime, uint64_t seed)
    : spec_(SpecOf(regime)),
      keys_(seed, Stream(dim, regime, 0)),
      values_(seed, Stream(dim, regime, 1)),
      key_(static_cast<size_t>(dim)),
      value_(static_cast<size_t>(dim)) {
  TC_CHECK(dim > 0);
  if (regime == CapacityRegime::kOrthoPrefix) prefix_ = RandomOrthonormalRows(dim, keys_);
  if (spec_.slots > 1) {
    std::vector<float> slot_keys(static_cast<size_t>(spec_.slots * dim));
    DrawNormal(keys_, &slot_keys);
    router_ = methods::Router({.slots = spec_.slots}, dim, std::move(slot_keys));
  }
}

int64_t CapacityPairs::SlotOf(const std::vector<float>& key) {
  if (spec_.slots == 1) return 0;
  arena_.Reset();
  return router_.RouteByKey(0, key.data(), arena_);
}

void CapacityPairs::NextKey() {
  const size_t dim = key_.size();
  if (!prefix_.empty() && drawn_ < std::ssize(key_)) {
    std::copy_n(prefix_.begin() + drawn_ * std::ssize(key_), dim, key_.begin());
    return;
  }
  double norm = 0;
  do {
    DrawNormal(keys_, &key_);
    norm = Norm(key_);
  } while (norm == 0);
  if (!spec_.unit_keys) norm = std::sqrt(static_cast<double>(dim));
  for (float& x : key_) x = static_cast<float>(x / norm);
}

void CapacityPairs::Next() {
  NextKey();
  DrawNormal(values_, &value_);
  ++drawn_;
}

CapacityMemory::CapacityMemory(int64_t dim, int64_t columns, const CapacitySpec& spec)
    : dim_(dim),
      columns_(columns),
      rule_(spec.rule),
      log_decay_(static_cast<float>(std::log(spec.decay))),
      write_strength_(static_cast<float>(spec.strength)),
      matrices_(static_cast<size_t>(spec.slots * dim * columns), 0.0f) {}

void CapacityMemory::Write(int64_t slot, const float* key, const float* value, const float* query, float* read) {
  const Status status = MemoryStep({.Dk = dim_,
                                    .Dv = columns_,
                                    .rule = rule_,
                                    .evicted = {.k = {.data = key},
                                                .v = {.data = value},
                                                .log_decay = {.data = &log_decay_},
                                                .write_strength = {.data = &write_strength_}},
                                    .q = {.data = query},
                                    .state = {.data = matrices_.data() + slot * dim_ * columns_, .token = columns_},
                                    .reads = {.data = read}},
                                   0, 1);
  TC_CHECK(status.ok());
}

CapacityTrial::CapacityTrial(int64_t dim, CapacityRegime regime, uint64_t seed, int64_t earlier)
    : dim_(static_cast<size_t>(dim)),
      pairs_(dim, regime, seed),
      memory_(dim, dim + 1, SpecOf(regime)),
      value_(dim_ + 1, 0.0f),
      read_(dim_ + 1, 0.0f) {
  for (int64_t i = 0; i < earlier; ++i) {
    pairs_.Next();
    std::ranges::copy(pairs_.value(), value_.begin());
    memory_.Write(pairs_.SlotOf(pairs_.key()), pairs_.key().data(), value_.data(), nullptr, nullptr);
  }
}

double CapacityTrial::WriteNext() {
  pairs_.Next();
  const int64_t slot = pairs_.SlotOf(pairs_.key());
  if (writes_ == 0) {
    watched_key_ = pairs_.key();
    watched_value_ = pairs_.value();
    watched_slot_ = slot;
  }
  std::ranges::copy(pairs_.value(), value_.begin());
  value_.back() = writes_ == 0 ? 1 : 0;
  const bool seen = slot == watched_slot_;  // what is in the other slots changes no read
  memory_.Write(slot, pairs_.key().data(), value_.data(), seen ? watched_key_.data() : nullptr,
                seen ? read_.data() : nullptr);
  ++writes_;
  const double size = left() * left() * Dot(watched_value_.data(), watched_value_.data(), dim_);
  return std::sqrt(crosstalk() * static_cast<double>(dim_) / size);
}

double CapacityTrial::crosstalk() const {
  double sum = 0;
  for (size_t d = 0; d < dim_; ++d) {
    const double rest = read_[d] - left() * watched_value_[d];
    sum += rest * rest;
  }
  return sum / static_cast<double>(dim_);
}

int64_t MeasureLaterWrites(int64_t dim, CapacityRegime regime, uint64_t seed, int64_t earlier) {
  CapacityTrial trial(dim, regime, seed, earlier);
  while (trial.WriteNext() <= 1.0) {
  }
  return trial.writes() - 1;
}

int64_t MeasureCapacity(int64_t dim, CapacityRegime regime, uint64_t seed) {
  return MeasureLaterWrites(dim, regime, seed, 0) + 1;
}

double MeasureRetrieved(int64_t dim, CapacityRegime regime, uint64_t seed, int64_t pairs) {
  const auto width = static_cast<size_t>(dim), count = static_cast<size_t>(pairs);
  CapacityPairs source(dim, regime, seed);
  CapacityMemory memory(dim, dim, SpecOf(regime));
  std::vector<std::vector<float>> keys;
  std::vector<float> values, read(width);  // values (pairs, D), of unit length
  for (size_t i = 0; i < count; ++i) {
    source.Next();
    memory.Write(source.SlotOf(source.key()), source.key().data(), source.value().data(), nullptr, nullptr);
    keys.push_back(source.key());
    const double norm = Norm(source.value());
    for (const float x : source.value()) values.push_back(static_cast<float>(x / norm));
  }
  int64_t right = 0;
  for (size_t i = 0; i < count; ++i) {
    memory.Read(source.SlotOf(keys[i]), keys[i].data(), read.data());
    const double wanted = Dot(read.data(), &values[i * width], width);
    bool nearest = true;
    for (size_t j = 0; j < count && nearest; ++j) {
      nearest = j == i || Dot(read.data(), &values[j * width], width) < wanted;
    }
    right += nearest;
  }
  return static_cast<double>(right) / static_cast<double>(pairs);
}

CapacityRow MeasureCapacityRow(int64_t dim, CapacityRegime regime, const std::vector<uint64_t>& seeds) {
  TC_CHECK(!seeds.empty());
  std::vector<double> capacities;
  for (const uint64_t seed : seeds) capacities.push_back(static_cast<double>(MeasureCapacity(dim, regime, seed)));
  const Spread spread = SpreadOf(capacities);
  CapacityRow row{.dim = dim, .regime = regime, .mean = spread.mean, .std = spread.std};
  const auto column = static_cast<size_t>(regime);
  for (size_t i = 0; i < kCapacityDims.size() && column < kPaperRegimes.size(); ++i) {
    if (kCapacityDims[i] != dim) continue;
    row.paper_mean = kPublished[i][column].mean;
    row.paper_std = kPublished[i][column].std;
  }
  return row;
}

}  // namespace tensorcache::experiments
