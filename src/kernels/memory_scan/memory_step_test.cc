// What a step says of a state that left the finite numbers. That its numbers are right is in memory_scan_invariant_test.cc.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/memory_scan/memory_scan_testing.h"
#include "tensorcache/kernels/memory_scan.h"
#include "testing/kernel_testing.h"

namespace tensorcache {
namespace {

using testing::ForEachTarget;
using testing::RandomScanProblem;
using testing::RowBuffer;
using testing::ScanProblem;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Steps over the tokens of a random problem, all of which are written.
struct Steps {
  Steps(const MemoryScanShape& s, const testing::ScanOptions& o, uint64_t seed = 5)
      : problem(RandomScanProblem(s, o, seed)), state(s.B, s.G, s.Dk, s.Dv, 1), reads(s.B, s.H, 1, s.Dv, 1) {
    state.ForEach([](float& x) { x = 0.5f; });
  }

  MemoryStepArgs Args(int64_t t) {
    const MemoryScanShape& s = problem.shape;
    MemoryStepArgs args{.B = s.B, .H = s.H, .G = s.G, .Dk = s.Dk, .Dv = s.Dv, .rule = s.rule};
    const auto from = [t](Rows<const float> rows) {
      rows.data += t * rows.token;
      return rows;
    };
    const MemoryWrites<const float> all = problem.Writes();
    args.evicted = {.k = from(all.k),
                    .v = from(all.v),
                    .log_decay = from(all.log_decay),
                    .write_strength = from(all.write_strength)};
    args.q = from(problem.q.crows());
    args.state = state.rows();
    args.reads = reads.rows();
    return args;
  }
  Status Run(const MemoryStepArgs& args) { return MemoryStep(args, 0, args.B * args.G); }
  bool StateIsFinite() const {
    const std::vector<float> values = state.Values();
    return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
  }

  ScanProblem<float> problem;
  RowBuffer state, reads;
};

TEST(MemoryStep, InfiniteValueIsReportedWithItsHead) {
  ForEachTarget([&](const std::string&) {
    for (const WriteRule rule : testing::AllWriteRules()) {
      for (const bool reads : {true, false}) {
        SCOPED_TRACE(testing::RuleName(rule) + (reads ? ", read" : ", not read"));
        Steps steps({.B = 2, .H = 6, .G = 3, .T = 1, .Dk = 20, .Dv = 20, .rule = rule}, {});
        MemoryStepArgs args = steps.Args(0);
        if (!reads) args.q = {};
        EXPECT_TRUE(steps.Run(args).ok());
        steps.problem.v.Row(1, 2, 0)[7] = kInfinity;
        steps.problem.v.Row(1, 1, 0)[19] = -kInfinity;
        const Status status = steps.Run(args);
        EXPECT_EQ(status.code(), StatusCode::kDiverged);
        EXPECT_NE(status.message().find("batch row 1, head 1 left the finite numbers"), std::string::npos)
            << status.message();
      }
    }
  });
}

// Step by step, the answer is what a look at the whole state says.
TEST(MemoryStep, DivergingDeltaRuleIsReportedWhenItHappens) {
  ForEachTarget([&](const std::string&) {
    for (const WriteRule rule : {WriteRule::kDelta, WriteRule::kGatedDelta}) {
      for (const bool reads : {true, false}) {
        SCOPED_TRACE(testing::RuleName(rule) + (reads ? ", read" : ", not read"));
        Steps steps({.H = 2, .G = 1, .T = 40, .Dk = 32, .Dv = 33, .rule = rule}, {.key_norm = 1e3});
        int64_t t = 0;
        for (; t < 40 && steps.StateIsFinite(); ++t) {
          MemoryStepArgs args = steps.Args(t);
          if (!reads) args.q = {};
          const Status status = steps.Run(args);
          EXPECT_EQ(status.ok(), steps.StateIsFinite()) << "token " << t;
          if (status.ok()) continue;
          EXPECT_EQ(status.code(), StatusCode::kDiverged);
          EXPECT_NE(status.message().find("normalise the keys"), std::string::npos) << status.message();
        }
        EXPECT_GT(t, 1);
        EXPECT_LT(t, 40) << "the state should have diverged";
      }
    }
  });
}

// One bad number anywhere, at widths with every kind of rest, also where the query is 0.
TEST(MemoryStep, NoNumberOfTheStateIsOverlooked) {
  ForEachTarget([&](const std::string&) {
    for (const int64_t Dv : {1, 3, 16, 37, 64, 130}) {
      Steps steps({.H = 1, .G = 1, .T = 1, .Dk = 3, .Dv = Dv}, {});
      std::fill_n(steps.problem.q.Row(0, 0, 0), 3, 0.0f);
      MemoryStepArgs only_read = steps.Args(0), only_write = steps.Args(0);
      only_read.evicted = {};
      only_write.q = {};
      for (int64_t i = 0; i < 3; ++i) {
        for (int64_t j = 0; j < Dv; ++j) {
          for (const float bad : {kInfinity, -kInfinity, kNan}) {
            for (const MemoryStepArgs& args : {only_read, only_write}) {
              float& x = steps.state.Row(0, 0, i)[j];
              const float before = x;
              x = bad;
              ASSERT_EQ(steps.Run(args).code(), StatusCode::kDiverged) << Dv << ": " << i << ", " << j;
              x = before;
              ASSERT_TRUE(steps.Run(args).ok()) << Dv << ": " << i << ", " << j;
            }
          }
        }
      }
    }
  });
}

// As in the scan: only states are judged.
TEST(MemoryStep, ReadsOfAFiniteStateMayOverflow) {
  ForEachTarget([&](const std::string&) {
    Steps steps({.H = 5, .G = 1, .T = 1, .Dk = 20, .Dv = 20}, {});
    for (const float q : {kInfinity, kNan, 3e38f}) {
      for (int64_t h = 0; h < 5; ++h) std::fill_n(steps.problem.q.Row(0, h, 0), 20, q);
      EXPECT_TRUE(steps.Run(steps.Args(0)).ok());
      EXPECT_FALSE(std::isfinite(steps.reads.Row(0, 0, 0)[0]));
    }
  });
}

TEST(MemoryStep, WithoutWriteAndReadNothingIsTouched) {
  Steps steps({.H = 1, .G = 1, .T = 1, .Dk = 4, .Dv = 4}, {});
  MemoryStepArgs args = steps.Args(0);
  args.evicted = {};
  args.q = {};
  steps.state.Row(0, 0, 0)[0] = kNan;
  EXPECT_TRUE(steps.Run(args).ok());
  EXPECT_EQ(steps.state.Row(0, 0, 3)[3], 0.5f);
}

}  // namespace
}  // namespace tensorcache
