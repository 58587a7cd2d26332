#include <fmt/format.h>

#include <cstring>
#include <utility>
#include <vector>

#include "bench/driver.h"
#include "core/rng.h"
#include "tensorcache/kernels/short_conv.h"

namespace tensorcache::bench {
namespace {

std::vector<float> Random(int64_t size, Rng& rng) {
  std::vector<float> x(static_cast<size_t>(size));
  for (float& v : x) v = static_cast<float>(rng.Normal());
  return x;
}

// (B, H, T, D) = (1, H, T, D) in the order (T, H, D), as projections leave it.
template <class Real>
Rows<Real> TokenMajor(Real* data, const ShortConvShape& n) {
  return {.data = data, .head = n.D, .token = n.H * n.D};
}

// Against copies of what is read to where it is written: the least that any kernel could do.
struct Buffers {
  explicit Buffers(const ShortConvShape& n)
      : n(n),
        x(Random(n.H * n.T * n.D, rng)),
        d_y(Random(n.H * n.T * n.D, rng)),
        weight(Random(n.H * n.taps * n.D, rng)),
        past(Random(n.H * n.taps * n.D, rng)),
        y(x.size()),
        d_weight(weight.size()),
        d_past(past.size()),
        copy(x.size() + past.size() + weight.size()),
        scratch(static_cast<size_t>(ShortConvBackwardScratchFloats(n))) {}

  ShortConvForwardArgs<float> Forward() {
    return {.shape = n,
            .x = TokenMajor<const float>(x.data(), n),
            .weight = weight.data(),
            .past = {.data = past.data(), .head = n.taps * n.D, .token = n.D},
            .y = TokenMajor<float>(y.data(), n)};
  }
  ShortConvBackwardArgs<float> Backward() {
    return {.shape = n,
            .x = TokenMajor<const float>(x.data(), n),
            .weight = weight.data(),
            .past = {.data = past.data(), .head = n.taps * n.D, .token = n.D},
            .d_y = TokenMajor<const float>(d_y.data(), n),
            .d_x = TokenMajor<float>(y.data(), n),
            .d_weight = {.data = d_weight.data(), .head = n.taps * n.D, .token = n.D},
            .d_past = {.data = d_past.data(), .head = n.taps * n.D, .token = n.D}};
  }
  void Copy(const std::vector<float>& from, size_t at = 0) {
    std::memcpy(copy.data() + at, from.data(), from.size() * sizeof(float));
  }
  Row NewRow(const char* op, const char* limit) const {
    Row row;
    row.op = op;
    row.shape = fmt::format("{} taps T={} H={} D={}{}", n.taps, n.T, n.H, n.D, n.unit ? " unit" : "");
    row.limit = limit;
    return row;
  }

  Rng rng{1};
  ShortConvShape n;
  std::vector<float> x, d_y, weight, past, y, d_weight, d_past, copy, scratch;
};

void Blocks(Driver& driver, const ShortConvShape& shape) {
  Buffers buf(shape);
  const auto forward = buf.Forward();
  const auto backward = buf.Backward();
  driver.AddRatioRow(
      buf.NewRow("short_conv forward", "copy of the rows"), [&] { ShortConvForward(forward, 0, shape.H); },
      [&] { buf.Copy(buf.x); });
  driver.AddRatioRow(
      buf.NewRow("short_conv backward", "copy of both inputs"),
      [&] { ShortConvBackward(backward, 0, shape.H, buf.scratch.data()); },
      [&] {
        buf.Copy(buf.x);
        buf.Copy(buf.d_y);
      });
}

void Step(Driver& driver, const ShortConvShape& shape) {
  Buffers buf(shape);
  const auto forward = buf.Forward();
  driver.AddRatioRow(
      buf.NewRow("short_conv step", "copy of its inputs"), [&] { ShortConvForward(forward, 0, shape.H); },
      [&] {
        buf.Copy(buf.x);
        buf.Copy(buf.past, buf.x.size());
        buf.Copy(buf.weight, buf.x.size() + buf.past.size());
      });
}

}  // namespace

void BenchShortConv(Driver& driver) {
  for (const bool unit : {false, true}) {
    Blocks(driver, {.H = 8, .T = 256, .D = 64, .taps = 4, .unit = unit});
    Step(driver, {.H = 1, .T = 1, .D = 64, .taps = 4, .unit = unit});
  }
  Blocks(driver, {.H = 8, .T = 256, .D = 64, .taps = 16, .unit = true});
}

}  // namespace tensorcache::bench
