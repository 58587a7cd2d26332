// What the files that call the system share: descriptors, errors of the system as a Status, and syncing.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include "tensorcache/status.h"

namespace tensorcache {

// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { Close(); }

  int get() const { return fd_; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

// "cannot <action> '<path>': <what the system says>; <what to do>".
Status ErrnoStatus(std::string_view action, const std::string& path, int error);

// Calls f() again when a signal interrupted it.
template <class F>
auto Retry(F f) {
  decltype(f()) result;
  do {
    result = f();
  } while (result < 0 && errno == EINTR);
  return result;
}

// Makes what happened to names in `directory` survive a power failure. 0, or errno.
int SyncDirectory(const std::string& directory);

// An flock that ends with this process, or when the descriptor is closed. kUnknown: the file system has no locks.
enum class LockResult { kLocked, kTaken, kUnknown };
LockResult TryLock(int fd);

// Whether `path` still names the file that is open as `fd`: between opening and locking, it may have been replaced.
bool IsStillAt(int fd, const std::string& path);

}  // namespace tensorcache
