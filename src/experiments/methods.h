// The five methods, named as in the paper.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tensorcache/config.h"

namespace tensorcache::experiments {

inline constexpr std::array kAllMethods = {CacheMethod::kFull, CacheMethod::kWindow, CacheMethod::kStreamingLlm,
                                           CacheMethod::kInfini, CacheMethod::kTensorCache};

// Those that can know what left the window.
inline constexpr std::array kReachingMethods = {CacheMethod::kFull, CacheMethod::kInfini, CacheMethod::kTensorCache};

std::string MethodTitle(CacheMethod method);  // "Full KV"

// A column of a table: a method, and for Tensor Cache what the options of its memory start from.
struct Arm {
  // A method alone is an arm.
  // NOLINTNEXTLINE(google-explicit-constructor)
  constexpr Arm(CacheMethod method, MemoryDesign design = MemoryDesign::kPaper) : method(method), design(design) {}

  CacheMethod method;
  MemoryDesign design;

  std::string Title() const;                 // "Tensor Cache, associative"
  std::string Name() const;                  // "tensor_cache-associative": for a run
  std::vector<std::string> Changes() const;  // of a config: "cache.method=tensor_cache"
};

inline constexpr Arm kAssociative = {CacheMethod::kTensorCache, MemoryDesign::kAssociative};
// Those that can know what left the window, in both designs.
inline constexpr std::array<Arm, 4> kReachingArms = {CacheMethod::kFull, CacheMethod::kInfini,
                                                     CacheMethod::kTensorCache, kAssociative};

// A column each, Tensor Cache in the paper's design.
std::vector<Arm> ArmsOf(std::span<const CacheMethod> methods);

inline constexpr double kGigabyte = 1e9;
inline constexpr double kKibibyte = 1024;  // what the paper calls kB

// "4K" (4096), "128K", "1M" (a million): a number of tokens for a table's row.
std::string ContextLabel(int64_t tokens);

}  // namespace tensorcache::experiments
