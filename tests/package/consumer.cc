// Writes two pairs into a memory and reads one of them back, with nothing but the installed package.
#include <tensorcache/kernels/memory_scan/memory_scan.h>
#include <tensorcache/status.h>
#include <tensorcache/version.h>

#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  using namespace tensorcache;
  if (ValidateMemoryScan({.T = 1, .Dk = -1, .Dv = 4}).ok()) return 1;

  constexpr int kDim = 4;
  const float keys[2][kDim] = {{1, 0, 0, 0}, {0.6f, 0.8f, 0, 0}};
  const float values[2][kDim] = {{1, 2, 3, 4}, {10, 20, 30, 40}};
  const float log_decay = std::log(0.5f);
  const float write_strength = 1;
  std::vector<float> memory(kDim * kDim, 0.0f);
  float read[kDim];
  for (int i = 0; i < 2; ++i) {
    MemoryStep({.Dk = kDim,
                .Dv = kDim,
                .evicted = {.k = {.data = keys[i]},
                            .v = {.data = values[i]},
                            .log_decay = {.data = &log_decay},
                            .write_strength = {.data = &write_strength}},
                .q = {.data = keys[0]},
                .state = {.data = memory.data(), .token = kDim},
                .reads = {.data = read}},
               0, 1);
  }
  // Half of the first value is left, and the second key overlaps the first by 0.6.
  for (int d = 0; d < kDim; ++d) {
    const float expected = 0.5f * values[0][d] + 0.6f * values[1][d];
    if (!(std::abs(read[d] - expected) < 1e-5f * expected)) {
      std::printf("read[%d] = %g, expected %g\n", d, read[d], expected);
      return 1;
    }
  }
  std::printf("TensorCache %s: consumer works\n", TENSORCACHE_VERSION);
  return 0;
}
