// The files of a checkpoint folder.
#pragma once

namespace tensorcache {

inline constexpr char kConfigFile[] = "config.json";
inline constexpr char kModelFile[] = "model.safetensors";
inline constexpr char kTrainStateFile[] = "train_state.safetensors";

}  // namespace tensorcache
