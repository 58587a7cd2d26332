#include "train/presets.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/config.h"
#include "core/text.h"

namespace tensorcache::train {

Status ReadPresetOrFile(const std::string& name_or_path, TrainConfig* config) {
  std::vector<std::string_view> names;
  for (const Preset& preset : Presets()) {
    names.push_back(preset.name);
    if (preset.name != name_or_path) continue;
    TC_ASSIGN_OR_RETURN(const Json json, ParseJson(preset.json, name_or_path));
    return ParseConfig(json, config);
  }
  if (Exists(name_or_path)) return ReadConfigFile(name_or_path, config);
  return NotFound(fmt::format("--config: there is no file or preset {}{}", Quoted(name_or_path),
                              DidYouMeanOr(name_or_path, names, "the presets are")));
}

}  // namespace tensorcache::train
