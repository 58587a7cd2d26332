#include "core/buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace tensorcache {
namespace {

constexpr int64_t kMappedFrom = 1 << 17;
constexpr size_t kAlignment = 64;

}  // namespace

Buffer::Buffer(int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const auto size = static_cast<size_t>(bytes);
  if (bytes >= kMappedFrom) {
    void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(data);
    return;
  }
  void* data = std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
  if (data == nullptr) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(data);
  std::memset(data_, 0, size);
}

Buffer::~Buffer() {
  if (bytes_ >= kMappedFrom) {
    munmap(data_, static_cast<size_t>(bytes_));
  } else {
    std::free(data_);
  }
}

}  // namespace tensorcache
