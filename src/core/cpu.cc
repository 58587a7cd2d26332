#include "core/cpu.h"

#include <hwy/highway.h>

#if HWY_ARCH_X86
#include <cpuid.h>
#endif

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

namespace tensorcache {
namespace {

std::string CpuName() {
#if HWY_ARCH_X86
  constexpr uint32_t kFirstLeaf = 0x80000002, kLastLeaf = 0x80000004;
  if (__get_cpuid_max(0x80000000, nullptr) >= kLastLeaf) {
    std::array<uint32_t, 12> words{};
    for (uint32_t leaf = kFirstLeaf; leaf <= kLastLeaf; ++leaf) {
      uint32_t* out = &words[4 * (leaf - kFirstLeaf)];
      __get_cpuid(leaf, out, out + 1, out + 2, out + 3);
    }
    char text[sizeof(words) + 1] = {};
    std::memcpy(text, words.data(), sizeof(words));
    const std::string name = text;
    const size_t begin = name.find_first_not_of(' '), end = name.find_last_not_of(' ');
    if (begin != name.npos) return name.substr(begin, end - begin + 1);
  }
#endif
  return "unknown CPU";
}

}  // namespace

std::string CpuFeatures() {
  std::string targets;
  // Highway numbers better targets lower.
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    if (!targets.empty()) targets += ' ';
    targets += hwy::TargetName(left & -left);
  }
  return CpuName() + " (" + targets + ")";
}

}  // namespace tensorcache
