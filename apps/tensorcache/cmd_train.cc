// tensorcache train: a model from a config, in a folder.
#include <fmt/core.h>
#include <unistd.h>

#include <chrono>

#include "apps/tensorcache/command.h"
#include "apps/tensorcache/options.h"
#include "apps/tensorcache/stop_signal.h"
#include "apps/tensorcache/terminal.h"
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

void AddOptions(CLI::App& app, TrainArguments& arguments) {
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
    fmt::print("{:<42} {:<14} {}\n", key.path, key.value, key.help);
    if (key.type.starts_with("one of")) fmt::print("{:<57} {}\n", "", key.type);
  }
}

// Progress on stderr, results on stdout.
class Reporter {
 public:
  explicit Reporter(const TrainConfig& config) : total_(config.train.steps), method_(config.model.cache.method) {}

  train::RunEvents Events() {
    return {.on_tokenize = [this](int64_t done, int64_t total) { Tokenizing(done, total); },
            .on_start = [this](const train::Trainer& trainer, int64_t tokens) { Starting(trainer, tokens); },
            .on_step = [this](const train::StepMetrics& metrics, double rate) { Stepped(metrics, rate); },
            .on_evaluation = [this](int64_t step, const train::EvalMetrics& metrics,
                                    bool best) { Evaluated(step, metrics, best); }};
  }

  void Finish(const train::RunResult& result, const std::string& folder) {
    progress_.reset();
    if (result.stopped) {
      fmt::print("stopped after step {} of {}; saved in {}. Go on with: tensorcache train --resume --out {}\n",
                 result.step, total_, folder, folder);
    } else {
      fmt::print("done: {} steps; the model is in {}, the best one in {}/best\n", result.step, folder, folder);
    }
  }

 private:
  void Tokenizing(int64_t done, int64_t total) {
    if (!tokenizing_) tokenizing_.emplace(static_cast<int>(total / 1024 + 1));
    tokenizing_->Show(static_cast<int>(done / 1024), "kB of text read");
  }

  void Starting(const train::Trainer& trainer, int64_t tokens) {
    tokenizing_.reset();
    first_ = trainer.step();
    fmt::print("{} parameters, method {}, {} tokens a step, {} steps{}\n",
               train::CountParameters(trainer.model().parameters()), NameOf(method_), tokens, total_,
               first_ > 0 ? fmt::format(", going on after step {}", first_) : "");
    std::fflush(stdout);
    progress_.emplace(static_cast<int>(total_), static_cast<int>(first_));
  }

  void Stepped(const train::StepMetrics& metrics, double rate) {
    // Rates and losses of single steps jump; the average of the last ones is what one wants to see.
    rate_ = rate_ == 0 ? rate : 0.9 * rate_ + 0.1 * rate;
    loss_ = metrics.step == first_ + 1 ? metrics.loss : 0.9 * loss_ + 0.1 * metrics.loss;
    progress_->Show(static_cast<int>(metrics.step), fmt::format("loss {:.4f}, {:.0f} tokens/s", loss_, rate_));
  }

  void Evaluated(int64_t step, const train::EvalMetrics& metrics, bool best) {
    progress_->Clear();
    fmt::print("step {:>6}  loss {:.4f}  validation loss {:.4f}  accuracy {:.4f}  {:.0f} tokens/s{}\n", step, loss_,
               metrics.loss, metrics.accuracy, rate_, best ? "  best" : "");
    std::fflush(stdout);
  }

  int64_t total_;
  CacheMethod method_;
  int64_t first_ = 0;
  double rate_ = 0;
  double loss_ = 0;
  std::optional<Progress> tokenizing_;
  std::optional<Progress> progress_;
};

}  // namespace

Status RunTrain(const CommandLine& line) {
  TrainArguments arguments;
  CLI::App app("Trains a model: config and data in, a checkpoint folder out.");
  AddOptions(app, arguments);
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  if (arguments.out.empty() && !arguments.keys) return InvalidArgument("--out is missing; name a folder for the run");
  if (arguments.threads < 0) return InvalidArgument(fmt::format("--threads is {}; give 1 or more", arguments.threads));
  TC_ASSIGN_OR_RETURN(const TrainConfig config, ReadConfig(arguments));
  if (arguments.keys) {
    PrintKeys(config);
    return OkStatus();
  }
  TC_ASSIGN_OR_RETURN(train::WorldOptions world, train::WorldFromEnvironment());
  world.timeout_seconds = 120;  // the others wait while the first writes a checkpoint
  if (arguments.threads > 0) at::set_num_threads(arguments.threads);

  Reporter reporter(config);
  const train::RunOptions options{
      .folder = arguments.out, .resume = arguments.resume, .world = world, .stop = StopOnSignals()};
  Result<train::RunResult> result = train::RunTraining(config, options, reporter.Events());
  if (!result.ok()) {
    const Status& status = result.status();
    if (status.code() != StatusCode::kDiverged) return status;
    return Diverged(fmt::format("{}; what was saved in {} is unharmed. Try a lower train.learning_rate (now {})",
                                status.message(), arguments.out, config.train.learning_rate));
  }
  if (world.rank == 0) reporter.Finish(*result, arguments.out);
  return OkStatus();
}

}  // namespace tensorcache::cli
