// Memory that runs out, for tests of what then becomes of a function and its objects. Link tc_failing_allocations, which
// brings an operator new of its own.
#pragma once

#include <cstdint>

namespace tensorcache::testing {

// While it lives, operator new works `allowed` more times, in all threads together; from then on it throws std::bad_alloc
// (its nothrow forms give nullptr). malloc and mmap go on working. One at a time.
class FailAllocationsAfter {
 public:
  explicit FailAllocationsAfter(int64_t allowed);
  ~FailAllocationsAfter();
  FailAllocationsAfter(const FailAllocationsAfter&) = delete;
  FailAllocationsAfter& operator=(const FailAllocationsAfter&) = delete;

  bool has_failed() const;
};

// `call` with memory for 0, 1, 2, ... allocations, until none fails; after each, `check` of what it returned, with all the
// memory that it wants.
template <class Call, class Check>
void WithFewAllocations(const Call& call, const Check& check) {
  bool has_failed = true;
  int64_t allowed = 0;
  while (has_failed) {
    const auto result = [&] {
      const FailAllocationsAfter failing(allowed);
      auto called = call();
      has_failed = failing.has_failed();
      return called;
    }();
    check(result);
    ++allowed;
  }
}

}  // namespace tensorcache::testing
