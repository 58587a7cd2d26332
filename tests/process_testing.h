// The program, started by a test.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace tensorcache {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;

inline Args With(Args args, const Args& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

inline std::string ReadAll(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

template <class F>
bool WaitUntil(F happened) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < deadline) {
    if (happened()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

// What the program inherits, and which of the two executables it is.
struct Limits {
  std::vector<std::string> environment;  // "RANK=0"
  rlim_t file_bytes = RLIM_INFINITY;     // what a full disk looks like to the program
  rlim_t address_bytes = RLIM_INFINITY;
  std::optional<int> out, err;  // standard output and error, -1: closed; otherwise files
  std::string program = TENSORCACHE_PROGRAM_PATH;
};

// A running program; killed when the test is done with it. What it prints goes to files called `name`, in `folder`.
class Process {
 public:
  Process(Args args, const fs::path& folder, const std::string& name = "program", const Limits& limits = {})
      : out_(folder / (name + ".out")), err_(folder / (name + ".err")) {
    EXPECT_EQ(pipe(pipe_), 0);
    fs::remove(out_);
    fs::remove(err_);
    pid_ = fork();
    if (pid_ != 0) {
      close(pipe_[0]);
      return;
    }
    dup2(pipe_[0], STDIN_FILENO);
    close(pipe_[1]);
    if (std::freopen(out_.c_str(), "w", stdout) == nullptr || std::freopen(err_.c_str(), "w", stderr) == nullptr) {
      _exit(127);
    }
    Replace(STDOUT_FILENO, limits.out);
    Replace(STDERR_FILENO, limits.err);
    Limit(RLIMIT_FSIZE, limits.file_bytes);
    setenv("LC_ALL", "C", 1);
    setenv("XDG_CACHE_HOME", (folder / "cache").c_str(), 1);
    for (const std::string& variable : limits.environment) putenv(strdup(variable.c_str()));
    args.insert(args.begin(), limits.program);
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    Limit(RLIMIT_AS, limits.address_bytes);
    execv(argv[0], argv.data());
    _exit(127);
  }
  Process(const Process&) = delete;
  ~Process() {
    if (done_) return;
    Signal(SIGKILL);
    Wait();
  }

  void Type(const std::string& text) const { EXPECT_EQ(write(pipe_[1], text.data(), text.size()), std::ssize(text)); }
  void CloseInput() {
    if (pipe_[1] >= 0) close(pipe_[1]);
    pipe_[1] = -1;
  }
  pid_t pid() const { return pid_; }
  void Signal(int number) const { kill(pid_, number); }
  // "NAME=value", and a zero byte after each.
  std::string Environment() const { return ReadAll(fs::path("/proc") / std::to_string(pid_) / "environ"); }
  // Exit status; 128 + the signal that ended it.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    CloseInput();
    done_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  bool Running() const {
    siginfo_t info = {};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
  }
  std::string Out() const { return ReadAll(out_); }
  std::string Err() const { return ReadAll(err_); }

 private:
  static void Replace(int stream, const std::optional<int>& other) {
    if (other == -1) close(stream);
    if (other >= 0) dup2(*other, stream);
  }
  static void Limit(decltype(RLIMIT_AS) which, rlim_t bytes) {
    const rlimit limit = {bytes, bytes};
    if (bytes != RLIM_INFINITY) setrlimit(which, &limit);
  }

  fs::path out_, err_;
  int pipe_[2] = {-1, -1};
  pid_t pid_ = 0;
  bool done_ = false;
};

}  // namespace tensorcache
