#include "apps/tensorcache/provenance.h"

#include <thread>

#include "apps/tensorcache/build_info.h"

namespace tensorcache::cli {

experiments::Provenance MadeHere(const std::string& command) {
  const BuildInfo build = GetBuildInfo();
  return {.version = build.version,
          .commit = build.commit,
          .build = build.build,
          .cpu = build.cpu,
          .threads = static_cast<int64_t>(std::thread::hardware_concurrency()),
          .command = command};
}

}  // namespace tensorcache::cli
