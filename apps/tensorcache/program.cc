#include "apps/tensorcache/program.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <limits>
#include <new>

#include "apps/tensorcache/build_info.h"
#include "apps/tensorcache/output.h"
#include "core/process_memory.h"
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
  if (const auto args = line.Args(); !args.empty() && args[0] == "--version") {
    PrintText(BuildInfoText());
    return OkStatus();
  }
  return Dispatch(commands, description, line);
}

Status RunCatching(std::span<const Command> commands, const std::string& description, const CommandLine& line) {
  try {
    return Run(commands, description, line);
  } catch (const OutputLost& lost) {
    const bool reader_gone = lost.code() == std::errc::broken_pipe;  // it has what it wanted
    return IoError(reader_gone ? "" : fmt::format("cannot write to standard output: {}", lost.code().message()));
  } catch (const std::bad_alloc&) {
    return IoError("not enough memory; free some or ask for less");
  } catch (const std::exception& error) {  // a bug: the library throws nothing else
    return IoError(std::string(FirstLine(error.what())));
  }
}

// A file would get the number of a standard stream that is closed, and with it what is meant for the terminal. They are
// opened the wrong way round, so that using them fails as before.
void OpenStandardStreams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) < 0) open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void SetSignals() {
  signal(SIGCHLD, SIG_DFL);  // one that is inherited as ignored would hide how our processes end
  signal(SIGPIPE, SIG_IGN);  // a reader that is gone and a file that may not grow are errors of write(), not the end
  signal(SIGXFSZ, SIG_IGN);
}

// When it is loaded, OpenBLAS starts a thread for each core, and each maps a buffer: for nothing, as we have threads of
// our own. Where address space is limited, the program begins again without them.
Status CheckAddressSpace(char** argv) {
  constexpr char kThreads[] = "OPENBLAS_NUM_THREADS";
  if (AddressSpaceLeft() == std::numeric_limits<int64_t>::max()) return OkStatus();
  const char* const threads = std::getenv(kThreads);
  if (threads == nullptr || std::string_view(threads) != "1") {
    setenv(kThreads, "1", 1);
    execv("/proc/self/exe", argv);
  }
  return CheckRoomForBlas(1);
}

}  // namespace

int RunProgram(std::span<const Command> commands, const std::string& description, int argc, char** argv) {
  OpenStandardStreams();
  SetSignals();
  Status status = CheckAddressSpace(argv);
  if (status.ok()) {
    CommandLine line{.words = {"tensorcache"}};
    line.words.insert(line.words.end(), argv + 1, argv + argc);
    status = RunCatching(commands, description, line);
  }
  if (!status.message().empty()) Note("tensorcache: {}\n", status.message());
  return ExitStatus(status.code());
}

std::string TrainProgramPath() {
  std::error_code ignored;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return (self.parent_path() / "tensorcache-train").string();
}

bool LimitSpinning() {
  constexpr char kSpins[] = "GOMP_SPINCOUNT";
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv(kSpins) != nullptr) return false;
  // They would spin for milliseconds, which on a busy machine keeps the other one from working. A tenth of a
  // millisecond is as fast on a quiet one.
  return setenv(kSpins, "5000", 1) == 0;
}

Status RunInTrainProgram(const CommandLine& line) {
  // Where LibTorch and its threads do not fit, the linker, or a library before main(), ends the program in words of its own.
  constexpr int64_t kNeeded = int64_t{1} << 30;
  if (const int64_t left = AddressSpaceLeft(); left < kNeeded) {
    return IoError(fmt::format(
        "this command needs 1 GiB of address space, and {} MiB are left; raise the limit (ulimit -v)", left >> 20));
  }
  const std::string program = TrainProgramPath();
  std::vector<std::string> words = line.words;
  words[0] = program;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  LimitSpinning();  // here already, which saves it from starting twice
  execv(program.c_str(), arguments.data());
  return Unsupported(
      fmt::format("{} cannot be started ({}); this command needs the train half: build with "
                  "-DTENSORCACHE_TRAIN=ON and LibTorch",
                  program, std::strerror(errno)));
}

}  // namespace tensorcache::cli
