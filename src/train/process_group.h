// What World needs of c10d, so that only one file depends on it and a LibTorch without it can do without that file.
#pragma once

#include <functional>
#include <memory>

#include "train/distributed.h"

namespace tensorcache::train {

// Connections between all ranks. Exchanges run in the order of the calls; all functions throw what c10d throws.
class ProcessGroup {
 public:
  using Wait = std::function<void()>;  // blocks until the exchange is done; to be called once, before the group ends

  virtual ~ProcessGroup() = default;
  virtual Wait StartSum(const at::Tensor& flat) = 0;
  virtual Wait StartBarrier() = 0;
  // After an error, so that the end of the group does not wait for ranks that are gone.
  virtual void Abort() = 0;
};

// For options.size > 1. Throws nothing.
Result<std::unique_ptr<ProcessGroup>> JoinProcessGroup(const WorldOptions& options, at::Device device);

// The first sentence of an exception's text, without source places and backtrace.
std::string FirstSentence(const std::exception& error);

}  // namespace tensorcache::train
