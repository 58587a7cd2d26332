// The bench driver: each kernel's bench adds rows, each row carries its own limit measured in the same run.
//
// These machines are noisy, so a row's time and its limit's time are measured alternately and the medians divided.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tensorcache::bench {

struct Row {
  std::string op;     // "memory_scan forward"
  std::string shape;  // "outer T=1024 D=64"
  int threads = 1;
  std::string unit;                  // "GFLOP/s", "GB/s", "x"
  double value = 0;                  // in `unit`, for the kernel
  std::string limit;                 // what the limit is: "sgemm", "read bandwidth", "copy of A", "outer forward"
  double limit_value = 0;            // in `unit`
  double fraction = 0;               // value / limit_value, or time ratio kernel / limit for unit "x"
  double goal = 0;                   // 0: none
  bool goal_is_upper_bound = false;  // true for time ratios: fraction <= goal
  double seconds = 0;                // median time of one call
};

class Driver {
 public:
  // `progress` gets a line of text per finished row; may be empty. `budget` scales the time spent per row.
  explicit Driver(std::function<void(const Row&)> on_row = {}, double seconds_per_row = 0.6);

  // Median seconds of one call of each function, measured alternately: f0 f1 .. f0 f1 .. in the same stretch of time.
  std::vector<double> MedianSeconds(const std::vector<std::function<void()>>& functions) const;

  // One row against the single-thread sgemm rate. `useful_flops` per call of `run`.
  void AddFlopRow(Row row, double useful_flops, const std::function<void()>& run);
  // One row as a ratio of times: run against baseline.
  void AddRatioRow(Row row, const std::function<void()>& run, const std::function<void()>& baseline);
  // One row against the read bandwidth of `row.threads` threads over a buffer of the same size. `run` reads `bytes`.
  void AddReadBandwidthRow(Row row, double bytes, const std::function<void()>& run);

  const std::vector<Row>& rows() const { return rows_; }

 private:
  void Finish(Row row);

  std::function<void(const Row&)> on_row_;
  double seconds_per_row_;
  std::vector<Row> rows_;
};

// limits.cc. An sgemm of 768^3 on the calling thread through the BLAS the run half uses; FLOPs in SgemmFlops().
void RunSgemm();
double SgemmFlops();
// One such sgemm on each of `threads` threads at the same time.
void RunSgemms(int threads);
// Reads `bytes` bytes of a private buffer with `threads` threads, as fast as plain SIMD sums go.
void RunRead(int64_t bytes, int threads);
// One pass data[i] *= 1 in place: reads and writes each float once. The baseline of decode steps.
void RunReadWrite(float* data, int64_t count);

// One per kernel, in src/kernels/<op>/<op>_bench.cc.
void BenchMemoryScan(Driver& driver);
void BenchWindowAttention(Driver& driver);
void BenchRope(Driver& driver);
void BenchMatmul(Driver& driver);
void BenchNorm(Driver& driver);
void BenchReadNorm(Driver& driver);
void BenchShortConv(Driver& driver);

}  // namespace tensorcache::bench
