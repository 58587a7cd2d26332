#include "core/memory.h"

#include <unistd.h>

#include <fstream>
#include <string>

namespace tensorcache {

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t AvailableBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  for (int64_t kilobytes = 0; meminfo >> key >> kilobytes; std::getline(meminfo, unit)) {
    if (key == "MemAvailable:") return kilobytes * 1024;
  }
  return 0;
}

}  // namespace tensorcache
