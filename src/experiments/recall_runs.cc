#include "experiments/recall_runs.h"

#include <fmt/format.h>

#include <algorithm>

#include "train/presets.h"

namespace tensorcache::experiments {
namespace {

constexpr std::string_view kPublishedSteps = "300 steps of 32 sequences";

// What an associative memory pays for writing. At no cost it writes fillers at half strength, and they overwrite a pair within
// some ten thousand tokens: 14 of 16 questions at 65536. At this cost it writes what was stored, 32 of 32; at ten times this
// cost 31.
constexpr double kWriteCost = 0.02;

std::vector<std::string> ChangesOf(const Arm& arm) {
  std::vector<std::string> changes = arm.Changes();
  if (arm.design == MemoryDesign::kAssociative) changes.push_back(fmt::format("train.write_cost={}", kWriteCost));
  return changes;
}

data::RecallConfig TaskOf(const TrainJob& job, std::optional<int64_t> gap) {
  data::RecallConfig task = job.config.data.recall;
  task.gap = gap.value_or(task.gap);
  return task;
}

}  // namespace

Result<TrainJob> MakeRecallJob(const ExperimentOptions& options, const RecallRun& run, uint64_t seed) {
  TrainJob job{.name = fmt::format("{}-{}", run.name, seed), .may_diverge = run.may_diverge};
  TC_RETURN_IF_ERROR(train::ReadPresetOrFile("recall", &job.config));
  // Frequent evaluations tell when a task is solved.
  std::vector<std::string> usual = {"train.eval_every=25", "train.eval_batches=2"};
  if (options.quick()) usual.insert(usual.end(), {"train.steps=100", "train.batch_size=16"});
  usual.insert(usual.end(), run.budget.begin(), run.budget.end());
  std::vector<std::string> own = run.changes;
  own.push_back(fmt::format("train.seed={}", seed));
  TC_RETURN_IF_ERROR(ApplyChanges(usual, own, options.changes, &job));
  if (run.from != nullptr) {
    TC_ASSIGN_OR_RETURN(TrainJob from, MakeRecallJob(options, *run.from, seed));
    job.changes += " train.init=" + from.name;
    job.from = std::make_shared<const TrainJob>(std::move(from));
  }
  return job;
}

std::string UntilSolved() { return fmt::format("train.target_loss={}", kSolvedLoss); }

std::string UntilSolvedNote() {
  return fmt::format("Training ends early when a validation loss is below {}.", kSolvedLoss);
}

Cell SolvedAt(const std::vector<TrainedRun>& runs) {
  std::vector<double> steps;
  for (const TrainedRun& run : runs) {
    const auto solved = std::ranges::find_if(
        run.evaluations, [](const Evaluation& evaluation) { return evaluation.accuracy >= kNearlyAllAnswered; });
    if (solved == run.evaluations.end()) return TextCell("not reached");
    steps.push_back(static_cast<double>(solved->step));
  }
  return Measured(steps);
}

RecallRun GapRun(const Arm& arm, int64_t gap) {
  RecallRun run{.name = fmt::format("recall-gap{}-{}", gap, arm.Name()), .changes = ChangesOf(arm)};
  run.changes.push_back(fmt::format("data.recall.gap={}", gap));
  return run;
}

RecallRun LongGapRun(const Arm& arm, int64_t gap) {
  RecallRun run = GapRun(arm, gap);
  run.name = fmt::format("longgap-{}-{}", gap, arm.Name());
  run.changes.emplace_back("data.recall.episodes=1");
  run.budget = {"train.batch_size=16"};
  return run;
}

std::vector<std::string> MultistoreChanges(const Arm& arm) {
  std::vector<std::string> changes = ChangesOf(arm);
  changes.insert(changes.end(), {"data.recall.stores=2", "data.recall.keys=8", "data.recall.values=8"});
  return changes;
}

RecallRun MultistoreRun(const Arm& arm) {
  return {.name = fmt::format("multistore-{}", arm.Name()), .changes = MultistoreChanges(arm)};
}

Status AddRecallJobs(const ExperimentOptions& options, const RecallRun& run, const std::vector<uint64_t>& seeds,
                     std::vector<TrainJob>* jobs) {
  for (const uint64_t seed : seeds) {
    TC_ASSIGN_OR_RETURN(TrainJob job, MakeRecallJob(options, run, seed));
    jobs->push_back(std::move(job));
  }
  return OkStatus();
}

int64_t RecallRows(const ExperimentOptions& options, const data::RecallConfig& task) {
  const int64_t answers = options.quick() ? 300 : 3000, tokens = options.quick() ? 20'000 : 400'000;
  return std::max<int64_t>(1, std::min(answers / task.episodes, tokens / task.Length()));
}

Result<RecallScores> ScoreRecallRun(const MeasureContext& context, const RecallRun& run,
                                    const std::vector<uint64_t>& seeds, std::optional<int64_t> gap) {
  RecallScores scores;
  for (const uint64_t seed : seeds) {
    TC_ASSIGN_OR_RETURN(const TrainJob job, MakeRecallJob(context.options, run, seed));
    TC_ASSIGN_OR_RETURN(TrainedRun trained, context.lab.Find(job));
    TC_ASSIGN_OR_RETURN(const auto model, Model::Load(trained.folder, {.threads = context.options.threads}));
    RecallStreamOptions stream{.task = TaskOf(job, gap), .rows = 0, .seed = seed + 1};
    stream.rows = RecallRows(context.options, stream.task);
    TC_ASSIGN_OR_RETURN(const TaskScore score, StreamRecall(model, stream));
    scores.accuracy.push_back(score.accuracy);
    scores.nll.push_back(score.nll);
    scores.runs.push_back(std::move(trained));
  }
  return scores;
}

std::vector<double> RecallScores::Steps() const {
  std::vector<double> steps;
  for (const TrainedRun& run : runs) steps.push_back(static_cast<double>(run.record.steps));
  return steps;
}

std::vector<double> RecallScores::Seconds() const {
  std::vector<double> seconds;
  for (const TrainedRun& run : runs) seconds.push_back(run.record.seconds);
  return seconds;
}

std::vector<double> RecallScores::SecondsOf(int64_t steps) const {
  std::vector<double> seconds;
  for (const TrainedRun& run : runs) seconds.push_back(run.seconds_per_step * static_cast<double>(steps));
  return seconds;
}

void RecallScores::AddRecords(std::vector<RunRecord>* records) const {
  for (const TrainedRun& run : runs) records->push_back(run.record);
}

Result<double> StateBytesOf(const MeasureContext& context, const RecallRun& run, uint64_t seed, RingType window,
                            std::optional<int64_t> gap) {
  TC_ASSIGN_OR_RETURN(const TrainJob job, MakeRecallJob(context.options, run, seed));
  TC_ASSIGN_OR_RETURN(const TrainedRun trained, context.lab.Find(job));
  TC_ASSIGN_OR_RETURN(const auto model, Model::Load(trained.folder, {.ring = window}));
  TC_ASSIGN_OR_RETURN(const int64_t bytes, RecallStateBytes(model, TaskOf(job, gap)));
  return static_cast<double>(bytes);
}

std::string BudgetText(const TrainJob& job) {
  return fmt::format("{} steps of {} sequences", job.config.train.steps, job.config.train.batch_size);
}

std::string SeedsNote(const std::vector<uint64_t>& seeds) {
  if (seeds.size() == 1) return "One seed of training.";
  return fmt::format("± is the standard deviation over {} seeds of training.", seeds.size());
}

Result<std::string> RecallSetup(const ExperimentOptions& options, const std::vector<uint64_t>& seeds,
                                const RecallRun& run) {
  TC_ASSIGN_OR_RETURN(const TrainJob job, MakeRecallJob(options, run, seeds[0]));
  const ModelConfig& model = job.config.model;
  const train::TrainOptions& train = job.config.train;
  const std::string steps = BudgetText(job);
  return fmt::format(
      "{} layers, {} heads, width {}, window {}, RoPE, AdamW at {}, {}{}, float32, writes as inference has them (the "
      "paper: bfloat16, writes in chunks of 32). Every score is of the trained model streaming token by token. {}",
      model.num_hidden_layers, model.num_attention_heads, model.hidden_size, model.cache.window, train.learning_rate,
      steps, steps == kPublishedSteps ? "" : fmt::format(" (the paper: {})", kPublishedSteps), SeedsNote(seeds));
}

std::string PerSeed(const std::vector<double>& values, int digits) {
  std::string text;
  for (const double value : values) text += fmt::format("{}{:.{}f}", text.empty() ? "" : " / ", value, digits);
  return text;
}

}  // namespace tensorcache::experiments
