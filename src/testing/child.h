// Work in a process of its own, which may change limits or die.
#pragma once

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <utility>

namespace tensorcache::testing {

class Child {
 public:
  // The process ends with the status that `body` returns.
  explicit Child(const std::function<int()>& body) : pid_(fork()) {
    if (pid_ == 0) _exit(body());
  }
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  Child& operator=(Child&&) = delete;
  ~Child() {
    if (pid_ == 0) return;
    Kill();
    Wait();
  }

  void Signal(int number) const { kill(pid_, number); }
  void Kill() const { Signal(SIGKILL); }
  // Its exit status, -1 if it was killed.
  int Wait() {
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_;  // 0: waited for, or moved away
};

inline int InChild(const std::function<int()>& body) { return Child(body).Wait(); }

}  // namespace tensorcache::testing
