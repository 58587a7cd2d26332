// The limits of the machine that bench rows are compared with: the rate of sgemm, of reading, of reading and writing.
#include <cblas.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "bench/driver.h"
#include "core/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/limits.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tensorcache::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Eight independent sums hide the latency of the adds in L1. Prefetching a page ahead pays a little in buffers larger
// than the last-level cache, where the hardware's prefetcher stops at the end of each page.
float Sum(const float* HWY_RESTRICT data, int64_t count) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kPageFloats = 1024;
  constexpr int64_t kLineFloats = 16;
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
  int64_t i = 0;
  for (; i + 8 * lanes <= count; i += 8 * lanes) {
    for (int64_t j = 0; j < 8 * lanes; j += kLineFloats) hwy::Prefetch(data + i + kPageFloats + j);
    s0 = hn::Add(s0, hn::LoadU(d, data + i));
    s1 = hn::Add(s1, hn::LoadU(d, data + i + lanes));
    s2 = hn::Add(s2, hn::LoadU(d, data + i + 2 * lanes));
    s3 = hn::Add(s3, hn::LoadU(d, data + i + 3 * lanes));
    s4 = hn::Add(s4, hn::LoadU(d, data + i + 4 * lanes));
    s5 = hn::Add(s5, hn::LoadU(d, data + i + 5 * lanes));
    s6 = hn::Add(s6, hn::LoadU(d, data + i + 6 * lanes));
    s7 = hn::Add(s7, hn::LoadU(d, data + i + 7 * lanes));
  }
  const auto sum = hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), hn::Add(hn::Add(s4, s5), hn::Add(s6, s7)));
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < count; ++i) total += data[i];
  return total;
}

void Scale(float* HWY_RESTRICT data, int64_t count, float factor) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto c = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    for (int64_t j = i; j < i + 4 * lanes; j += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, data + j), c), d, data + j);
  }
  for (; i < count; ++i) data[i] *= factor;
}

}  // namespace tensorcache::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

// Only OpenBLAS has it; another BLAS is told through its own environment variable.
extern "C" void openblas_set_num_threads(int threads) __attribute__((weak));

namespace tensorcache::bench {
namespace {

HWY_EXPORT(Sum);
HWY_EXPORT(Scale);

constexpr int kSgemmSize = 768;

// Results go here, so that the compiler cannot drop the work that made them.
std::atomic<float> sink;
volatile float one = 1.0f;

ThreadPool& PoolOf(int threads) {
  static std::map<int, std::unique_ptr<ThreadPool>> pools;
  std::unique_ptr<ThreadPool>& pool = pools[threads];
  if (pool == nullptr) pool = std::make_unique<ThreadPool>(threads);
  return *pool;
}

}  // namespace

void RunSgemm() {
  static const bool configured = [] {
    if (openblas_set_num_threads != nullptr) openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(configured);
  constexpr int n = kSgemmSize;
  static const std::vector<float> a(n * n, 0.5f), b(n * n, 0.25f);
  static std::vector<float> c(n * n);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1.0f, a.data(), n, b.data(), n, 0.0f, c.data(), n);
  sink.store(c[0], std::memory_order_relaxed);
}

double SgemmFlops() { return 2.0 * kSgemmSize * kSgemmSize * kSgemmSize; }

void RunRead(int64_t bytes, int threads) {
  static std::vector<float> buffer;
  constexpr int64_t kLine = 16;  // floats
  const int64_t lines = bytes / static_cast<int64_t>(sizeof(float)) / kLine;
  if (std::ssize(buffer) < (lines + 1) * kLine) buffer.assign((lines + 1) * kLine, 1.0f);
  const uintptr_t misaligned = reinterpret_cast<uintptr_t>(buffer.data()) / sizeof(float) % kLine;
  const float* aligned = buffer.data() + (kLine - misaligned) % kLine;
  PoolOf(threads).ParallelFor(lines, 1024, [&](int64_t begin, int64_t end, int) {
    const float sum = HWY_DYNAMIC_DISPATCH(Sum)(aligned + begin * kLine, (end - begin) * kLine);
    sink.store(sum, std::memory_order_relaxed);
  });
}

void RunReadWrite(float* data, int64_t count) { HWY_DYNAMIC_DISPATCH(Scale)(data, count, one); }

}  // namespace tensorcache::bench

#endif  // HWY_ONCE
