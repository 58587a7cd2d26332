// Threads that are lent to the library: those of an engine that has its own.
//
//   class OpenMpThreads : public tensorcache::Executor {
//    public:
//     int workers() const override { return omp_get_max_threads(); }
//     void Run(int64_t n, const Body& body) override {
//   #pragma omp parallel for
//       for (int64_t i = 0; i < n; ++i) body(i, i + 1, omp_get_thread_num());
//     }
//   };
#pragma once

#include <cstdint>
#include <functional>

namespace tensorcache {

class Executor {
 public:
  using Body = std::function<void(int64_t begin, int64_t end, int worker)>;

  virtual ~Executor() = default;
  // How many bodies run at the same time, at most; always the same number.
  virtual int workers() const = 0;
  // Calls body, which throws nothing, on disjoint ranges that cover [0, n), and returns when all are done. No two
  // bodies that run at the same time have the same worker, which is less than workers(). How it is split, and in which
  // order, changes no result.
  virtual void Run(int64_t n, const Body& body) = 0;
};

}  // namespace tensorcache
