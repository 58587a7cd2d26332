// The invariant: any split of a sequence into blocks and single steps gives the reads and the state of one block.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/memory_scan/memory_scan_testing.h"
#include "tensorcache/kernels/memory_scan.h"
#include "testing/kernel_testing.h"

namespace tensorcache {
namespace {

using testing::RandomScanProblem;
using testing::RowBuffer;
using testing::ScanOptions;
using testing::ScanProblem;
using testing::WithinNorm;

// What a caller keeps between blocks: A, and the ring of the last `lag` tokens.
class Stream {
 public:
  Stream(const ScanProblem<float>& problem, int64_t pad)
      : p_(problem),
        s_(problem.shape),
        capacity_(std::max<int64_t>(s_.lag, 1)),
        state_(s_.B, s_.G, s_.Dk, s_.Dv, pad),
        reads_(s_.B, s_.H, s_.T, s_.Dv, pad),
        ring_k_(s_.B, s_.G, capacity_, s_.Dk, pad),
        ring_v_(s_.B, s_.G, capacity_, s_.Dv, pad),
        ring_g_(s_.B, s_.G, capacity_, 1, pad),
        ring_b_(s_.B, s_.G, capacity_, 1, pad) {
    state_.ForEach([](float& x) { x = 0; });
  }

  void Block(int64_t begin, int64_t end) {
    MemoryScanForwardArgs<float> args;
    args.shape = s_;
    args.shape.T = end - begin;
    args.shape.past = count_;
    args.q = From(p_.q.crows(), begin);
    args.writes = Writes(begin);
    static_cast<MemoryWrites<const float>&>(args.past) = Ring(0);
    args.past.capacity = capacity_;
    args.past.start = start_;
    args.initial = state_.crows();
    args.final_state = state_.rows();
    args.reads = From(reads_.rows(), begin);
    std::vector<float> scratch(static_cast<size_t>(MemoryScanScratchFloats(args.shape)), NAN);
    ASSERT_TRUE(MemoryScanForward(args, 0, s_.B * s_.G, scratch.data()).ok());
    for (int64_t t = begin; t < end; ++t) Push(t);
  }

  void Step(int64_t t) {
    MemoryStepArgs args;
    args.B = s_.B, args.H = s_.H, args.G = s_.G, args.Dk = s_.Dk, args.Dv = s_.Dv;
    args.rule = s_.rule;
    if (s_.lag == 0) args.evicted = Writes(t);
    if (s_.lag > 0 && count_ == s_.lag) args.evicted = Ring(start_);
    args.q = From(p_.q.crows(), t);
    args.state = state_.rows();
    args.reads = From(reads_.rows(), t);
    ASSERT_TRUE(MemoryStep(args, 0, s_.B * s_.G).ok());
    Push(t);
  }

  const RowBuffer& reads() const { return reads_; }
  const RowBuffer& state() const { return state_; }

 private:
  template <class T>
  static Rows<T> From(Rows<T> rows, int64_t t) {
    rows.data += t * rows.token;
    return rows;
  }
  MemoryWrites<const float> Writes(int64_t t) const {
    const MemoryWrites<const float> all = p_.Writes();
    return {.k = From(all.k, t),
            .v = From(all.v, t),
            .log_decay = From(all.log_decay, t),
            .write_strength = From(all.write_strength, t)};
  }
  MemoryWrites<const float> Ring(int64_t row) const {
    return {.k = From(ring_k_.crows(), row),
            .v = From(ring_v_.crows(), row),
            .log_decay = From(ring_g_.crows(), row),
            .write_strength = From(ring_b_.crows(), row)};
  }
  void Push(int64_t t) {
    if (s_.lag == 0) return;
    const int64_t row = (start_ + count_) % capacity_;
    const MemoryWrites<const float> token = Writes(t);
    for (int64_t b = 0; b < s_.B; ++b) {
      for (int64_t g = 0; g < s_.G; ++g) {
        std::copy_n(token.k.At(b, g, 0), s_.Dk, ring_k_.rows().At(b, g, row));
        std::copy_n(token.v.At(b, g, 0), s_.Dv, ring_v_.rows().At(b, g, row));
        *ring_g_.rows().At(b, g, row) = *token.log_decay.At(b, g, 0);
        *ring_b_.rows().At(b, g, row) = *token.write_strength.At(b, g, 0);
      }
    }
    if (count_ < s_.lag) {
      ++count_;
    } else {
      start_ = (start_ + 1) % capacity_;
    }
  }

  const ScanProblem<float>& p_;
  MemoryScanShape s_;
  int64_t capacity_, start_ = 0, count_ = 0;
  RowBuffer state_, reads_, ring_k_, ring_v_, ring_g_, ring_b_;
};

void ExpectSame(const Stream& actual, const Stream& expected, const MemoryScanShape& s, double query_norm) {
  const std::vector<float> state = expected.state().Values();
  const double norm = testing::Norm2(state.data(), static_cast<int64_t>(state.size())) + 1;
  const double walk = std::sqrt(static_cast<double>(s.Dk + s.Dv + s.T));
  const auto check = [&](const char* what, const RowBuffer& a, const RowBuffer& e, double magnitude) {
    const std::vector<float> x = a.Values(), y = e.Values();
    EXPECT_TRUE(a.PadsIntact()) << what;
    EXPECT_TRUE(WithinNorm(x.data(), y.data(), static_cast<int64_t>(x.size()), magnitude, walk)) << what;
  };
  check("reads", actual.reads(), expected.reads(), norm * query_norm);
  check("final state", actual.state(), expected.state(), norm);
}

void CheckSplits(const MemoryScanShape& s, const ScanOptions& o, uint64_t seed) {
  SCOPED_TRACE(testing::RuleName(s.rule) + " mode " + std::to_string(static_cast<int>(s.mode)) +
               " T=" + std::to_string(s.T) + " lag=" + std::to_string(s.lag) + " Dk=" + std::to_string(s.Dk) +
               " Dv=" + std::to_string(s.Dv) + " H=" + std::to_string(s.H) + " G=" + std::to_string(s.G));
  const ScanProblem<float> p = RandomScanProblem(s, o, seed);
  const std::vector<float> q = p.q.Values();
  const double query_norm = testing::MaxAbs(q.data(), static_cast<int64_t>(q.size()));
  Stream whole(p, 0);
  whole.Block(0, s.T);

  Rng rng(seed, 1);
  const int64_t grain = s.mode == ScanMode::kExact ? 1 : s.chunk;
  const int64_t longest = std::max<int64_t>(1, (s.T / 3) / grain);
  Stream split(p, 0);
  for (int64_t t = 0; t < s.T;) {
    const int64_t length = grain * static_cast<int64_t>(1 + rng.Below(static_cast<uint64_t>(longest)));
    const int64_t end = std::min(s.T, t + length);
    if (s.mode == ScanMode::kExact && rng.Below(4) == 0) {
      split.Step(t);
      t += 1;
    } else {
      split.Block(t, end);
      t = end;
    }
    if (rng.Below(8) == 0) split.Block(t, t);  // empty blocks change nothing
  }
  ExpectSame(split, whole, s, query_norm);
  if (s.mode != ScanMode::kExact) return;
  Stream steps(p, 0);
  for (int64_t t = 0; t < s.T; ++t) steps.Step(t);
  ExpectSame(steps, whole, s, query_norm);
}

// Every length that could be special and some that are not, for every rule, width and lag; heads, strides and the normaliser
// column vary from case to case.
TEST(MemoryScanInvariant, AnySplitEqualsOneBlock) {
  constexpr int64_t W = 24;
  Rng rng(4711);
  uint64_t seed = 0;
  for (const WriteRule rule : testing::AllWriteRules()) {
    for (const int64_t D : {16, 32, 64, 80, 128}) {
      const int64_t random_length = static_cast<int64_t>(1 + rng.Below(400));
      for (const int64_t T : {int64_t{0}, int64_t{1}, W - 1, W, W + 1, int64_t{63}, random_length, int64_t{1000}}) {
        for (const int64_t lag : {int64_t{0}, W, T + 5}) {
          ++seed;
          MemoryScanShape s{.T = T, .Dk = D, .Dv = D, .lag = lag, .rule = rule};
          if (T < 1000) s.H = (s.G = static_cast<int64_t>(1 + seed % 2)) * static_cast<int64_t>(1 + seed % 3);
          if (T < 100) s.B = static_cast<int64_t>(1 + seed % 2);
          if (rule != WriteRule::kWedge) s.Dv += static_cast<int64_t>(seed % 2);
          CheckSplits(s, {.zero_initial = true, .pad = static_cast<int64_t>(seed % 4)}, seed);
        }
      }
    }
  }
}

TEST(MemoryScanInvariant, ManyQueryHeadsOfOneGroup) {
  for (const WriteRule rule : testing::AllWriteRules()) {
    CheckSplits({.H = 9, .G = 1, .T = 120, .Dk = 64, .Dv = 64, .lag = 64, .rule = rule}, {.pad = 1}, 501);
  }
}

TEST(MemoryScanInvariant, ConstantDecayAndEveryTarget) {
  testing::ForEachTarget([&](const std::string&) {
    uint64_t seed = 900;
    for (const WriteRule rule : testing::AllWriteRules()) {
      CheckSplits({.H = 2, .G = 1, .T = 150, .Dk = 20, .Dv = 20, .lag = 10, .rule = rule},
                  {.constant_per_head = true, .pad = 2}, ++seed);
    }
  });
}

TEST(MemoryScanInvariant, StrongDecay) {
  for (const WriteRule rule : testing::AllWriteRules()) {
    CheckSplits({.T = 300, .Dk = 16, .Dv = 16, .lag = 3, .rule = rule}, {.min_decay = 1e-6, .max_decay = 0.3}, 71);
  }
}

// With keys of length 1 and full strength a key reads what gated_delta just wrote with it, however much is forgotten.
TEST(MemoryScanInvariant, GatedDeltaReturnsWhatItJustWrote) {
  const MemoryScanShape s{.T = 90, .Dk = 24, .Dv = 21, .rule = WriteRule::kGatedDelta};
  ScanProblem<float> p = RandomScanProblem(s, {.min_decay = 0.05, .min_strength = 1, .max_strength = 1}, 81);
  for (int64_t t = 0; t < s.T; ++t) {
    float* k = p.k.Row(0, 0, t);
    const double norm = testing::Norm2(k, s.Dk);
    for (int64_t i = 0; i < s.Dk; ++i) p.q.Row(0, 0, t)[i] = k[i] = static_cast<float>(k[i] / norm);
  }
  const std::vector<float> written = p.v.Values();
  const auto expect_written = [&](const Stream& stream) {
    const std::vector<float> reads = stream.reads().Values(), state = stream.state().Values();
    const double norm = testing::Norm2(state.data(), static_cast<int64_t>(state.size()));
    EXPECT_TRUE(WithinNorm(reads.data(), written.data(), static_cast<int64_t>(reads.size()), norm,
                           std::sqrt(static_cast<double>(s.Dk + s.T))));
  };
  testing::ForEachTarget([&](const std::string&) {
    Stream block(p, 0), steps(p, 0);
    block.Block(0, s.T);
    expect_written(block);
    for (int64_t t = 0; t < s.T; ++t) steps.Step(t);
    expect_written(steps);
  });
}

// The paper's modes are defined on a grid of chunks; splits on the grid change nothing.
TEST(MemoryScanInvariant, ChunkModesSplitOnTheirGrid) {
  uint64_t seed = 1300;
  for (const WriteRule rule : testing::AllWriteRules()) {
    for (const ScanMode mode : {ScanMode::kChunkStart, ScanMode::kChunkMean}) {
      if (!testing::HasChunkModes(rule)) break;
      CheckSplits({.B = 2, .H = 2, .G = 1, .T = 173, .Dk = 16, .Dv = 16, .rule = rule, .mode = mode, .chunk = 8},
                  {.pad = 3}, ++seed);
    }
  }
}

}  // namespace
}  // namespace tensorcache
