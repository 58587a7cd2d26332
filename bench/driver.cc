#include "bench/driver.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/statistics.h"

namespace tensorcache::bench {
namespace {

double Seconds(const std::function<void()>& run, int64_t calls) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / static_cast<double>(calls);
}

// Calls that together take about `target` seconds, so that the clock's grain does not matter.
int64_t CallsFor(const std::function<void()>& run, double target) {
  run();  // warm caches and page in
  int64_t calls = 1;
  while (true) {
    const double total = Seconds(run, calls) * static_cast<double>(calls);
    if (total >= target / 2) return calls;
    calls = std::max(calls + 1,
                     static_cast<int64_t>(static_cast<double>(calls) * std::min(8.0, target / std::max(total, 1e-9))));
  }
}

}  // namespace

Driver::Driver(std::function<void(const Row&)> on_row, double seconds_per_row)
    : on_row_(std::move(on_row)), seconds_per_row_(seconds_per_row) {}

std::vector<double> Driver::MedianSeconds(const std::vector<std::function<void()>>& functions) const {
  constexpr int kRepeats = 15;
  const double slice = seconds_per_row_ / kRepeats / static_cast<double>(functions.size());
  std::vector<int64_t> calls;
  for (const auto& run : functions) calls.push_back(CallsFor(run, slice));
  std::vector<std::vector<double>> seconds(functions.size());
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    for (size_t i = 0; i < functions.size(); ++i) seconds[i].push_back(Seconds(functions[i], calls[i]));
  }
  std::vector<double> medians;
  for (auto& values : seconds) medians.push_back(Median(std::move(values)));
  return medians;
}

void Driver::AddFlopRow(Row row, double useful_flops, const std::function<void()>& run) {
  const auto seconds = MedianSeconds({run, RunSgemm});
  row.unit = "GFLOP/s";
  row.limit = "sgemm";
  row.seconds = seconds[0];
  row.value = useful_flops / seconds[0] * 1e-9;
  row.limit_value = SgemmFlops() / seconds[1] * 1e-9;
  row.fraction = row.value / row.limit_value;
  Finish(std::move(row));
}

void Driver::AddRatioRow(Row row, const std::function<void()>& run, const std::function<void()>& baseline) {
  const auto seconds = MedianSeconds({run, baseline});
  row.unit = "us";
  row.seconds = seconds[0];
  row.value = seconds[0] * 1e6;
  row.limit_value = seconds[1] * 1e6;
  row.fraction = seconds[0] / seconds[1];
  row.goal_is_upper_bound = true;
  Finish(std::move(row));
}

void Driver::AddReadBandwidthRow(Row row, double bytes, const std::function<void()>& run) {
  const int threads = row.threads;
  const auto seconds = MedianSeconds({run, [bytes, threads] { RunRead(static_cast<int64_t>(bytes), threads); }});
  row.unit = "GB/s";
  row.limit = "read bandwidth";
  row.seconds = seconds[0];
  row.value = bytes / seconds[0] * 1e-9;
  row.limit_value = bytes / seconds[1] * 1e-9;
  row.fraction = row.value / row.limit_value;
  Finish(std::move(row));
}

void Driver::Finish(Row row) {
  rows_.push_back(std::move(row));
  if (on_row_) on_row_(rows_.back());
}

}  // namespace tensorcache::bench
