#include "core/process_memory.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace tensorcache {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;
constexpr int64_t kBlasBuffer = 128 * kMebibyte;  // OpenBLAS 0.3.21; some builds of it take less

struct ProcessBytes {
  int64_t mapped = 0;
  int64_t resident = 0;
};

ProcessBytes ReadStatm() {
  std::ifstream statm("/proc/self/statm");
  ProcessBytes pages;
  statm >> pages.mapped >> pages.resident;
  return {pages.mapped * sysconf(_SC_PAGESIZE), pages.resident * sysconf(_SC_PAGESIZE)};
}

}  // namespace

int64_t ResidentBytes() { return ReadStatm().resident; }

int64_t AvailableBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  for (int64_t kilobytes = 0; meminfo >> key >> kilobytes; std::getline(meminfo, unit)) {
    if (key == "MemAvailable:") return kilobytes * 1024;
  }
  return 0;
}

int64_t AddressSpaceLeft() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur > static_cast<rlim_t>(std::numeric_limits<int64_t>::max())) {
    return std::numeric_limits<int64_t>::max();
  }
  return std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - ReadStatm().mapped);
}

Status CheckRoomForBlas(int threads) {
  const int64_t left = AddressSpaceLeft(), wanted = threads * kBlasBuffer;
  if (left >= wanted) return OkStatus();
  return IoError(
      fmt::format("the limit of address space leaves {} MiB, and matrix products on {} thread{} take {} MiB; raise it "
                  "(ulimit -v){}",
                  left / kMebibyte, threads, threads == 1 ? "" : "s", wanted / kMebibyte,
                  threads == 1 ? "" : ", or take fewer --threads"));
}

}  // namespace tensorcache
