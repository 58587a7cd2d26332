// The program `tensorcache`: a table of commands.
#include <fmt/core.h>

#include <cstdio>
#include <exception>

#include "apps/tensorcache/build_info.h"
#include "apps/tensorcache/command.h"

namespace tensorcache::cli {
namespace {

constexpr Command kCommands[] = {
    {"demo", "See a fixed-size memory fill up: the capacity experiment, drawn and explained", RunDemo},
    {"bench", "Measure the kernels, each beside the limit of this machine", RunBench},
    {"reproduce", "Repeat an experiment of the Tensor Cache paper and print it beside the published figures",
     RunReproduce},
};

constexpr char kDescription[] =
    "Tensor Cache: attention over a window of recent tokens, and a fixed-size associative memory of all earlier ones.";

// 2: what was asked cannot be done as asked. 1: the machine failed.
int ExitStatus(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return 0;
    case StatusCode::kIoError:
    case StatusCode::kDiverged: return 1;
    default: return 2;
  }
}

Status Run(const CommandLine& line) {
  if (!line.args.empty() && line.args[0] == "--version") {
    fmt::print("{}", BuildInfoText());
    return OkStatus();
  }
  return Dispatch(kCommands, kDescription, line);
}

Status RunCatching(const CommandLine& line) {
  try {
    Status status = Run(line);
    if (status.ok() && std::fflush(stdout) != 0) return IoError("cannot write to standard output; is the disk full?");
    return status;
  } catch (const std::exception& error) {  // out of memory, mostly; the library itself throws nothing
    return IoError(fmt::format("{}; free some memory or ask for less", error.what()));
  }
}

}  // namespace
}  // namespace tensorcache::cli

int main(int argc, char** argv) {
  using namespace tensorcache::cli;
  const tensorcache::Status status = RunCatching({"tensorcache", {argv + 1, argv + argc}});
  if (!status.ok()) fmt::print(stderr, "tensorcache: {}\n", status.message());
  return ExitStatus(status.code());
}
