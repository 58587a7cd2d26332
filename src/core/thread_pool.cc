#include "core/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/process_memory.h"

namespace tensorcache {
namespace {

using Body = Executor::Body;

// More ranges than threads, claimed one by one: a thread that is held up costs at most about a quarter of its share.
constexpr int64_t kRangesPerThread = 4;
constexpr int kMaxThreads = 1023;
// Address space that a worker may take: its stack, an arena of malloc's, a buffer of BLAS's. Where that is limited, half of
// it is left for everything else.
constexpr int64_t kWorkerBytes = int64_t{256} << 20;
// About 25 us of pauses: longer than the gap between two layers of a decode step, too short to matter for an idle pool.
constexpr int kSpins = 1000;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int UsableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

// The pool whose body this thread is inside of, and as which worker.
struct Inside {
  const void* pool = nullptr;
  int worker = 0;
};
thread_local Inside inside;

// Says where this thread is, for as long as it lives.
class Entered {
 public:
  explicit Entered(Inside here) : outer_(std::exchange(inside, here)) {}
  ~Entered() { inside = outer_; }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  const Inside outer_;
};

void RunRange(const Body& body, int64_t begin, int64_t end, Inside here) {
  const Entered entered(here);
  body(begin, end, here.worker);
}

// What is left to claim, in one word: the number of the call, how many ranges it has and which is next.
struct Ticket {
  static constexpr int kBits = 12;
  static constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;
  static_assert(kMaxThreads * kRangesPerThread <= kMask);

  static uint64_t NextCall(uint64_t ticket, int64_t ranges) {
    return ((ticket >> 2 * kBits) + 1) << 2 * kBits | static_cast<uint64_t>(ranges) << kBits;
  }
  static int64_t Next(uint64_t ticket) { return static_cast<int64_t>(ticket & kMask); }
  static int64_t Ranges(uint64_t ticket) { return static_cast<int64_t>(ticket >> kBits & kMask); }
};

}  // namespace

// A range is claimed by a compare-and-swap on `ticket`. The caller changes `call` only when every range of the call
// before was claimed and finished, so a swap that succeeds proves that the fields read just before it belong to its
// ticket. They are atomic because a worker that lags behind may read them while they change; then its swap fails.
struct ThreadPool::Impl {
  explicit Impl(int wanted) {
    wanted = static_cast<int>(std::min<int64_t>(wanted, 1 + AddressSpaceLeft() / 2 / kWorkerBytes));
    workers.reserve(static_cast<size_t>(wanted));
    try {
      for (; threads < wanted; ++threads) workers.emplace_back([this, worker = threads] { WorkerLoop(worker); });
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
      // No more threads are to be had: those that there are share the work.
    }
  }

  ~Impl() {
    stop.store(true, std::memory_order_relaxed);
    ticket.store(Ticket::NextCall(ticket.load(std::memory_order_relaxed), 0), std::memory_order_release);
    ticket.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  void WorkerLoop(int worker) {
    while (true) {
      const uint64_t seen = RunRanges(worker);
      if (stop.load(std::memory_order_relaxed)) return;
      for (int spin = 0; spin < kSpins && ticket.load(std::memory_order_relaxed) == seen; ++spin) Pause();
      ticket.wait(seen, std::memory_order_relaxed);
    }
  }

  // Claims and runs ranges until none is left; returns the ticket that said so.
  uint64_t RunRanges(int worker) {
    uint64_t current = ticket.load(std::memory_order_acquire);
    while (Ticket::Next(current) < Ticket::Ranges(current)) {
      const Body* body = call.body.load(std::memory_order_relaxed);
      const int64_t size = call.range_size.load(std::memory_order_relaxed);
      const int64_t n = call.n.load(std::memory_order_relaxed);
      if (!ticket.compare_exchange_weak(current, current + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
        continue;
      }
      const int64_t begin = Ticket::Next(current) * size;
      try {
        RunRange(*body, begin, std::min(begin + size, n), {.pool = this, .worker = worker});
      } catch (...) {
        if (!failed.exchange(true, std::memory_order_relaxed)) failure = std::current_exception();
      }
      if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished.notify_one();
      current = ticket.load(std::memory_order_acquire);
    }
    return current;
  }

  void WaitUntilFinished() {
    int spins = 0;
    while (const int left = unfinished.load(std::memory_order_acquire)) {
      if (++spins < kSpins) {
        Pause();
      } else {
        unfinished.wait(left, std::memory_order_relaxed);
      }
    }
  }

  int threads = 1;
  std::vector<std::thread> workers;
  std::atomic<bool> stop = false;
  std::atomic<bool> busy = false;

  struct {
    std::atomic<const Body*> body = nullptr;
    std::atomic<int64_t> n = 0;
    std::atomic<int64_t> range_size = 0;
  } call;
  // Of the call that runs: the first exception of its body. `unfinished` orders it before the caller's look at it.
  std::atomic<bool> failed = false;
  std::exception_ptr failure;
  alignas(64) std::atomic<uint64_t> ticket = 0;
  alignas(64) std::atomic<int> unfinished = 0;
};

ThreadPool::ThreadPool(int threads) {
  TC_CHECK(threads >= 0 && threads <= kMaxThreads);
  impl_ = std::make_unique<Impl>(threads > 0 ? threads : std::min(UsableCores(), kMaxThreads));
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::threads() const { return impl_->threads; }

void ThreadPool::ParallelFor(int64_t n, int64_t grain, const Body& body) {
  TC_CHECK(n >= 0 && grain > 0);
  if (n == 0) return;
  Impl& pool = *impl_;
  const int64_t at_most = std::clamp<int64_t>(n / grain, 1, pool.threads * kRangesPerThread);
  const int64_t size = (n + at_most - 1) / at_most;
  const int64_t ranges = (n + size - 1) / size;

  const bool nested = inside.pool == &pool;
  if (nested || pool.threads == 1 || ranges == 1) {
    const Inside here = {.pool = &pool, .worker = nested ? inside.worker : 0};
    for (int64_t begin = 0; begin < n; begin += size) RunRange(body, begin, std::min(begin + size, n), here);
    return;
  }

  TC_CHECK(!pool.busy.exchange(true, std::memory_order_acquire));  // one caller at a time
  pool.call.body.store(&body, std::memory_order_relaxed);
  pool.call.n.store(n, std::memory_order_relaxed);
  pool.call.range_size.store(size, std::memory_order_relaxed);
  pool.unfinished.store(static_cast<int>(ranges), std::memory_order_relaxed);
  pool.ticket.store(Ticket::NextCall(pool.ticket.load(std::memory_order_relaxed), ranges), std::memory_order_release);
  pool.ticket.notify_all();
  pool.RunRanges(0);
  pool.WaitUntilFinished();
  const bool failed = pool.failed.exchange(false, std::memory_order_relaxed);
  const std::exception_ptr failure = std::exchange(pool.failure, nullptr);
  pool.busy.store(false, std::memory_order_release);
  if (failed) std::rethrow_exception(failure);
}

}  // namespace tensorcache
