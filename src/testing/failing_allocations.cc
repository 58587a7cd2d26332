#include "testing/failing_allocations.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

#include "core/check.h"

namespace tensorcache::testing {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
std::atomic<int64_t> left = kUnlimited;  // negative once an allocation has failed

// nullptr where memory has run out. The alignment is a power of two.
void* Allocate(size_t size, size_t alignment = __STDCPP_DEFAULT_NEW_ALIGNMENT__) {
  if (left.load() != kUnlimited && left.fetch_sub(1) <= 0) return nullptr;
  if (alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__) return std::malloc(std::max<size_t>(size, 1));
  if (size > SIZE_MAX - alignment) return nullptr;
  return std::aligned_alloc(alignment, (std::max<size_t>(size, 1) + alignment - 1) / alignment * alignment);
}

void* Checked(void* data) {
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

FailAllocationsAfter::FailAllocationsAfter(int64_t allowed) { TC_CHECK(left.exchange(allowed) == kUnlimited); }
FailAllocationsAfter::~FailAllocationsAfter() { left = kUnlimited; }
bool FailAllocationsAfter::has_failed() const { return left.load() < 0; }

}  // namespace tensorcache::testing

using tensorcache::testing::Allocate;
using tensorcache::testing::Checked;

// NOLINTBEGIN(misc-new-delete-overloads): the other forms call these.
void* operator new(size_t size) { return Checked(Allocate(size)); }
void* operator new(size_t size, std::align_val_t alignment) {
  return Checked(Allocate(size, static_cast<size_t>(alignment)));
}
void* operator new(size_t size, const std::nothrow_t&) noexcept { return Allocate(size); }
void* operator new(size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return Allocate(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size) { return Checked(Allocate(size)); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return Allocate(size); }
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete[](void* data, size_t) noexcept { std::free(data); }
// NOLINTEND(misc-new-delete-overloads)
