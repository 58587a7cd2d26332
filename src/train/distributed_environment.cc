#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "core/text.h"
#include "train/distributed.h"

namespace tensorcache::train {
namespace {

// The variables of one kind of launcher.
struct Launcher {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr std::array<Launcher, 4> kLaunchers = {{
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr},
}};
constexpr const Launcher& kSlurm = kLaunchers[3];

// nullptr if the variable is not set or empty.
const char* Variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

Result<int> Number(const char* name, int low, int high) {
  const char* text = Variable(name);
  if (text == nullptr) return InvalidArgument(fmt::format("the environment variable {} is not set", name));
  const std::string_view view = text;
  int value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc() || end != view.data() + view.size() || value < low || value > high) {
    return InvalidArgument(fmt::format("the environment variable {} is {}; it must be a whole number from {} to {}",
                                       name, Quoted(view), low, high));
  }
  return value;
}

const Launcher* FindLauncher() {
  for (const Launcher& launcher : kLaunchers) {
    if (&launcher == &kSlurm && Variable("MASTER_ADDR") == nullptr) continue;
    if (Variable(launcher.rank) != nullptr || Variable(launcher.size) != nullptr) return &launcher;
  }
  return nullptr;
}

}  // namespace

Result<WorldOptions> WorldFromEnvironment() {
  constexpr int kMaxProcesses = 1 << 20;
  WorldOptions options;
  const Launcher* launcher = FindLauncher();
  if (launcher == nullptr) return options;
  for (const auto& [name, other] : {std::pair(launcher->rank, launcher->size), {launcher->size, launcher->rank}}) {
    if (Variable(name) == nullptr) {
      return InvalidArgument(fmt::format(
          "the environment variable {} is set, but not {}; set both, or neither to train in one process", other, name));
    }
  }
  TC_ASSIGN_OR_RETURN(options.size, Number(launcher->size, 1, kMaxProcesses));
  TC_ASSIGN_OR_RETURN(options.rank, Number(launcher->rank, 0, kMaxProcesses));
  if (options.rank >= options.size) {
    return InvalidArgument(fmt::format("the environment says {}={} of {}={}; ranks count from 0, so it must be less",
                                       launcher->rank, options.rank, launcher->size, options.size));
  }
  if (Variable(launcher->local_rank) != nullptr) {
    TC_ASSIGN_OR_RETURN(options.local_rank, Number(launcher->local_rank, 0, options.size - 1));
  }
  if (options.size == 1) return options;

  if (Variable("MASTER_PORT") != nullptr) {
    TC_ASSIGN_OR_RETURN(options.master_port, Number("MASTER_PORT", 1, 65535));
  }
  if (const char* address = Variable("MASTER_ADDR"); address != nullptr) {
    options.master_address = address;
  } else if (launcher->local_size != nullptr && Variable(launcher->local_size) != nullptr) {
    TC_ASSIGN_OR_RETURN(const int local_size, Number(launcher->local_size, 1, kMaxProcesses));
    if (local_size < options.size) {
      return InvalidArgument(fmt::format(
          "{} of the {} processes run on this machine, but MASTER_ADDR is not set; set it to the address of "
          "the machine of rank 0",
          local_size, options.size));
    }
  }
  return options;
}

}  // namespace tensorcache::train
