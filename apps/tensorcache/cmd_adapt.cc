// tensorcache adapt: a pretrained model gets a memory, and learns to use it.
#include <algorithm>

#include "apps/tensorcache/command.h"
#include "apps/tensorcache/options.h"
#include "apps/tensorcache/training.h"
#include "core/config.h"
#include "core/text.h"
#include "methods/method.h"
#include "tokenizer/files.h"
#include "train/checkpoint.h"
#include "train/run.h"

namespace tensorcache::cli {
namespace {

using train::TrainConfig;
using train::TrainedParameters;

struct AdaptArguments {
  std::string model;
  std::string data;
  std::string valid;
  std::string out;
  std::string parameters = "memory";
  std::optional<int64_t> window;
  std::optional<double> learning_rate;
  int64_t steps = 500;
  int64_t batch = 8;
  std::optional<int64_t> block;
  double distill = 0;
  int64_t lora_rank = 8;
  std::vector<std::string> overrides;
  bool resume = false;
  std::string device = "cpu";
  std::string dtype = "float32";
  int threads = 0;
};

void AddOptions(Options& app, AdaptArguments& arguments) {
  app.add_option("--model", arguments.model, "The checkpoint folder to start from, as `tensorcache import` makes it")
      ->type_name("DIR");
  app.add_option("--data", arguments.data, "A UTF-8 text file, or a folder of such files")->type_name("PATH");
  app.add_option("--valid", arguments.valid, "The text for validation; default: the last tenth of the data")
      ->type_name("PATH");
  app.add_option("--out", arguments.out, "Folder for the adapted model, its checkpoints and metrics")->type_name("DIR");
  app.add_option("--window", arguments.window,
                 "W, the tokens kept exactly; default: the model's own window, or a quarter of its context")
      ->type_name("W");
  app.add_option("--train", arguments.parameters,
                 "What is trained: memory (W_tc, gates, lambda, eta), memory+attention, all, or lora (the memory, and "
                 "low-rank additions to the attention's projections)")
      ->type_name("WHAT")
      ->capture_default_str();
  app.add_option("--lora-rank", arguments.lora_rank, "Rank of those additions")->type_name("R")->capture_default_str();
  app.add_option("--distill", arguments.distill,
                 "Weight, 0 to 1, of what the model itself predicts with full attention, against what the text says")
      ->type_name("W")
      ->capture_default_str();
  app.add_option("--steps", arguments.steps, "Optimiser steps")->capture_default_str();
  app.add_option("--batch", arguments.batch, "Sequences a step")->capture_default_str();
  app.add_option("--block", arguments.block,
                 "Tokens of a sequence; default: 4 windows, within the model's context where it has to be")
      ->type_name("T");
  app.add_option(
         "--learning-rate", arguments.learning_rate,
         "Default: 1e-2 for the memory alone (W_tc; gates have ten times that), 1e-3 for lora, 3e-4 for weights")
      ->check(CLI::Range(1e-9, 1e3));
  app.add_option("--set", arguments.overrides,
                 "Change any key of the training's config, e.g. cache.tensor_cache.write.rule=delta; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option("--device", arguments.device, "cpu or cuda")->capture_default_str();
  app.add_option("--dtype", arguments.dtype, "float32 or bfloat16, of activations")->capture_default_str();
  app.add_option("--threads", arguments.threads, "CPU threads; default: all cores");
  // A run goes on as it was asked for; --set can change what may change.
  auto* const resume =
      app.add_flag("--resume", arguments.resume, "Go on with the run in --out as if it had never stopped");
  for (CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (option != resume && name != "--out" && name != "--set" && name != "--threads" && name != "--help") {
      resume->excludes(option);
    }
  }
  app.footer(
      "W_tc starts at zero: before the first step the model is its own window version exactly. `tensorcache train "
      "--keys`\n"
      "lists the keys that --set knows. Ctrl-C saves and ends; --resume goes on. The result is a checkpoint folder "
      "like\n"
      "any other: `tensorcache eval --model DIR --method tensor_cache,window,streaming_llm` compares.");
}

// The associative design is what a memory needs that joins a model late: it adds nothing at the start, and its keys and queries
// have one length whatever the model's are.
void AddMemory(train::TrainConfig& config) {
  CacheConfig& cache = config.model.cache;
  if (cache.method == CacheMethod::kTensorCache) return;  // it has one already
  cache.method = CacheMethod::kTensorCache;
  cache.tensor_cache.Apply(MemoryDesign::kAssociative);
}

// What is new learns faster than what was there.
void SetLearningRates(const AdaptArguments& arguments, train::TrainOptions& options) {
  constexpr double kOutput = 1e-2;  // of W_tc
  const bool memory_alone = options.parameters == TrainedParameters::kMemory;
  const double usual = options.parameters == TrainedParameters::kLora ? 1e-3 : 3e-4;
  options.learning_rate = arguments.learning_rate.value_or(memory_alone ? kOutput : usual);
  options.memory_output_learning_rate_multiple = memory_alone ? 1 : kOutput / options.learning_rate;
  options.memory_learning_rate_multiple = 10 * options.memory_output_learning_rate_multiple;
}

// Four windows: most of a sequence is beyond the window. Full attention, if it teaches, and learned positions end at the
// model's context.
int64_t DefaultBlock(const TrainConfig& config) {
  const ModelConfig& model = config.model;
  const bool bounded = config.train.distill > 0 || model.position_embedding == PositionKind::kLearned;
  const int64_t block = 4 * model.cache.window;
  return bounded ? std::min(block, model.max_position_embeddings) : block;
}

Status CheckGiven(const AdaptArguments& arguments) {
  if (arguments.out.empty()) return InvalidArgument("--out is missing; name a folder for the adapted model");
  if (arguments.resume) return OkStatus();
  if (arguments.model.empty()) return InvalidArgument("--model is missing; name a checkpoint folder to start from");
  if (arguments.data.empty()) return InvalidArgument("--data is missing; name a text file, or a folder of such files");
  return OkStatus();
}

Result<TrainConfig> MakeConfig(const AdaptArguments& arguments) {
  TrainConfig config;
  TC_RETURN_IF_ERROR(ReadConfigFile(train::PathIn(arguments.model, kConfigFile), &config.model));
  const bool had_window = !methods::MethodOf(config.model.cache).KeepsEverything();
  AddMemory(config);
  CacheConfig& cache = config.model.cache;
  if (!had_window) cache.window = std::max<int64_t>(1, config.model.max_position_embeddings / 4);
  cache.window = arguments.window.value_or(cache.window);
  if (tokenizer::TokenizerFileIn(arguments.model).empty()) {
    return InvalidArgument(
        fmt::format("{} has no tokenizer, so text means nothing to it; import it with one", Quoted(arguments.model)));
  }
  TC_ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer(arguments.model));
  config.data = {.kind = data::DataKind::kText,
                 .text = {.path = arguments.data,
                          .valid_path = arguments.valid,
                          .tokenizer = arguments.model,
                          .begin = tokenizer->begin_of_text() >= 0}};
  train::TrainOptions& options = config.train;
  TC_RETURN_IF_ERROR(ApplyOverride("train.parameters=" + arguments.parameters, &config));
  options.init = arguments.model;
  options.steps = arguments.steps;
  options.batch_size = arguments.batch;
  options.lora_rank = arguments.lora_rank;
  options.distill = arguments.distill;
  SetLearningRates(arguments, options);
  options.warmup_steps = std::min<int64_t>(50, arguments.steps / 10);
  options.block = arguments.block.value_or(DefaultBlock(config));
  TC_RETURN_IF_ERROR(ApplyOverride("train.device=" + arguments.device, &config));
  TC_RETURN_IF_ERROR(ApplyOverride("train.dtype=" + arguments.dtype, &config));
  for (const std::string& assignment : arguments.overrides) TC_RETURN_IF_ERROR(ApplyOverride(assignment, &config));
  return config;
}

}  // namespace

Status RunAdapt(const CommandLine& line) {
  AdaptArguments arguments;
  Options app("Adds Tensor Cache to a model that was trained without it, and trains it on text.");
  AddOptions(app, arguments);
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  TC_RETURN_IF_ERROR(CheckGiven(arguments));
  TrainConfig config;
  if (arguments.resume) {
    TC_RETURN_IF_ERROR(train::ReadRunConfig(arguments.out, &config));
    for (const std::string& assignment : arguments.overrides) TC_RETURN_IF_ERROR(ApplyOverride(assignment, &config));
  } else {
    TC_ASSIGN_OR_RETURN(config, MakeConfig(arguments));
  }
  return TrainInFolder(
      config, {.command = "adapt", .out = arguments.out, .resume = arguments.resume, .threads = arguments.threads});
}

}  // namespace tensorcache::cli
