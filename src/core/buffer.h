// Memory for states, weights and scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tensorcache {

// Zeroed bytes, aligned to cache lines. Large ones are mappings of their own: pages that were never written take no memory,
// and freed ones go back to the system at once. Throws std::bad_alloc.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t bytes);
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer();

  template <class T>
  T* As() {
    return reinterpret_cast<T*>(data_);
  }
  template <class T>
  const T* As() const {
    return reinterpret_cast<const T*>(data_);
  }
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Scratch floats of one thread, given out one after the other until Reset; all stay where they are until then. Once the sum
// of a round was seen, the next round comes from one piece.
class Arena {
 public:
  float* Take(int64_t floats) {
    const int64_t bytes = (floats * static_cast<int64_t>(sizeof(float)) + 63) / 64 * 64;
    used_ += bytes;
    if (at_ + bytes > pieces_.back().bytes()) {
      pieces_.emplace_back(bytes);
      at_ = 0;
    }
    at_ += bytes;
    return reinterpret_cast<float*>(pieces_.back().data() + at_ - bytes);
  }
  void Reset() {
    if (pieces_.size() > 1) {
      pieces_.clear();
      pieces_.emplace_back(used_);
    }
    at_ = used_ = 0;
  }

 private:
  std::vector<Buffer> pieces_ = std::vector<Buffer>(1);
  int64_t at_ = 0;    // in the last piece
  int64_t used_ = 0;  // since the last Reset
};

}  // namespace tensorcache
