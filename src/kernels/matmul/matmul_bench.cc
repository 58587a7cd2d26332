#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bench/driver.h"
#include "core/rng.h"
#include "core/thread_pool.h"
#include "tensorcache/kernels/matmul.h"

namespace tensorcache::bench {
namespace {

constexpr int64_t kGroup = 64;

Row NewRow(std::string op, std::string shape, int threads = 1, double goal = 0) {
  Row row;
  row.op = std::move(op);
  row.shape = std::move(shape);
  row.threads = threads;
  row.goal = goal;
  return row;
}

std::vector<float> Uniforms(int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = static_cast<float>(rng.UniformDouble()) - 0.5f;
  return values;
}

// The three storages of one [out, in] matrix. Only the time of reading them matters, so the values are cheap to make.
struct Fp32Matrix {
  Fp32Matrix(int64_t out, int64_t in) : data(static_cast<size_t>(out * in), 0.01f), in(in) {}
  Fp32Weights weights() const { return {.data = data.data(), .stride = in}; }
  double bytes() const { return 4.0 * static_cast<double>(data.size()); }
  static constexpr const char* kName = "fp32";
  std::vector<float> data;
  int64_t in;
};

struct Bf16Matrix {
  Bf16Matrix(int64_t out, int64_t in) : data(static_cast<size_t>(out * in), 0x3C24), in(in) {}
  Bf16Weights weights() const { return {.data = data.data(), .stride = in}; }
  double bytes() const { return 2.0 * static_cast<double>(data.size()); }
  static constexpr const char* kName = "bf16";
  std::vector<uint16_t> data;
  int64_t in;
};

struct Int8Matrix {
  Int8Matrix(int64_t out, int64_t in)
      : data(static_cast<size_t>(out * in), 3),
        scales(static_cast<size_t>(out * Int8Groups(in, kGroup)), 0.003f),
        in(in) {}
  Int8Weights weights() const {
    return {.data = data.data(),
            .stride = in,
            .scales = scales.data(),
            .scale_stride = Int8Groups(in, kGroup),
            .group = kGroup};
  }
  double bytes() const { return static_cast<double>(data.size()) + 4.0 * static_cast<double>(scales.size()); }
  static constexpr const char* kName = "int8";
  std::vector<int8_t> data;
  std::vector<float> scales;
  int64_t in;
};

// One token through a matrix of about 200 MB, two threads with a contiguous half each.
template <class Matrix>
void MatrixVector(Driver& driver, int64_t in, double goal) {
  constexpr double kBytes = 200e6;
  const double row_bytes = Matrix(1, in).bytes();
  const int64_t out = static_cast<int64_t>(kBytes / row_bytes) / 8 * 8;
  const Matrix matrix(out, in);
  const std::vector<float> x = Uniforms(in, 1);
  std::vector<float> y(static_cast<size_t>(out));
  ThreadPool pool(2);
  driver.AddReadBandwidthRow(
      NewRow("matmul matrix-vector", fmt::format("{} out={} in={}", Matrix::kName, out, in), 2, goal), matrix.bytes(),
      [&] {
        pool.ParallelFor(out, 64, [&](int64_t begin, int64_t end, int) {
          LinearSmall(matrix.weights(), {.x = x.data(),
                                         .x_stride = in,
                                         .y = y.data(),
                                         .y_stride = out,
                                         .n = 1,
                                         .in = in,
                                         .begin = begin,
                                         .end = end});
        });
      });
}

template <class Matrix>
void SmallBatch(Driver& driver, int64_t n) {
  constexpr int64_t kIn = 768;
  constexpr int64_t kOut = 3072;
  const Matrix matrix(kOut, kIn);
  const std::vector<float> x = Uniforms(n * kIn, 2);
  std::vector<float> y(static_cast<size_t>(n * kOut));
  driver.AddFlopRow(NewRow("matmul small batch", fmt::format("{} n={} out={} in={}", Matrix::kName, n, kOut, kIn)),
                    2.0 * static_cast<double>(n * kIn * kOut), [&] {
                      LinearSmall(matrix.weights(), {.x = x.data(),
                                                     .x_stride = kIn,
                                                     .y = y.data(),
                                                     .y_stride = kOut,
                                                     .n = n,
                                                     .in = kIn,
                                                     .begin = 0,
                                                     .end = kOut});
                    });
}

template <class Matrix>
void LargeBatch(Driver& driver, int64_t n) {
  constexpr int64_t kIn = 768;
  constexpr int64_t kOut = 3072;
  const Matrix matrix(kOut, kIn);
  const std::vector<float> x = Uniforms(n * kIn, 3);
  std::vector<float> y(static_cast<size_t>(n * kOut));
  std::vector<float> scratch(static_cast<size_t>(LinearScratchSize(n, kIn)));
  const LinearArgs args = {
      .x = x.data(), .x_stride = kIn, .y = y.data(), .y_stride = kOut, .n = n, .in = kIn, .begin = 0, .end = kOut};
  driver.AddFlopRow(NewRow("matmul batch", fmt::format("{} n={} out={} in={}", Matrix::kName, n, kOut, kIn)),
                    2.0 * static_cast<double>(n * kIn * kOut), [&] {
                      if constexpr (requires { Linear(matrix.weights(), args); }) {
                        Linear(matrix.weights(), args);
                      } else {
                        Linear(matrix.weights(), args, scratch.data());
                      }
                    });
}

}  // namespace

void BenchMatmul(Driver& driver) {
  for (const int64_t in : {768, 4096}) {
    MatrixVector<Fp32Matrix>(driver, in, 0.85);
    MatrixVector<Bf16Matrix>(driver, in, 0.85);
    MatrixVector<Int8Matrix>(driver, in, 0.75);
  }
  for (const int64_t n : {8, 32}) {
    SmallBatch<Fp32Matrix>(driver, n);
    SmallBatch<Bf16Matrix>(driver, n);
    SmallBatch<Int8Matrix>(driver, n);
  }
  for (const int64_t n : {64, 512}) {
    LargeBatch<Fp32Matrix>(driver, n);
    LargeBatch<Bf16Matrix>(driver, n);
    LargeBatch<Int8Matrix>(driver, n);
  }
}

}  // namespace tensorcache::bench
