// tensorcache train: a model from a config, in a folder.
#include "apps/tensorcache/command.h"
#include "apps/tensorcache/options.h"
#include "apps/tensorcache/output.h"
#include "apps/tensorcache/training.h"
#include "core/config.h"
#include "train/presets.h"
#include "train/run.h"

namespace tensorcache::cli {
namespace {

using train::TrainConfig;

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string out;
  bool resume = false;
  std::string device;
  std::string dtype;
  int threads = 0;
  bool keys = false;
};

void AddOptions(Options& app, TrainArguments& arguments) {
  std::string presets;
  for (const train::Preset& preset : train::Presets()) {
    presets += fmt::format("{}{}", presets.empty() ? "" : ", ", preset.name);
  }
  app.add_option("--config", arguments.config, fmt::format("A config file, or a preset: {}", presets))
      ->type_name("FILE|NAME");
  app.add_option("--set", arguments.overrides, "Change a key of the config, e.g. cache.method=window; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option("--out", arguments.out, "Folder for checkpoints and metrics")->type_name("DIR");
  app.add_flag("--resume", arguments.resume, "Go on with the run in DIR as if it had never stopped");
  app.add_option("--device", arguments.device, "cpu or cuda; the same as --set train.device=...");
  app.add_option("--dtype", arguments.dtype, "float32 or bfloat16; the same as --set train.dtype=...");
  app.add_option("--threads", arguments.threads, "CPU threads of this process; default: all cores");
  app.add_flag("--keys", arguments.keys, "Print every key of the config with its value and meaning, and end");
  app.footer(
      "Ctrl-C (or SIGTERM) saves a checkpoint and ends; --resume goes on from it. Several processes train one model "
      "when\n"
      "started by torchrun, mpirun or srun, or by hand with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.");
}

Result<TrainConfig> ReadConfig(const TrainArguments& arguments) {
  TrainConfig config;
  if (!arguments.config.empty()) {
    TC_RETURN_IF_ERROR(train::ReadPresetOrFile(arguments.config, &config));
  } else if (arguments.resume) {
    TC_RETURN_IF_ERROR(train::ReadRunConfig(arguments.out, &config));
  } else if (!arguments.keys) {
    return InvalidArgument("--config is missing; --config recall trains the paper's recall task");
  }
  for (const std::string& assignment : arguments.overrides) TC_RETURN_IF_ERROR(ApplyOverride(assignment, &config));
  if (!arguments.device.empty()) TC_RETURN_IF_ERROR(ApplyOverride("train.device=" + arguments.device, &config));
  if (!arguments.dtype.empty()) TC_RETURN_IF_ERROR(ApplyOverride("train.dtype=" + arguments.dtype, &config));
  return config;
}

void PrintKeys(const TrainConfig& config) {
  for (const ConfigKey& key : ConfigKeys(config)) {
    Print("{:<42} {:<14} {}\n", key.path, key.value, key.help);
    if (key.type.starts_with("one of")) Print("{:<57} {}\n", "", key.type);
  }
}

}  // namespace

Status RunTrain(const CommandLine& line) {
  TrainArguments arguments;
  Options app("Trains a model: config and data in, a checkpoint folder out.");
  AddOptions(app, arguments);
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  if (arguments.out.empty() && !arguments.keys) return InvalidArgument("--out is missing; name a folder for the run");
  TC_ASSIGN_OR_RETURN(const TrainConfig config, ReadConfig(arguments));
  if (arguments.keys) {
    PrintKeys(config);
    return OkStatus();
  }
  return TrainInFolder(
      config, {.command = "train", .out = arguments.out, .resume = arguments.resume, .threads = arguments.threads});
}

}  // namespace tensorcache::cli
