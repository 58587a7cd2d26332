#include "apps/tensorcache/build_info.h"

#include <cblas.h>
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "apps/tensorcache/commit.h"  // generated
#include "core/cpu.h"
#include "tensorcache/version.h"

namespace tensorcache::cli {
namespace {

std::string BlasName() {
#ifdef OPENBLAS_VERSION
  return openblas_get_config();
#else
  return "yes";
#endif
}

}  // namespace

BuildInfo GetBuildInfo() {
  const std::string torch = TENSORCACHE_TORCH_VERSION;
  return {.version = TENSORCACHE_VERSION,
          .commit = TENSORCACHE_COMMIT,
          .build = TENSORCACHE_BUILD_TYPE ", " TENSORCACHE_COMPILER,
          .cpu = CpuFeatures(),
          .blas = BlasName(),
          .torch = torch.empty() ? "no" : torch};
}

nlohmann::ordered_json BenchHead(const std::string& bench) {
  const BuildInfo info = GetBuildInfo();
  return {{"bench", bench},      {"version", info.version}, {"commit", info.commit},
          {"build", info.build}, {"cpu", info.cpu},         {"blas", info.blas}};
}

std::string BuildInfoText() {
  const BuildInfo info = GetBuildInfo();
  return fmt::format("tensorcache {} (commit {})\nbuild: {}\ncpu: {}\nblas: {}\ntorch: {}\n", info.version, info.commit,
                     info.build, info.cpu, info.blas, info.torch);
}

}  // namespace tensorcache::cli
