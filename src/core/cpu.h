// What this machine's CPU is, for version and bench output.
#pragma once

#include <string>

namespace tensorcache {

// The CPU's name and the SIMD targets of the kernels that it runs, best first: "AMD EPYC 9654 (AVX3 AVX2 SSE4)".
std::string CpuFeatures();

}  // namespace tensorcache
