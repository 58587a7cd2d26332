#include "train/run.h"

#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <time.h>

#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <system_error>

#include "core/config.h"
#include "core/file.h"
#include "core/folder.h"
#include "core/text.h"
#include "tokenizer/files.h"
#include "train/device.h"
#include "train/metrics_log.h"

namespace tensorcache::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kRunConfigFile[] = "train.json";
constexpr char kBestFolder[] = "best";
constexpr char kTokenizerText[] = "tokenizer";

// Of all threads of this process.
double CpuSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The keys that may differ between a run and its continuation: those that do not change what a step computes. Folders may
// have been moved since: where it started from, unless a teacher is there, and the tokenizer, which has a fingerprint.
void ForgetChangeable(OrderedJson& config) {
  const bool taught = config["train"]["distill"] != 0.0;
  for (const char* key :
       {"steps", "log_every", "eval_every", "eval_batches", "save_every", "target_loss", "init", "device"}) {
    if (taught && std::string_view(key) == "init") continue;
    config["train"].erase(key);
  }
  config["data"]["text"].erase("cache_dir");
  config["data"]["text"].erase("tokenizer");
}

// "train.seed", the path of the first difference; "" if there is none.
std::string FirstDifference(const OrderedJson& a, const OrderedJson& b, const std::string& path) {
  if (a == b) return "";
  if (!a.is_object() || !b.is_object()) return path;
  for (const auto& [key, value] : a.items()) {
    const std::string inner = path.empty() ? key : path + "." + key;
    if (!b.contains(key)) return inner;
    const std::string found = FirstDifference(value, b[key], inner);
    if (!found.empty()) return found;
  }
  return path.empty() ? "an unknown key" : path;
}

Status CheckSameRun(const TrainConfig& config, const TrainState& state, const std::string& folder) {
  const auto stored = state.texts.find("config");
  if (stored == state.texts.end()) return Corrupt(fmt::format("{}: {} has no config", folder, kTrainStateFile));
  TrainConfig before;
  TC_ASSIGN_OR_RETURN(const Json json, ParseJson(stored->second, kTrainStateFile));
  TC_RETURN_IF_ERROR(ParseConfig(json, &before));
  OrderedJson now_json = ToJson(config), before_json = ToJson(before);
  ForgetChangeable(now_json);
  ForgetChangeable(before_json);
  const std::string different = FirstDifference(now_json, before_json, "");
  if (different.empty()) return OkStatus();
  return InvalidArgument(
      fmt::format("{}: was trained with another {}; resume it with its own config (leave --config and "
                  "--set out), or start in another folder",
                  folder, different));
}

// A run writes its state before its model: a model without a state is somebody else's.
Status CheckFreshFolder(const std::string& folder) {
  if (Exists(PathIn(folder, kTrainStateFile))) {
    return InvalidArgument(fmt::format(
        "{}: holds a training run already; add --resume to go on with it, or choose another folder", folder));
  }
  if (Exists(PathIn(folder, kModelFile))) {
    return InvalidArgument(
        fmt::format("{}: holds a model already, which training would replace; choose another folder", folder));
  }
  return OkStatus();
}

// The run's files and clock; what only the first process does is here.
class Run {
 public:
  Run(const TrainConfig& config, const RunOptions& options, const RunEvents& events)
      : config_(config), options_(options), events_(events) {}

  Result<RunResult> Go();

 private:
  bool First() const { return world_->rank() == 0; }
  bool Ended() const { return trainer_->step() >= config_.train.steps || result_.reached_target; }
  Status Prepare();
  Status LockFolder();
  Status Restore();
  Status OpenFolder();
  Result<bool> StopWanted();
  Status MakeSteps();
  Status AfterStep(const StepMetrics& metrics, const StepTime& time);
  Status Evaluate();
  Status SaveCheckpoint();
  Status SaveFolder(const std::string& folder);
  // What a saved state knows the tokenizer by; "" for data without one.
  std::string TokenizerText() const {
    return tokenizer_ == nullptr ? "" : fmt::format("{:016x}", tokenizer_->fingerprint());
  }
  // An error in one process's files must end all of them, not leave them waiting.
  Status Agree(const Status& mine);

  TrainConfig config_;
  std::optional<FolderLock> lock_;
  const RunOptions& options_;
  const RunEvents& events_;
  std::unique_ptr<World> world_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<MetricsLog> log_;
  RunResult result_{.best_loss = std::numeric_limits<double>::infinity()};
  int64_t saved_step_ = -1;
};

Status Run::Agree(const Status& mine) {
  std::array<double, 1> failures = {mine.ok() ? 0.0 : 1.0};
  const Status exchange = world_->AllReduceSum(failures);
  if (!mine.ok()) return mine;
  TC_RETURN_IF_ERROR(exchange);
  return failures[0] == 0 ? OkStatus() : IoError("another process failed; see its message");
}

Status Run::Prepare() {
  TC_RETURN_IF_ERROR(ValidateTrainConfig(config_));
  TC_RETURN_IF_ERROR(CheckDevice(config_.train.device));
  TrainConfig here = config_;
  here.train.device = DeviceOfProcess(config_.train.device, options_.world.local_rank);
  TC_ASSIGN_OR_RETURN(world_, World::Join(options_.world, at::Device(here.train.device)));
  // Before text is tokenised and a model made.
  TC_RETURN_IF_ERROR(Agree(First() ? LockFolder() : OkStatus()));
  data::SourceOptions source_options{.seed = config_.train.seed,
                                     .length = config_.Block(),
                                     .rows_per_batch = config_.train.batch_size,
                                     .consecutive = config_.train.carry_state};
  if (First()) source_options.progress = events_.on_tokenize;
  TC_ASSIGN_OR_RETURN(std::shared_ptr<const data::BatchSource> source,
                      data::MakeSource(config_.data, source_options, &tokenizer_));
  if (config_.model.vocab_size == 0) config_.model.vocab_size = source->vocab_size();
  if (config_.data.kind != data::DataKind::kText) config_.model.max_position_embeddings = source->length();
  here.model = config_.model;
  const Trainer::Start start = options_.resume ? Trainer::Start::kRestored : Trainer::Start::kFresh;
  TC_ASSIGN_OR_RETURN(trainer_, Trainer::Create(here, std::move(source), world_.get(), start));
  return OkStatus();
}

Status Run::LockFolder() {
  TC_ASSIGN_OR_RETURN(FolderLock lock, FolderLock::Take(options_.folder));
  lock_.emplace(std::move(lock));
  return options_.resume ? OkStatus() : CheckFreshFolder(options_.folder);
}

Status Run::Restore() {
  TC_ASSIGN_OR_RETURN(const TrainState state, LoadTrainState(options_.folder));
  TC_RETURN_IF_ERROR(CheckSameRun(config_, state, options_.folder));
  const auto tokenizer = state.texts.find(kTokenizerText);
  if (tokenizer != state.texts.end() && tokenizer->second != TokenizerText()) {
    return InvalidArgument(fmt::format("{}: was trained with another tokenizer than {}; set data.text.tokenizer",
                                       options_.folder, Quoted(config_.data.text.tokenizer)));
  }
  TC_RETURN_IF_ERROR(trainer_->Restore(state));
  const auto best = state.texts.find("best_loss");
  if (best != state.texts.end()) result_.best_loss = std::strtod(best->second.c_str(), nullptr);
  // A run that had ended so does not go on.
  result_.reached_target = config_.train.target_loss > 0 && result_.best_loss <= config_.train.target_loss;
  saved_step_ = trainer_->step();
  // Its model is written behind its state: what ended it in between would leave an older model for good.
  return First() && Ended() ? SaveFolder(options_.folder) : OkStatus();
}

Status Run::OpenFolder() {
  const std::string best = PathIn(options_.folder, kBestFolder);
  for (const std::string& folder : {options_.folder, best}) {
    RemoveAbandonedTemporaries(folder, std::chrono::seconds(0));
  }
  // A run that was killed before its first save may have left a model there; without its config it is none.
  std::error_code ignored;
  if (!options_.resume) std::filesystem::remove(PathIn(best, kConfigFile), ignored);
  TC_ASSIGN_OR_RETURN(MetricsLog log, MetricsLog::Open(options_.folder, trainer_->step()));
  log_ = std::make_unique<MetricsLog>(std::move(log));
  return WriteFileAtomically(PathIn(options_.folder, kRunConfigFile), JsonText(ToJson(config_)));
}

Result<bool> Run::StopWanted() {
  std::array<double, 1> wanted = {options_.stop != nullptr && options_.stop->load() ? 1.0 : 0.0};
  TC_RETURN_IF_ERROR(world_->AllReduceSum(wanted));  // a signal may have reached one process only
  return wanted[0] > 0;
}

Status Run::SaveFolder(const std::string& folder) {
  TC_RETURN_IF_ERROR(MakeFolder(folder));
  if (tokenizer_ != nullptr) {
    TC_RETURN_IF_ERROR(tokenizer_->Save(folder));
    TC_RETURN_IF_ERROR(tokenizer::CopyCompanionFiles(config_.data.text.tokenizer, folder));
  }
  return SaveModel(trainer_->model(), folder);
}

Status Run::SaveCheckpoint() {
  if (saved_step_ == trainer_->step()) return OkStatus();
  TC_ASSIGN_OR_RETURN(TrainState state, trainer_->Save());
  saved_step_ = trainer_->step();
  const auto save = [&]() -> Status {
    state.texts[kTokenizerText] = TokenizerText();
    state.texts["config"] = ToJson(config_).dump();
    state.texts["best_loss"] = fmt::format("{}", result_.best_loss);
    TC_RETURN_IF_ERROR(SaveTrainState(state, options_.folder));
    TC_RETURN_IF_ERROR(SaveFolder(options_.folder));
    if (events_.on_save) events_.on_save(trainer_->step());
    return OkStatus();
  };
  return Agree(First() ? save() : OkStatus());
}

Status Run::Evaluate() {
  TC_ASSIGN_OR_RETURN(result_.last, trainer_->Evaluate());
  const bool best = result_.last.loss < result_.best_loss;
  if (best) result_.best_loss = result_.last.loss;
  const auto record = [&]() -> Status {
    TC_RETURN_IF_ERROR(log_->Append(EvalRecord(trainer_->step(), result_.last, best)));
    if (events_.on_evaluation) events_.on_evaluation(trainer_->step(), result_.last, best);
    return best ? SaveFolder(PathIn(options_.folder, kBestFolder)) : OkStatus();
  };
  result_.reached_target = config_.train.target_loss > 0 && result_.last.loss <= config_.train.target_loss;
  return Agree(First() ? record() : OkStatus());
}

Status Run::AfterStep(const StepMetrics& metrics, const StepTime& time) {
  const TrainOptions& train = config_.train;
  bool last = metrics.step == train.steps;
  if (First()) {
    if (events_.on_step) events_.on_step(metrics, static_cast<double>(metrics.tokens) / time.seconds);
    if (!metrics.layers.empty()) TC_RETURN_IF_ERROR(log_->Append(TrainRecord(metrics, time)));
  }
  if (last || (train.eval_every > 0 && metrics.step % train.eval_every == 0)) TC_RETURN_IF_ERROR(Evaluate());
  last = last || result_.reached_target;
  if (last || (train.save_every > 0 && metrics.step % train.save_every == 0)) TC_RETURN_IF_ERROR(SaveCheckpoint());
  return OkStatus();
}

Status Run::MakeSteps() {
  const TrainOptions& train = config_.train;
  while (!Ended()) {
    TC_ASSIGN_OR_RETURN(const bool stop, StopWanted());
    if (stop) {
      result_.stopped = true;
      TC_RETURN_IF_ERROR(SaveCheckpoint());
      break;
    }
    const int64_t next = trainer_->step() + 1;
    const bool logged = next % train.log_every == 0 || next == 1 || next == train.steps;
    const auto start = Clock::now();
    const double cpu_start = CpuSeconds();
    TC_ASSIGN_OR_RETURN(const StepMetrics metrics, trainer_->Step(logged));
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    TC_RETURN_IF_ERROR(AfterStep(metrics, {.seconds = seconds, .cpu_seconds = CpuSeconds() - cpu_start}));
  }
  return OkStatus();
}

Result<RunResult> Run::Go() {
  TC_RETURN_IF_ERROR(Prepare());
  if (options_.resume) TC_RETURN_IF_ERROR(Agree(Restore()));
  TC_RETURN_IF_ERROR(Agree(First() ? OpenFolder() : OkStatus()));
  if (First() && events_.on_start) {
    events_.on_start(*trainer_, config_.train.batch_size * trainer_->block());
  }
  if (const Status status = MakeSteps(); !status.ok()) {
    const bool diverged = status.code() == StatusCode::kDiverged && First();
    if (diverged) TC_RETURN_IF_ERROR(log_->Append(DivergedRecord(trainer_->step() + 1, status.message())));
    return status;
  }
  result_.step = trainer_->step();
  return result_;
}

}  // namespace

Result<RunResult> RunTraining(const TrainConfig& config, const RunOptions& options, const RunEvents& events) {
  // libsentencepiece and libc10 both have a global FLAGS_minloglevel, of different sizes: what one writes there falls on its
  // neighbour, this flag, with which an error of torch ends the program instead of being thrown.
  FLAGS_caffe2_use_fatal_for_enforce = false;
  try {
    return Run(config, options, events).Go();
  } catch (const c10::Error& error) {  // out of memory, or an operation the device does not have
    return IoError(std::string(FirstLine(error.what_without_backtrace())));
  }
}

Status ReadRunConfig(const std::string& folder, TrainConfig* config) {
  const std::string path = PathIn(folder, kRunConfigFile);
  if (!Exists(path)) {
    return NotFound(
        fmt::format("{}: there is no training to resume in this folder ({} is missing)", folder, kRunConfigFile));
  }
  return ReadConfigFile(path, config);
}

}  // namespace tensorcache::train
