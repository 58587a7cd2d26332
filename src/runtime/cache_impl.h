// Inside a TwoLevelCache, for the session that saves one as part of itself.
#pragma once

#include <memory>
#include <vector>

#include "runtime/cache_layout.h"
#include "runtime/state_file.h"

namespace tensorcache {

struct TwoLevelCache::Impl {
  struct Layer {
    runtime::SharedArrays arrays;
    int64_t position = 0;
  };

  std::shared_ptr<const runtime::CacheSpec> spec;
  std::vector<Layer> layers;

  // Of everything that decides about the arrays and what they mean.
  uint64_t Fingerprint() const;
  void Put(runtime::StateWriter& writer) const;
  // Replaces the layers, or nothing.
  Status Get(runtime::StateReader& reader);
};

}  // namespace tensorcache
