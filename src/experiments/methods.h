// The five methods, named as in the paper.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "tensorcache/config.h"

namespace tensorcache::experiments {

inline constexpr std::array kAllMethods = {CacheMethod::kFull, CacheMethod::kWindow, CacheMethod::kStreamingLlm,
                                           CacheMethod::kInfini, CacheMethod::kTensorCache};

// Those that can know what left the window.
inline constexpr std::array kReachingMethods = {CacheMethod::kFull, CacheMethod::kInfini, CacheMethod::kTensorCache};

std::string MethodTitle(CacheMethod method);  // "Full KV"

inline constexpr double kGigabyte = 1e9;
inline constexpr double kKibibyte = 1024;  // what the paper calls kB

// "4K" (4096), "128K", "1M" (a million): a number of tokens for a table's row.
std::string ContextLabel(int64_t tokens);

}  // namespace tensorcache::experiments
