#include "apps/tensorcache/program.h"

#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>
#include <sstream>

#include "apps/tensorcache/build_info.h"
#include "core/text.h"

namespace tensorcache::cli {
namespace {

// 2: what was asked cannot be done as asked. 1: the machine failed.
int ExitStatus(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return 0;
    case StatusCode::kIoError:
    case StatusCode::kDiverged: return 1;
    default: return 2;
  }
}

Status Run(std::span<const Command> commands, const std::string& description, const CommandLine& line) {
  if (!line.args.empty() && line.args[0] == "--version") {
    fmt::print("{}", BuildInfoText());
    return OkStatus();
  }
  return Dispatch(commands, description, line);
}

Status RunCatching(std::span<const Command> commands, const std::string& description, const CommandLine& line) {
  try {
    Status status = Run(commands, description, line);
    const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
    if (status.ok() && !written) return IoError("cannot write to standard output; is the disk full?");
    return status;
  } catch (const std::bad_alloc&) {
    return IoError("not enough memory; free some or ask for less");
  } catch (const std::exception& error) {  // a bug: the library throws nothing else
    return IoError(std::string(FirstLine(error.what())));
  }
}

}  // namespace

int RunProgram(std::span<const Command> commands, const std::string& description, int argc, char** argv) {
  signal(SIGCHLD, SIG_DFL);  // one that is inherited as ignored would hide how our processes end
  const Status status = RunCatching(commands, description, {"tensorcache", {argv + 1, argv + argc}});
  if (!status.ok()) fmt::print(stderr, "tensorcache: {}\n", status.message());
  return ExitStatus(status.code());
}

std::string TrainProgramPath() {
  std::error_code ignored;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return (self.parent_path() / "tensorcache-train").string();
}

Status RunInTrainProgram(const CommandLine& line) {
  const std::string program = TrainProgramPath();
  std::vector<std::string> words = {program};
  std::istringstream path(line.path);  // "tensorcache bench train"
  std::string word;
  path >> word;
  while (path >> word) words.push_back(word);
  words.insert(words.end(), line.args.begin(), line.args.end());
  std::vector<char*> arguments;
  for (std::string& argument : words) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  std::fflush(stdout);
  execv(program.c_str(), arguments.data());
  return Unsupported(
      fmt::format("{} cannot be started ({}); this command needs the train half: build with "
                  "-DTENSORCACHE_TRAIN=ON and LibTorch",
                  program, std::strerror(errno)));
}

}  // namespace tensorcache::cli
