// The limits of the machine that bench rows are compared with: the rate of sgemm, of reading, of reading and writing.
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "bench/driver.h"
#include "core/thread_pool.h"
#include "tensorcache/kernels/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/limits.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tensorcache::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Eight streams, each with its own sum: from memory, prefetchers follow several streams 1.5 times as fast as one, and
// sixteen no faster (measured on Zen 4); in L1 eight sums hide the latency of the adds. Lines are prefetched a kilobyte
// ahead in each.
float Sum(const float* HWY_RESTRICT data, int64_t count) {
  const hn::CappedTag<float, 16> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kStreams = 8, kStep = 64, kAhead = 256, kLineFloats = 16;
  const int64_t length = count / kStreams / kStep * kStep;
  hn::Vec<decltype(d)> sums[kStreams];
  for (auto& sum : sums) sum = hn::Zero(d);
  for (int64_t i = 0; i < length; i += kStep) {
#pragma GCC unroll 8
    for (int64_t s = 0; s < kStreams; ++s) {
      const float* HWY_RESTRICT p = data + s * length + i;
      for (int64_t j = 0; j < kStep; j += kLineFloats) hwy::Prefetch(p + kAhead + j);
      for (int64_t j = 0; j < kStep; j += lanes) sums[s] = hn::Add(sums[s], hn::LoadU(d, p + j));
    }
  }
  float total = 0;
  for (const auto& sum : sums) total += hn::GetLane(hn::SumOfLanes(d, sum));
  for (int64_t i = kStreams * length; i < count; ++i) total += data[i];
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

namespace {

// Inputs are shared, which costs nothing; each thread has its own output.
void Sgemm(std::vector<float>& c) {
  constexpr int n = kSgemmSize;
  static const std::vector<float> a(n * n, 0.5f), b(n * n, 0.25f);
  c.resize(n * n);
  Gemm({.m = n,
        .k = n,
        .a = a.data(),
        .a_stride = n,
        .b = b.data(),
        .b_stride = n,
        .c = c.data(),
        .c_stride = n,
        .begin = 0,
        .end = n});
  sink.store(c[0], std::memory_order_relaxed);
}

}  // namespace

void RunSgemm() {
  static std::vector<float> c;
  Sgemm(c);
}

void RunSgemms(int threads) {
  static std::map<int, std::vector<std::vector<float>>> outputs;
  std::vector<std::vector<float>>& c = outputs[threads];
  c.resize(static_cast<size_t>(threads));
  PoolOf(threads).ParallelFor(threads, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) Sgemm(c[static_cast<size_t>(i)]);
  });
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
