// Inside a TwoLevelCache, for the session that saves one as part of itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/cache_layout.h"
#include "runtime/state_file.h"

namespace tensorcache {

namespace runtime {

// Tokens that a cache counts, so that no position overflows.
inline constexpr int64_t kMostTokens = int64_t{1} << 62;

// What calls without a cache return.
Status NoCache();

}  // namespace runtime

struct TwoLevelCache::Impl {
  struct Layer {
    runtime::SharedArrays arrays;
    int64_t position = 0;
  };

  std::shared_ptr<const runtime::CacheSpec> spec;
  std::vector<Layer> empty;  // what Clear goes back to, without having to allocate
  std::vector<Layer> layers;
  StatusCode failed = StatusCode::kOk;  // the error that left the layers half-way

  // Everything that decides about the arrays and what they mean.
  runtime::StateOwner Owner(runtime::StateKind kind, uint64_t model) const;
  Status CheckUsable() const;
  // kInvalidArgument if layers have seen different numbers of tokens.
  Status Put(runtime::StateWriter& writer) const;
  // The layers of a state; the cache is as it was.
  Result<std::vector<Layer>> Get(runtime::StateReader& reader) const;
};

}  // namespace tensorcache
