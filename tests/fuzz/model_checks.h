// What is true of every model that loads; and small ones to start from.
#pragma once

#include <string>
#include <vector>

#include "tensorcache/config.h"
#include "tensorcache/model.h"
#include "tests/fuzz/driver.h"

namespace tensorcache::fuzz {

// Loads the checkpoint in `folder` and reads a few tokens with it.
Status TryModel(const std::string& folder, ModelOptions options);

// One layer of width 4 with two heads; its tensors are MakeSafetensors(TensorsOf(config)).
ModelConfig SmallModel();
// The tensors of a checkpoint.
std::vector<SeedTensor> TensorsOf(const ModelConfig& config);

}  // namespace tensorcache::fuzz
