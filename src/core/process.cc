#include "core/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/check.h"

namespace tensorcache {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::string_view NameOf(std::string_view variable) { return variable.substr(0, variable.find('=')); }

// This program's variables, but for those that `changed` gives anew.
std::vector<std::string> Environment(const std::vector<std::string>& changed) {
  std::vector<std::string> all = changed;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const auto same = [&](const std::string& other) { return NameOf(other) == NameOf(*variable); };
    if (std::none_of(changed.begin(), changed.end(), same)) all.emplace_back(*variable);
  }
  return all;
}

int OpenLog(const std::string& path) { return open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644); }

// In the new process: nothing here may allocate or lock, for another thread may have held a lock while it was forked.
[[noreturn]] void BecomeProgram(char* const* arguments, char* const* environment, int log, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const bool ready = getppid() == parent && dup2(nothing, STDIN_FILENO) >= 0 && dup2(log, STDOUT_FILENO) >= 0 &&
                     dup2(log, STDERR_FILENO) >= 0;
  if (ready) execve(arguments[0], arguments, environment);
  _exit(127);
}

constexpr int kLost = 127 << 8;  // nobody can tell how it ended: as a program that could not be started

ProcessExit ExitOf(int status, const rusage& usage) {
  return {.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .peak_bytes = static_cast<int64_t>(usage.ru_maxrss) * 1024};
}

}  // namespace

Result<ChildProcess> ChildProcess::Start(const ProcessOptions& options) {
  TC_CHECK(!options.arguments.empty());
  std::vector<std::string> arguments = options.arguments;
  std::vector<std::string> environment = Environment(options.environment);

  const std::vector<char*> argument_pointers = Pointers(arguments), environment_pointers = Pointers(environment);

  if (access(arguments[0].c_str(), X_OK) != 0) {
    return IoError(fmt::format("{} cannot be started: {}", arguments[0], std::strerror(errno)));
  }
  const int log = OpenLog(options.log);
  if (log < 0) return IoError(fmt::format("{} cannot be written: {}", options.log, std::strerror(errno)));
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) BecomeProgram(argument_pointers.data(), environment_pointers.data(), log, parent);
  const int error = errno;
  close(log);
  if (pid < 0) return IoError(fmt::format("{} cannot be started: {}", arguments[0], std::strerror(error)));
  return ChildProcess(pid);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    Kill();
    pid_ = std::exchange(other.pid_, 0);
  }
  return *this;
}

ChildProcess::~ChildProcess() { Kill(); }

void ChildProcess::Kill() {
  if (pid_ == 0) return;
  Signal(SIGKILL);
  Wait();
}

std::optional<ProcessExit> ChildProcess::Poll() {
  if (pid_ == 0) return {};
  int status = 0;
  rusage usage = {};
  const pid_t ended = wait4(pid_, &status, WNOHANG, &usage);
  if (ended == 0 || (ended < 0 && errno == EINTR)) return {};
  if (ended < 0) status = kLost;
  pid_ = 0;
  return ExitOf(status, usage);
}

ProcessExit ChildProcess::Wait() {
  TC_CHECK(pid_ != 0);
  int status = 0;
  rusage usage = {};
  while (wait4(pid_, &status, 0, &usage) < 0) {
    if (errno == EINTR) continue;
    status = kLost;
    break;
  }
  pid_ = 0;
  return ExitOf(status, usage);
}

void ChildProcess::Signal(int number) const {
  if (pid_ != 0) kill(pid_, number);
}

}  // namespace tensorcache
