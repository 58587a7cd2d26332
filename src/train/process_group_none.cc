// In place of process_group.cc when LibTorch has no c10d with Gloo.
#include "train/process_group.h"

namespace tensorcache::train {

bool HasDistributedTraining() { return false; }

Result<std::unique_ptr<ProcessGroup>> JoinProcessGroup(const WorldOptions&, at::Device) {
  return Unsupported(
      "this build has no distributed training: its LibTorch has no c10d with Gloo; train in one process, or build with "
      "a LibTorch that has it (scripts/setup.sh fetches one)");
}

}  // namespace tensorcache::train
