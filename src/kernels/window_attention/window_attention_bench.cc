// Window attention against sgemm (forward), its own forward (backward) and the read bandwidth (decode step).
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/driver.h"
#include "core/check.h"
#include "core/rng.h"
#include "tensorcache/kernels/matmul.h"
#include "tensorcache/kernels/window_attention.h"

namespace tensorcache::bench {
namespace {

std::vector<float> RandomValues(int64_t n, uint64_t stream) {
  Rng rng(1, stream);
  std::vector<float> values(static_cast<size_t>(n));
  // Uniform with variance 1.
  for (float& x : values) x = (static_cast<float>(rng.UniformDouble()) - 0.5f) * 3.4641016f;
  return values;
}

// Contiguous (heads, T, D) arrays of one batch.
struct Problem {
  explicit Problem(const WindowAttentionShape& shape)
      : shape(shape),
        q(RandomValues(shape.H * shape.T * shape.D, 1)),
        k(RandomValues(shape.G * shape.T * shape.D, 2)),
        v(RandomValues(shape.G * shape.T * shape.Dv, 3)),
        out(static_cast<size_t>(shape.H * shape.T * shape.Dv)),
        lse(static_cast<size_t>(shape.H * shape.T)),
        scratch(static_cast<size_t>(
            std::max(WindowAttentionScratchFloats(shape), WindowAttentionBackwardScratchFloats(shape)))) {}

  WindowAttentionArgs<float> Args() {
    const int64_t T = shape.T;
    return {.shape = shape,
            .q = {.data = q.data(), .head = T * shape.D, .token = shape.D},
            .k = {.data = k.data(), .head = T * shape.D, .token = shape.D},
            .v = {.data = v.data(), .head = T * shape.Dv, .token = shape.Dv},
            .out = {.data = out.data(), .head = T * shape.Dv, .token = shape.Dv},
            .lse = {.data = lse.data(), .head = T, .token = 1}};
  }

  void Forward() { TC_CHECK(WindowAttentionForward(Args(), 0, shape.G, scratch.data()).ok()); }

  WindowAttentionShape shape;
  std::vector<float> q, k, v, out, lse, scratch;
};

// 4 D flops for each (query, key) pair that attends.
double UsefulFlops(const WindowAttentionShape& n) {
  double pairs = 0;
  for (int64_t t = 0; t < n.T; ++t) pairs += static_cast<double>(std::min(n.W, t + 1));
  return 2.0 * static_cast<double>(n.D + n.Dv) * pairs * static_cast<double>(n.H);
}

std::string Name(const WindowAttentionShape& n) {
  const std::string window = n.W == kUnboundedWindow ? "full" : "W=" + std::to_string(n.W);
  const std::string heads = n.H == n.G ? "" : " H/G=" + std::to_string(n.H / n.G);
  return "T=" + std::to_string(n.T) + " " + window + " D=" + std::to_string(n.D) + heads;
}

Row RowOf(const char* op, const std::string& shape) {
  Row row;
  row.op = std::string("window_attention ") + op;
  row.shape = shape;
  return row;
}

void BenchForward(Driver& driver, const WindowAttentionShape& shape, double goal) {
  Problem problem(shape);
  Row row = RowOf("forward", Name(shape));
  row.goal = goal;
  driver.AddFlopRow(row, UsefulFlops(shape), [&] { problem.Forward(); });
}

void BenchBackward(Driver& driver, const WindowAttentionShape& shape) {
  Problem problem(shape);
  problem.Forward();
  const std::vector<float> dout = RandomValues(static_cast<int64_t>(problem.out.size()), 4);
  std::vector<float> dq(problem.q.size()), dk(problem.k.size()), dv(problem.v.size());
  const int64_t T = shape.T;
  const auto args = problem.Args();
  const WindowAttentionGrads<float> grads{.out = {.data = problem.out.data(), .head = T * shape.Dv, .token = shape.Dv},
                                          .lse = {.data = problem.lse.data(), .head = T, .token = 1},
                                          .dout = {.data = dout.data(), .head = T * shape.Dv, .token = shape.Dv},
                                          .dq = {.data = dq.data(), .head = T * shape.D, .token = shape.D},
                                          .dk = {.data = dk.data(), .head = T * shape.D, .token = shape.D},
                                          .dv = {.data = dv.data(), .head = T * shape.Dv, .token = shape.Dv}};
  Row row = RowOf("backward", Name(shape));
  row.limit = "forward";
  driver.AddRatioRow(
      row, [&] { TC_CHECK(WindowAttentionBackward(args, grads, 0, shape.G, problem.scratch.data()).ok()); },
      [&] { problem.Forward(); });
}

std::vector<float> StoredAs(std::vector<float> values, float) { return values; }
std::vector<uint16_t> StoredAs(const std::vector<float>& values, uint16_t) {
  std::vector<uint16_t> halves(values.size());
  Fp32ToBf16(values.data(), std::ssize(values), halves.data());
  return halves;
}

// `items` key/value heads of one full ring each, R query heads to each.
template <class Stored>
void BenchStep(Driver& driver, int64_t items, int64_t R, int64_t W, int64_t D) {
  const WindowAttentionShape shape{
      .H = items * R, .G = items, .T = 1, .D = D, .Dv = D, .W = W, .P = W - 1, .position = 3 * W / 2};
  const auto q = RandomValues(shape.H * D, 1);
  const auto k = StoredAs(RandomValues(items * W * D, 2), Stored()),
             v = StoredAs(RandomValues(items * W * D, 3), Stored());
  std::vector<float> out(q.size()), scratch(static_cast<size_t>(WindowAttentionScratchFloats(shape)));
  const WindowAttentionStepArgs<float, Stored> args{.shape = shape,
                                                    .q = {.data = q.data(), .head = D},
                                                    .ring = {.k = {.data = k.data(), .head = W * D, .token = D},
                                                             .v = {.data = v.data(), .head = W * D, .token = D},
                                                             .capacity = W,
                                                             .start = W / 2 + 1},
                                                    .out = {.data = out.data(), .head = D}};
  const std::string heads = " G=" + std::to_string(items) + (R == 1 ? "" : " H/G=" + std::to_string(R));
  const char* stored = sizeof(Stored) == sizeof(float) ? "" : " bf16";
  driver.AddReadBandwidthRow(RowOf("step", "W=" + std::to_string(W) + " D=" + std::to_string(D) + heads + stored),
                             static_cast<double>(2 * items * W * D) * sizeof(Stored),
                             [&] { TC_CHECK(WindowAttentionStep(args, 0, items, scratch.data()).ok()); });
}

}  // namespace

void BenchWindowAttention(Driver& driver) {
  BenchForward(driver, {.T = 4096, .D = 64, .Dv = 64, .W = 512}, 0.4);
  BenchForward(driver, {.T = 4096, .D = 128, .Dv = 128, .W = 512}, 0);
  BenchForward(driver, {.T = 4096, .D = 64, .Dv = 64, .W = 128}, 0);
  BenchForward(driver, {.T = 4096, .D = 32, .Dv = 32, .W = 512}, 0);
  BenchForward(driver, {.T = 1024, .D = 64, .Dv = 64}, 0);
  BenchForward(driver, {.H = 4, .G = 1, .T = 1024, .D = 64, .Dv = 64, .W = 512}, 0);
  BenchBackward(driver, {.T = 4096, .D = 64, .Dv = 64, .W = 512});
  BenchBackward(driver, {.T = 1024, .D = 128, .Dv = 128});
  for (const int64_t D : {64, 128}) {
    for (const int64_t R : {1, 4}) {
      BenchStep<float>(driver, 512 * 64 / D, R, 512, D);  // 128 MB, bf16 as well: from memory
      BenchStep<uint16_t>(driver, 1024 * 64 / D, R, 512, D);
    }
  }
  for (const int64_t R : {1, 4}) {
    BenchStep<float>(driver, 2, R, 512, 64);  // 512 kB, bf16 as well: from the second-level cache
    BenchStep<uint16_t>(driver, 4, R, 512, 64);
  }
}

}  // namespace tensorcache::bench
