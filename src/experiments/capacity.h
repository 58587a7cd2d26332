// Raw capacity of one memory head: how many associations fit into a D x D matrix before an old one drowns?
//
// Pairs (k_j, v_j) are written one after the other, A <- lambda A + eta k_j^T v_j or by the delta rule, with random keys
// and standard normal values. After each write the oldest key is read back. All rules are linear in the values, so the
// read is what is left of the oldest value, c v_1, and crosstalk of all others:
//
//   error(N) = |k_1 A_N - c v_1| / |c v_1|       outer rule: c = lambda^(N-1) eta |k_1|^2
//
// The capacity is the first N with error(N) > 1: crosstalk has become as large as the signal. How large a read is as a
// whole does not matter, hence decays, strengths and rules can be compared. What is to be expected: capacity_theory.cc.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/buffer.h"
#include "core/rng.h"
#include "methods/tensor_cache/router.h"
#include "tensorcache/choices.h"

namespace tensorcache::experiments {

// How pairs are written. Keys are random and of unit length, lambda = eta = 1, unless it says otherwise.
enum class CapacityRegime {
  kOrthoPrefix,  // the first D keys are orthonormal
  kRandom,
  kDecayed,     // lambda = 0.995, eta = 0.05
  kNormalKeys,  // keys are standard normal / sqrt(D), of length 1 on average only
  kDelta,       // delta rule
  kHalfDelta,   // delta rule, eta = 0.5
  kGatedDelta,  // gated delta rule, lambda = 0.995
  kTwoSlots,    // so many matrices: a router writes each pair into one of them
  kFourSlots,
  kEightSlots,
};

inline constexpr std::array kPaperRegimes = {CapacityRegime::kOrthoPrefix, CapacityRegime::kRandom,
                                             CapacityRegime::kDecayed};
// Those of random keys.
inline constexpr std::array kRandomRegimes = {
    CapacityRegime::kRandom,   CapacityRegime::kNormalKeys, CapacityRegime::kDecayed,
    CapacityRegime::kDelta,    CapacityRegime::kHalfDelta,  CapacityRegime::kGatedDelta,
    CapacityRegime::kTwoSlots, CapacityRegime::kFourSlots,  CapacityRegime::kEightSlots};
inline constexpr std::array<int64_t, 4> kCapacityDims = {16, 32, 64, 128};

struct CapacitySpec {
  CapacityRegime regime;
  std::string_view name;   // "decayed"
  std::string_view title;  // "outer, decayed"
  WriteRule rule = WriteRule::kOuter;
  double decay = 1;     // lambda
  double strength = 1;  // eta
  bool unit_keys = true;
  int64_t slots = 1;
};
const CapacitySpec& SpecOf(CapacityRegime regime);

// The pairs of one trial. The n-th is a function of (dim, regime, seed, n) alone.
class CapacityPairs {
 public:
  CapacityPairs(int64_t dim, CapacityRegime regime, uint64_t seed);

  // The next pair, in key() and value().
  void Next();
  const std::vector<float>& key() const { return key_; }
  const std::vector<float>& value() const { return value_; }
  // The matrix that a pair of this key is written to, and that the key reads.
  int64_t SlotOf(const std::vector<float>& key);

 private:
  void NextKey();

  const CapacitySpec& spec_;
  int64_t drawn_ = 0;
  Rng keys_;
  Rng values_;
  std::vector<float> prefix_;  // (D, D) orthonormal rows, or empty
  methods::Router router_;
  Arena arena_;
  std::vector<float> key_, value_;  // (D)
};

// The matrices of one trial, each of D rows.
class CapacityMemory {
 public:
  CapacityMemory(int64_t dim, int64_t columns, const CapacitySpec& spec);

  // Into a slot; then, if `read` is not null, reads the same slot with `query`. O(D^2).
  void Write(int64_t slot, const float* key, const float* value, const float* query, float* read);
  void Read(int64_t slot, const float* query, float* read) { Write(slot, nullptr, nullptr, query, read); }

 private:
  int64_t dim_, columns_;
  WriteRule rule_;
  float log_decay_, write_strength_;
  std::vector<float> matrices_;  // (slots, D, columns)
};

// One memory being filled. A pair is watched: the first that is written behind `earlier` others.
class CapacityTrial {
 public:
  CapacityTrial(int64_t dim, CapacityRegime regime, uint64_t seed, int64_t earlier = 0);

  // Writes the next pair, the first time the one that is watched, and returns the watched one's relative error.
  double WriteNext();
  int64_t writes() const { return writes_; }  // from the watched pair on

  // Of the last read: how much is left of the watched value, c, and the mean square of the crosstalk.
  double left() const { return read_.back(); }
  double crosstalk() const;

 private:
  size_t dim_;
  CapacityPairs pairs_;
  CapacityMemory memory_;
  int64_t writes_ = 0;
  int64_t watched_slot_ = 0;
  std::vector<float> watched_key_, watched_value_;  // (D)
  // (D + 1): the last column of the watched value is 1, of all others 0. What is read of it is c.
  std::vector<float> value_, read_;
};

// The first number of writes at which the oldest pair's error exceeds 1.
int64_t MeasureCapacity(int64_t dim, CapacityRegime regime, uint64_t seed);
// How many later writes a pair bears that was written behind `earlier` others; at the next one its error exceeds 1.
int64_t MeasureLaterWrites(int64_t dim, CapacityRegime regime, uint64_t seed, int64_t earlier);
// So many pairs are written, and then all keys read: the part of the reads to which, by angle, the value that was stored
// with the key is nearer than all others.
double MeasureRetrieved(int64_t dim, CapacityRegime regime, uint64_t seed, int64_t pairs);

// What the crosstalk estimate predicts of MeasureCapacity, as the paper's table has it.
double ExpectedCapacity(int64_t dim, CapacityRegime regime);
// The same of MeasureLaterWrites, for random keys.
double ExpectedLaterWrites(int64_t dim, CapacityRegime regime, int64_t earlier);

// Expectations of a read after `later` writes. Exact for unit keys in one matrix.
struct CapacityRead {
  double left_square = 0;  // c^2
  double crosstalk = 0;
};
CapacityRead ExpectedRead(int64_t dim, CapacityRegime regime, double later, int64_t earlier);

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

// One cell of the paper's table, measured with `seeds` and set beside the published figures.
CapacityRow MeasureCapacityRow(int64_t dim, CapacityRegime regime, const std::vector<uint64_t>& seeds);

}  // namespace tensorcache::experiments
