// A checkpoint folder: config.json and model.safetensors, which describe a model to anybody, and train_state.safetensors,
// from which training goes on. Each file is replaced atomically, and each is complete in itself: a kill between two of
// them leaves a folder that loads.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/model_files.h"
#include "train/model.h"
#include "train/parameters.h"

namespace tensorcache::train {

std::string PathIn(const std::string& folder, const char* file);

// Writes config.json and model.safetensors, float32, into the existing folder.
Status SaveModel(const Model& model, const std::string& folder);
// Reads them. Missing, surplus and misshapen tensors are named.
Result<Model> LoadModel(const std::string& folder, at::Device device = at::kCPU);
// Copies the parameters of `folder`, of any floating type, into `model`. If memories may differ, those that the folder lacks
// stay as they are, and those that the model lacks are left out.
enum class Memories { kSame, kMayDiffer };
Status LoadParameters(const std::string& folder, const Model& model, Memories memories = Memories::kSame);

// Named tensors and short texts, as one file.
struct TrainState {
  std::map<std::string, std::string> texts;
  std::vector<StoredParameter> tensors;
};
Status SaveTrainState(const TrainState& state, const std::string& folder);
// On the CPU. kNotFound if the folder has none; kCorrupt if the file is not a train state.
Result<TrainState> LoadTrainState(const std::string& folder);

}  // namespace tensorcache::train
