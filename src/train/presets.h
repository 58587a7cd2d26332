// The training configs that come with the program (configs/*.json).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "train/train_config.h"

namespace tensorcache::train {

struct Preset {
  std::string_view name;  // "recall"
  std::string_view json;
};

std::span<const Preset> Presets();

// A preset by name, or a file by path. What neither is gets the nearest name.
Status ReadPresetOrFile(const std::string& name_or_path, TrainConfig* config);

}  // namespace tensorcache::train
