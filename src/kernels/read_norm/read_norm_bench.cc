// The norm of reads against a copy of what it reads.
#include <fmt/format.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "bench/driver.h"
#include "core/rng.h"
#include "tensorcache/kernels/read_norm.h"

namespace tensorcache::bench {
namespace {

std::vector<float> RandomValues(int64_t n, uint64_t stream) {
  Rng rng(1, stream);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& x : values) x = static_cast<float>(rng.Normal());
  return values;
}

// Reads (T, H, D) of one sequence, as a model has them.
struct Problem {
  explicit Problem(const ReadNormShape& shape)
      : shape(shape),
        size(static_cast<size_t>(shape.H * shape.T * shape.D)),
        x(RandomValues(shape.H * shape.T * shape.D, 1)),
        d_y(RandomValues(shape.H * shape.T * shape.D, 2)),
        gamma(static_cast<size_t>(shape.H * shape.D), 1.1f),
        c(static_cast<size_t>(shape.H), 0.9f),
        y(size),
        z(size),
        d_gamma(gamma.size()),
        d_c(c.size()) {}

  template <class Real>
  Rows<Real> Strided(Real* data) const {
    return {.data = data, .head = shape.D, .token = shape.H * shape.D};
  }
  ReadNormForwardArgs<float> Forward(bool soft) {
    return {.shape = shape,
            .x = Strided<const float>(x.data()),
            .gamma = gamma.data(),
            .c = soft ? c.data() : nullptr,
            .y = Strided(y.data())};
  }
  ReadNormBackwardArgs<float> Backward() {
    return {.shape = shape,
            .x = Strided<const float>(x.data()),
            .gamma = gamma.data(),
            .c = c.data(),
            .d_y = Strided<const float>(d_y.data()),
            .d_x = Strided(y.data()),
            .d_gamma = d_gamma.data(),
            .d_c = d_c.data()};
  }

  ReadNormShape shape;
  size_t size;
  std::vector<float> x, d_y, gamma, c, y, z, d_gamma, d_c;
};

Row NewRow(const char* op, const ReadNormShape& n, const char* limit) {
  Row row;
  row.op = std::string("read_norm ") + op;
  row.shape = fmt::format("T={} H={} D={}", n.T, n.H, n.D);
  row.limit = limit;
  return row;
}

void BenchForward(Driver& driver, const ReadNormShape& shape, bool soft) {
  Problem problem(shape);
  const ReadNormForwardArgs<float> args = problem.Forward(soft);
  driver.AddRatioRow(
      NewRow(soft ? "soft forward" : "hard forward", shape, "copy of the rows"),
      [&] { ReadNormForward(args, 0, shape.H); },
      [&] { std::memcpy(problem.y.data(), problem.x.data(), problem.size * sizeof(float)); });
}

void BenchBackward(Driver& driver, const ReadNormShape& shape) {
  Problem problem(shape);
  const ReadNormBackwardArgs<float> args = problem.Backward();
  driver.AddRatioRow(
      NewRow("soft backward", shape, "copy of both inputs"), [&] { ReadNormBackward(args, 0, shape.H); },
      [&] {
        std::memcpy(problem.y.data(), problem.x.data(), problem.size * sizeof(float));
        std::memcpy(problem.z.data(), problem.d_y.data(), problem.size * sizeof(float));
      });
}

}  // namespace

void BenchReadNorm(Driver& driver) {
  BenchForward(driver, {.H = 1, .T = 1, .D = 64}, true);  // decoding: a head at a time
  BenchForward(driver, {.H = 4, .T = 1, .D = 128}, true);
  BenchForward(driver, {.H = 12, .T = 64, .D = 64}, true);
  BenchForward(driver, {.H = 12, .T = 64, .D = 64}, false);
  BenchForward(driver, {.H = 12, .T = 4096, .D = 64}, true);  // from memory
  BenchBackward(driver, {.H = 12, .T = 64, .D = 64});
  BenchBackward(driver, {.H = 12, .T = 4096, .D = 64});
}

}  // namespace tensorcache::bench
