// A fixed set of worker threads for one kind of work: split [0, n) and wait. Kernels never use it; their callers do.
#pragma once

#include <cstdint>
#include <memory>

#include "tensorcache/executor.h"

namespace tensorcache {

// ParallelFor may be called from one thread at a time; nested calls run inline on the calling worker. Workers spin
// briefly before they sleep, so that back-to-back calls (one per layer in decode) cost about a microsecond.
class ThreadPool : public Executor {
 public:
  // `threads` counts the caller: 1 means no extra thread. 0 means one per core this process may use. There are fewer if
  // the machine does not give so many, or has no room for them.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls body(begin, end, worker) on disjoint ranges that cover [0, n), none shorter than `grain` except the last, and
  // returns when all are done. worker < threads() is unique among the bodies that run at the same time: use it to pick
  // scratch. The split depends only on n, grain and threads(). If bodies throw, the first exception is thrown again here
  // when all are done.
  void ParallelFor(int64_t n, int64_t grain, const Body& body);

  int workers() const override { return threads(); }
  void Run(int64_t n, const Body& body) override { ParallelFor(n, 1, body); }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorcache
