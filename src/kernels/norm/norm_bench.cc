#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "bench/driver.h"
#include "core/rng.h"
#include "kernels/norm/activation.h"
#include "tensorcache/kernels/norm.h"

namespace tensorcache::bench {
namespace {

constexpr int64_t kRows = 32;
constexpr int64_t kWidth = 768;
constexpr size_t kSize = kRows * kWidth;

struct Buffers {
  Buffers() : x(kSize), b(kSize), y(kSize), z(kSize), weight(kWidth, 1.1f), bias(kWidth, 0.1f), dweight(kWidth) {
    Rng rng(1);
    for (float& v : x) v = static_cast<float>(rng.Normal());
    for (float& v : b) v = static_cast<float>(rng.Normal());
  }
  std::vector<float> x, b, y, z, weight, bias, dweight;
};

// Against a copy of as many arrays as the kernel reads.
void Add(Driver& driver, const char* op, int arrays, Buffers& buffers, const std::function<void()>& run) {
  Row row;
  row.op = op;
  row.shape = fmt::format("rows={} width={}", kRows, kWidth);
  row.limit = arrays == 1 ? "copy of the rows" : "copy of both inputs";
  driver.AddRatioRow(std::move(row), run, [&buffers, arrays] {
    std::memcpy(buffers.y.data(), buffers.x.data(), kSize * sizeof(float));
    if (arrays == 2) std::memcpy(buffers.z.data(), buffers.b.data(), kSize * sizeof(float));
  });
}

}  // namespace

void BenchNorm(Driver& driver) {
  Buffers buf;
  const NormArgs forward = {.rows = kRows,
                            .width = kWidth,
                            .x = buf.x.data(),
                            .x_stride = kWidth,
                            .weight = buf.weight.data(),
                            .y = buf.y.data(),
                            .y_stride = kWidth};
  const NormBackwardArgs backward = {.rows = kRows,
                                     .width = kWidth,
                                     .x = buf.x.data(),
                                     .x_stride = kWidth,
                                     .weight = buf.weight.data(),
                                     .dy = buf.b.data(),
                                     .dy_stride = kWidth,
                                     .dx = buf.y.data(),
                                     .dx_stride = kWidth,
                                     .dweight = buf.dweight.data()};
  Add(driver, "LayerNorm forward", 1, buf, [&] { LayerNorm(forward); });
  Add(driver, "LayerNorm backward", 2, buf, [&] { LayerNormBackward(backward); });
  Add(driver, "RMSNorm forward", 1, buf, [&] { RmsNorm(forward); });
  Add(driver, "RMSNorm backward", 2, buf, [&] { RmsNormBackward(backward); });
  const auto gate = [&](Activation activation) {
    Gate({.activation = activation,
          .rows = kRows,
          .width = kWidth,
          .a = buf.x.data(),
          .a_stride = kWidth,
          .b = buf.b.data(),
          .b_stride = kWidth,
          .y = buf.y.data(),
          .y_stride = kWidth});
  };
  Add(driver, "SiLU gate", 2, buf, [&] { gate(Activation::kSilu); });
  Add(driver, "GELU gate", 2, buf, [&] { gate(Activation::kGelu); });
  Add(driver, "GELU tanh gate", 2, buf, [&] { gate(Activation::kGeluTanh); });
  Add(driver, "SiLU gate backward", 2, buf, [&] {
    GateBackward({.activation = Activation::kSilu,
                  .rows = kRows,
                  .width = kWidth,
                  .a = buf.x.data(),
                  .a_stride = kWidth,
                  .b = buf.b.data(),
                  .b_stride = kWidth,
                  .dy = buf.b.data(),
                  .dy_stride = kWidth,
                  .da = buf.y.data(),
                  .da_stride = kWidth,
                  .db = buf.z.data(),
                  .db_stride = kWidth});
  });
}

}  // namespace tensorcache::bench
