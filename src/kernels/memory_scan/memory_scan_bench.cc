#include <fmt/format.h>
#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "bench/driver.h"
#include "core/check.h"
#include "kernels/memory_scan/memory_scan_testing.h"
#include "tensorcache/kernels/memory_scan.h"

namespace tensorcache::bench {
namespace {

using testing::RandomScanProblem;
using testing::RowBuffer;
using testing::RuleName;
using testing::ScanGradients;
using testing::ScanProblem;

// One head, 1024 tokens, everything it needs.
struct ScanCase {
  ScanCase(WriteRule rule, int64_t D, bool per_token)
      : shape{.T = 1024, .Dk = D, .Dv = D, .rule = rule},
        problem(RandomScanProblem(shape, {.constant_per_head = !per_token, .zero_initial = true}, 1)),
        reads(1, 1, shape.T, D, 0),
        final_state(1, 1, D, D, 0),
        gradients(shape),
        scratch(static_cast<size_t>(std::max(MemoryScanScratchFloats(shape), MemoryScanBackwardScratchFloats(shape)))),
        saved(static_cast<size_t>(MemoryScanSavedFloats(shape))) {
    forward = problem.Forward();
    forward.reads = reads.rows();
    forward.final_state = final_state.rows();
    forward.saved = saved.data();
    backward = problem.Backward();
    backward.saved = saved.data();
    gradients.Attach(&backward);
    Forward();
  }
  void Forward() { TC_CHECK(MemoryScanForward(forward, 0, 1, scratch.data()).ok()); }
  void Backward() { TC_CHECK(MemoryScanBackward(backward, 0, 1, scratch.data()).ok()); }
  // What the recurrence itself needs, whatever the chunked form adds: one read and one write of A per token.
  double UsefulFlops() const { return 4.0 * static_cast<double>(shape.T * shape.Dk * shape.Dv); }
  std::string Shape() const { return fmt::format("{} T={} D={}", RuleName(shape.rule), shape.T, shape.Dk); }

  MemoryScanShape shape;
  ScanProblem<float> problem;
  RowBuffer reads, final_state;
  ScanGradients<float> gradients;
  std::vector<float> scratch, saved;
  MemoryScanForwardArgs<float> forward;
  MemoryScanBackwardArgs<float> backward;
};

void BenchScan(Driver& driver) {
  for (const auto& [D, goal] : {std::pair<int64_t, double>{32, 0.30}, {64, 0.40}, {128, 0.0}}) {
    ScanCase outer(WriteRule::kOuter, D, false), delta(WriteRule::kDelta, D, false), wedge(WriteRule::kWedge, D, false);
    ScanCase gated_delta(WriteRule::kGatedDelta, D, false), per_token(WriteRule::kOuter, D, true);
    const std::function<void()> outer_forward = [&] { outer.Forward(); };
    driver.AddFlopRow({.op = "memory_scan forward", .shape = outer.Shape(), .goal = goal}, outer.UsefulFlops(),
                      outer_forward);
    driver.AddFlopRow({.op = "memory_scan forward", .shape = outer.Shape() + " decay per token"},
                      per_token.UsefulFlops(), [&] { per_token.Forward(); });
    driver.AddRatioRow(
        {.op = "memory_scan forward", .shape = delta.Shape(), .limit = "outer forward", .goal = 2.5},
        [&] { delta.Forward(); }, outer_forward);
    driver.AddRatioRow(
        {.op = "memory_scan forward", .shape = gated_delta.Shape(), .limit = "outer forward", .goal = 2.5},
        [&] { gated_delta.Forward(); }, outer_forward);
    driver.AddRatioRow(
        {.op = "memory_scan forward", .shape = wedge.Shape(), .limit = "outer forward"}, [&] { wedge.Forward(); },
        outer_forward);
    for (ScanCase* c : {&outer, &delta, &gated_delta, &wedge}) {
      driver.AddRatioRow(
          {.op = "memory_scan backward", .shape = c->Shape(), .limit = "its forward", .goal = 3.0},
          [c] { c->Backward(); }, [c] { c->Forward(); });
    }
  }
}

// One decode step over `heads` states: the states stay in the cache level that holds them all.
struct StepCase {
  int64_t heads;
  int64_t D;
  WriteRule rule;
  const char* level;
};

void BenchStep(Driver& driver, const StepCase& c) {
  const int64_t heads = c.heads, D = c.D;
  // (heads, D, D), aligned to cache lines as a runtime would keep it.
  const auto state = hwy::AllocateAligned<float>(static_cast<size_t>(heads * D * D));
  const Rows<float> rows{.data = state.get(), .batch = 0, .head = D * D, .token = D};
  std::fill_n(rows.data, heads * D * D, 0.01f);
  const ScanProblem<float> p =
      RandomScanProblem({.H = heads, .G = heads, .T = 1, .Dk = D, .Dv = D, .rule = c.rule}, {}, 4);
  RowBuffer reads(1, heads, 1, D, 0);
  MemoryStepArgs args;
  args.H = args.G = heads;
  args.Dk = args.Dv = D;
  args.rule = c.rule;
  args.evicted = p.Writes();
  args.q = p.q.crows();
  args.state = rows;
  args.reads = reads.rows();
  driver.AddRatioRow(
      {.op = "memory_scan step",
       .shape = fmt::format("{} D={} {} heads ({})", RuleName(c.rule), D, heads, c.level),
       .limit = "read+write of A",
       .goal = 1.5},
      [&] { TC_CHECK(MemoryStep(args, 0, heads).ok()); }, [&] { RunReadWrite(rows.data, heads * D * D); });
}

}  // namespace

void BenchMemoryScan(Driver& driver) {
  BenchScan(driver);
  for (const WriteRule rule : testing::AllWriteRules()) {
    BenchStep(driver, {1, 64, rule, "L1"});
    BenchStep(driver, {32, 64, rule, "L2"});
    BenchStep(driver, {144, 64, rule, "L3"});
    BenchStep(driver, {4096, 64, rule, "memory"});
    BenchStep(driver, {64, 128, rule, "L3"});
  }
}

}  // namespace tensorcache::bench
