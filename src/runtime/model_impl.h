// Inside a Model, for its sessions.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "core/thread_pool.h"
#include "runtime/forward.h"
#include "runtime/weight_source.h"
#include "runtime/weights.h"
#include "tensorcache/model.h"

namespace tensorcache {

struct Model::Impl {
  explicit Impl(const ModelOptions& o) : options(o), pool(o.threads) {}

  // A workspace, and the threads, for the time of one call.
  class Turn {
   public:
    explicit Turn(const Impl& model);
    ~Turn();
    runtime::ForwardPass& pass() { return pass_; }
    runtime::Workspace& workspace() { return *workspace_; }

   private:
    const Impl& model_;
    std::unique_lock<std::mutex> threads_;  // not taken by models that run on the caller's thread alone
    std::unique_ptr<runtime::Workspace> workspace_;
    runtime::ForwardPass pass_;
  };

  ModelConfig config;
  ModelOptions options;
  std::unique_ptr<runtime::WeightSource> source;
  runtime::Weights weights;
  uint64_t fingerprint = 0;
  TwoLevelCacheConfig cache_config;
  std::unique_ptr<TwoLevelCache> empty_cache;  // what sessions start as a fork of

  mutable ThreadPool pool;
  mutable std::mutex pool_mutex;
  mutable std::mutex spare_mutex;
  mutable std::vector<std::unique_ptr<runtime::Workspace>> spare;  // workspaces that nobody uses
};

}  // namespace tensorcache
