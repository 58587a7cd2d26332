#include "experiments/mqar_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "experiments/recall_runs.h"
#include "train/presets.h"

namespace tensorcache::experiments {
namespace {

constexpr MqarTest kTests[] = {{64, 4}, {64, 8}, {64, 16}, {128, 32}, kMostTrained, {512, 128}, kBeyond, kFarBeyond};
constexpr MqarTest kQuickTests[] = {{64, 4}, {64, 16}, kMostTrained, kBeyond};

Result<TrainJob> MakeJob(const std::string& name, const std::vector<std::string>& usual,
                         const std::vector<std::string>& own, const ExperimentOptions& options) {
  TrainJob job{.name = name};
  TC_RETURN_IF_ERROR(train::ReadPresetOrFile("mqar", &job.config));
  TC_RETURN_IF_ERROR(ApplyChanges(usual, own, options.changes, &job));
  return job;
}

Result<MqarRun> BestRun(const MeasureContext& context, const MqarModel& model, uint64_t seed,
                        std::vector<RunRecord>* records) {
  std::optional<MqarRun> best;
  for (const double rate : MqarRates(context.options)) {
    TC_ASSIGN_OR_RETURN(TrainJob job, MakeMqarJob(context.options, model, rate, seed));
    TC_ASSIGN_OR_RETURN(TrainedRun run, context.lab.Find(job));
    records->push_back(run.record);
    if (best && run.record.loss >= best->trained.record.loss) continue;
    best = MqarRun{.job = std::move(job), .trained = std::move(run), .rate = rate};
  }
  return *std::move(best);
}

// Sequences that a score is of.
int64_t RowsOf(const ExperimentOptions& options, const MqarTest& test) {
  const int64_t answers = options.quick() ? 256 : 4096, least = options.quick() ? 2 : 16;
  return std::max(least, answers / test.pairs);
}

}  // namespace

std::string MqarTest::Label() const { return fmt::format("{} of {}", pairs, length); }

std::span<const MqarTest> MqarTests(const ExperimentOptions& options) {
  if (options.quick()) return kQuickTests;
  return kTests;
}

std::string MqarModel::Label() const {
  return window == 0 ? arm.Title() : fmt::format("{}, W = {}", arm.Title(), window);
}

std::vector<MqarModel> MqarModels(const ExperimentOptions& options) {
  if (options.quick()) return {{CacheMethod::kFull}, {CacheMethod::kWindow, 16}, {kAssociative, 16}};
  std::vector<MqarModel> models = {{CacheMethod::kFull}};
  for (const Arm& arm : kBoundedArms) {
    for (const int64_t window : {16, 64}) models.push_back({arm, window});
  }
  return models;
}

std::vector<double> MqarRates(const ExperimentOptions& options) {
  if (options.quick()) return {1e-2};
  return {3e-3, 1e-2};
}

// From random parameters, of Zoology's mixture alone, even Full KV still guessed after 1500 steps. Of one to four
// pairs just before their queries a model learns in some hundred steps to bind a key to its value, and needs no more
// than a window for that: one model of Window KV learns them once for all methods.
Result<TrainJob> MakeMqarNearJob(const ExperimentOptions& options, uint64_t seed) {
  std::vector<std::string> usual = {"train.batch_size=64", "train.learning_rate=3e-3", "train.target_loss=0.03"};
  usual.emplace_back(options.quick() ? "train.steps=300" : "train.steps=1000");
  const std::vector<std::string> own = {"cache.method=window",
                                        "cache.window=16",
                                        "data.mqar.length=64",
                                        "data.mqar.pairs=4",
                                        "data.mqar.min_pairs=1",
                                        "data.mqar.task_tokens=4",
                                        fmt::format("train.seed={}", seed)};
  return MakeJob(fmt::format("mqar-near-{}", seed), usual, own, options);
}

Result<TrainJob> MakeMqarJob(const ExperimentOptions& options, const MqarModel& model, double rate, uint64_t seed) {
  std::vector<std::string> usual = {UntilSolved()}, own = model.arm.Changes();
  own.insert(own.end(), model.changes.begin(), model.changes.end());
  if (options.quick()) usual.insert(usual.end(), {"train.steps=150", "train.warmup_steps=20"});
  own.insert(own.end(), {"data.mqar.min_pairs=4", "data.mqar.task_tokens=16"});  // Zoology's mixture
  if (model.window > 0) own.push_back(fmt::format("cache.window={}", model.window));
  own.push_back(fmt::format("train.learning_rate={}", rate));
  own.push_back(fmt::format("train.seed={}", seed));
  std::string kind = model.arm.Name();
  if (!model.variant.empty()) kind += "-" + model.variant;
  if (model.window > 0) kind += fmt::format("-w{}", model.window);
  TC_ASSIGN_OR_RETURN(TrainJob job, MakeJob(fmt::format("mqar-{}-{}-{}", kind, rate, seed), usual, own, options));
  TC_ASSIGN_OR_RETURN(TrainJob near, MakeMqarNearJob(options, seed));
  job.changes += " train.init=" + near.name;
  job.from = std::make_shared<const TrainJob>(std::move(near));
  return job;
}

Result<TaskScore> ScoreMqarTest(const MeasureContext& context, const TrainJob& job, const TrainedRun& trained,
                                const MqarTest& test) {
  TC_ASSIGN_OR_RETURN(const auto model, Model::Load(trained.folder, {.threads = context.options.threads}));
  data::MqarConfig task = job.config.data.mqar;
  task.length = test.length;
  task.pairs = test.pairs;
  task.min_pairs = 0;
  TC_ASSIGN_OR_RETURN(const auto source, data::MakeMqarSource(task, job.config.train.seed + 1));
  return StreamTask(model, *source, {.rows = RowsOf(context.options, test), .prefill = true});
}

Result<MqarScores> ScoreMqar(const MeasureContext& context, const MqarModel& model, const std::vector<uint64_t>& seeds,
                             std::vector<RunRecord>* records) {
  const std::span<const MqarTest> tests = MqarTests(context.options);
  MqarScores scores{.model = model, .bytes = std::vector<double>(tests.size())};
  std::vector<std::vector<double>> accuracy(tests.size());
  for (const uint64_t seed : seeds) {
    TC_ASSIGN_OR_RETURN(MqarRun run, BestRun(context, model, seed, records));
    for (size_t t = 0; t < tests.size(); ++t) {
      TC_ASSIGN_OR_RETURN(const TaskScore score, ScoreMqarTest(context, run.job, run.trained, tests[t]));
      accuracy[t].push_back(score.accuracy);
      scores.bytes[t] = static_cast<double>(score.state_bytes);
    }
    scores.runs.push_back(std::move(run));
  }
  for (const auto& values : accuracy) scores.accuracy.push_back(Measured(values));
  return scores;
}

}  // namespace tensorcache::experiments
