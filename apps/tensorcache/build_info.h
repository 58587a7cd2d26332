// What this program was built from and runs on.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tensorcache::cli {

struct BuildInfo {
  std::string version;  // "0.1.0"
  std::string commit;   // or "unknown"
  std::string build;    // build type and compiler
  std::string cpu;      // name and SIMD targets
  std::string blas;
  std::string torch;  // of the train half: its version, or "no"
};

BuildInfo GetBuildInfo();

// The head of a bench's JSON file: its name, and what it was measured with.
nlohmann::ordered_json BenchHead(const std::string& bench);

// The lines `tensorcache --version` prints.
std::string BuildInfoText();

}  // namespace tensorcache::cli
