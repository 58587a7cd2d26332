// A program started by this one, with what it prints in a file.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensorcache/status.h"

namespace tensorcache {

struct ProcessOptions {
  std::vector<std::string> arguments;    // the program's path first
  std::string log;                       // gets standard output and standard error; made anew
  std::vector<std::string> environment;  // "NAME=value", besides what this program has
};

struct ProcessExit {
  int status = 0;          // 128 + the signal that ended it
  int64_t peak_bytes = 0;  // the most memory it had resident
};

// Killed and waited for on destruction, if it still runs; asked to end (SIGTERM) if the thread that started it dies before.
// It is in a process group of its own: Ctrl-C on the terminal reaches the starting program alone, which decides.
class ChildProcess {
 public:
  static Result<ChildProcess> Start(const ProcessOptions& options);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  // Once it has ended, and never again after that.
  std::optional<ProcessExit> Poll();
  ProcessExit Wait();
  void Signal(int number) const;

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}
  void Kill();

  pid_t pid_;  // 0: ended, or moved away
};

}  // namespace tensorcache
