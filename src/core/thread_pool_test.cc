#include "core/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/process_memory.h"

namespace tensorcache {
namespace {

using Range = std::pair<int64_t, int64_t>;

std::vector<Range> Split(ThreadPool& pool, int64_t n, int64_t grain) {
  std::mutex mutex;
  std::vector<Range> ranges;
  pool.ParallelFor(n, grain, [&](int64_t begin, int64_t end, int worker) {
    EXPECT_GE(worker, 0);
    EXPECT_LT(worker, pool.threads());
    const std::lock_guard lock(mutex);
    ranges.emplace_back(begin, end);
  });
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

TEST(ThreadPool, CoversEveryIndexOnceInRangesOfAtLeastTheGrain) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (const int64_t n : {1, 2, 3, 7, 8, 63, 64, 1000}) {
      for (const int64_t grain : {1, 2, 5, 64, 2000}) {
        int64_t next = 0;
        for (const auto& [begin, end] : Split(pool, n, grain)) {
          EXPECT_EQ(begin, next);
          EXPECT_LT(begin, end);
          EXPECT_TRUE(end == n || end - begin >= grain);
          next = end;
        }
        EXPECT_EQ(next, n) << "threads " << threads << " grain " << grain;
      }
    }
  }
}

TEST(ThreadPool, CallsNothingForZero) {
  ThreadPool pool(2);
  pool.ParallelFor(0, 1, [](int64_t, int64_t, int) { FAIL(); });
}

TEST(ThreadPool, SplitsTheSameWayEveryTime) {
  ThreadPool pool(3), other(3);
  const auto expected = Split(pool, 1001, 7);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Split(pool, 1001, 7), expected);
  EXPECT_EQ(Split(other, 1001, 7), expected);
}

TEST(ThreadPool, ZeroThreadsMeansTheCoresOfThisProcess) {
  EXPECT_GE(ThreadPool(0).threads(), 1);
  EXPECT_EQ(ThreadPool(5).threads(), 5);
}

TEST(ThreadPool, WorkersAreUniqueAmongBodiesThatRunTogether) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> running(4);
  pool.ParallelFor(400, 1, [&](int64_t, int64_t, int worker) {
    EXPECT_EQ(running[worker].fetch_add(1), 0);
    std::this_thread::yield();
    running[worker].fetch_sub(1);
  });
}

TEST(ThreadPool, NestedCallsRunInlineOnTheSameWorker) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum = 0;
  pool.ParallelFor(50, 1, [&](int64_t begin, int64_t end, int worker) {
    const auto thread = std::this_thread::get_id();
    pool.ParallelFor(end - begin, 1, [&](int64_t inner_begin, int64_t inner_end, int inner_worker) {
      EXPECT_EQ(inner_worker, worker);
      EXPECT_EQ(std::this_thread::get_id(), thread);
      for (int64_t i = inner_begin; i < inner_end; ++i) sum += begin + i;
    });
  });
  EXPECT_EQ(sum, 50 * 49 / 2);
}

TEST(ThreadPool, APoolInsideAnotherPoolsBodyWorksNormally) {
  ThreadPool outer(1), inner(2);
  std::atomic<int64_t> count = 0;
  outer.ParallelFor(3, 1, [&](int64_t begin, int64_t end, int) {
    inner.ParallelFor(10 * (end - begin), 1, [&](int64_t b, int64_t e, int) { count += e - b; });
  });
  EXPECT_EQ(count, 30);
}

// Plain (not atomic) writes: the return of ParallelFor must make them visible, and the next call must see them.
TEST(ThreadPool, ManyRapidCallsSeeEachOthersWrites) {
  ThreadPool pool(4);
  std::vector<int> values(37, 0);
  for (int call = 0; call < 20000; ++call) {
    pool.ParallelFor(std::ssize(values), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) ++values[i];
    });
  }
  EXPECT_EQ(values, std::vector<int>(37, 20000));
}

TEST(ThreadPool, WakesWorkersThatFellAsleep) {
  ThreadPool pool(2);
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> count = 0;
    pool.ParallelFor(8, 1, [&](int64_t begin, int64_t end, int) { count += static_cast<int>(end - begin); });
    EXPECT_EQ(count, 8);
  }
}

TEST(ThreadPool, AnExceptionOfAnyBodyReachesTheCallerAndThePoolGoesOn) {
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    for (int64_t bad = 0; bad < 16; ++bad) {
      std::atomic<int> done = 0;
      const auto call = [&] {
        pool.ParallelFor(16, 1, [&](int64_t begin, int64_t end, int) {
          if (begin <= bad && bad < end) throw std::bad_alloc();
          done += static_cast<int>(end - begin);
        });
      };
      EXPECT_THROW(call(), std::bad_alloc);
      if (threads > 1) {
        EXPECT_EQ(done, 15);  // the others were not left alone with a body that is gone
      }
      done = 0;
      pool.ParallelFor(16, 1, [&](int64_t begin, int64_t end, int) { done += static_cast<int>(end - begin); });
      EXPECT_EQ(done, 16);
    }
  }
}

TEST(ThreadPool, StartsAndStopsWithoutWork) {
  for (int i = 0; i < 200; ++i) ThreadPool pool(3);
}

// Whether a pool of 1023 threads still does its work, in this process as it is limited.
bool Works() {
  ThreadPool pool(1023);
  std::atomic<int64_t> count = 0;
  pool.ParallelFor(1000, 1, [&](int64_t begin, int64_t end, int worker) {
    if (worker < pool.threads()) count += end - begin;
  });
  return pool.threads() < 1023 && count == 1000;
}

void LimitAddressSpace(int64_t more) {
  const auto bytes = static_cast<rlim_t>(more);
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  const rlimit limit = {pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + bytes, RLIM_INFINITY};
  setrlimit(RLIMIT_AS, &limit);
}

constexpr int64_t kGibibyte = int64_t{1} << 30;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they map terabytes
TEST(ThreadPoolDeathTest, ThreadsThatCannotBeStartedAreDoneWithout) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // The stacks of three fit.
  const auto with_large_stacks = [] {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, kGibibyte);
    pthread_setattr_default_np(&attributes);
    LimitAddressSpace(3 * kGibibyte + kGibibyte / 2);
    std::exit(Works() ? 0 : 1);
  };
  EXPECT_EXIT(with_large_stacks(), ::testing::ExitedWithCode(0), "");
}

TEST(ThreadPoolDeathTest, LeavesAddressSpaceForOthers) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto with_little = [] {
    LimitAddressSpace(kGibibyte);
    std::exit(Works() && AddressSpaceLeft() > kGibibyte / 2 ? 0 : 1);
  };
  EXPECT_EXIT(with_little(), ::testing::ExitedWithCode(0), "");
}
#endif

TEST(ThreadPoolDeathTest, TwoCallersAtTheSameTimeAreABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadPool pool(2);
        pool.ParallelFor(2, 1, [&](int64_t, int64_t, int) {
          std::thread([&] { pool.ParallelFor(2, 1, [](int64_t, int64_t, int) {}); }).join();
        });
      },
      "CHECK failed");
}

}  // namespace
}  // namespace tensorcache
