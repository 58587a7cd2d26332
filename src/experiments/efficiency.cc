// What training and streaming cost: time and memory by method and gap, of the tasks of the recall and long-gap tables.
#include <fmt/format.h>

#include "core/config.h"
#include "experiments/experiments.h"
#include "experiments/recall_sweep.h"

namespace tensorcache::experiments {
namespace {

struct Published {
  int64_t gap;
  double seconds[3], seconds_std[3], training_gb[3], inference_gb[3];  // kReachingMethods
};
constexpr Published kMatched[] = {
    {24, {6.8, 1007.7, 798.4}, {0.0, 4.2, 1.1}, {0.162, 0.608, 1.374}, {0.046, 0.035, 0.037}},
    {36, {7.3, 1372.3, 1102.5}, {0.2, 3.5, 3.0}, {0.216, 0.825, 1.867}, {0.052, 0.035, 0.038}},
    {48, {7.1, 1754.4, 1410.1}, {0.1, 2.8, 5.4}, {0.257, 1.025, 2.345}, {0.057, 0.036, 0.038}},
};
constexpr Published kLong[] = {
    {128, {57.9, 4191.3, 2956.6}, {3.0, 206.5, 276.9}, {0.124, 0.445, 0.996}, {0.044, 0.035, 0.037}},
    {256, {53.5, 7574.7, 5056.9}, {0.2, 6.5, 3.9}, {0.216, 0.825, 1.867}, {0.052, 0.035, 0.038}},
    {512, {54.4, 15218.3, 9993.0}, {0.4, 127.7, 160.9}, {0.381, 1.561, 3.588}, {0.072, 0.036, 0.039}},
    {1024, {62.7, 30621.6, 20299.1}, {0.7, 208.9, 91.4}, {0.725, 3.054, 7.050}, {0.114, 0.039, 0.041}},
};

// What one row of a table is of.
struct Task {
  const Published& published;
  bool episodes;  // of the matched gaps; otherwise one long gap
};

// A run that trains for some steps: their time and memory are those of all the others.
RecallRun TimedRun(const ExperimentOptions& options, const Task& task, CacheMethod method) {
  RecallRun run = task.episodes ? GapRun(method, task.published.gap) : LongGapRun(method, task.published.gap);
  run.name = "efficiency-" + run.name;
  run.budget.push_back(fmt::format("train.steps={}", options.quick() ? 5 : 20));
  run.budget.insert(run.budget.end(), {"train.log_every=1", "train.eval_batches=1"});
  return run;
}

std::vector<Task> TasksOf(const ExperimentOptions& options) {
  std::vector<Task> tasks;
  for (const Published& published : kMatched) {
    if (!options.quick() || published.gap <= 36) tasks.push_back({published, true});
  }
  for (const Published& published : kLong) {
    if (!options.quick() || published.gap <= 128) tasks.push_back({published, false});
  }
  return tasks;
}

// Time of the whole budget and resident memory of the training process, and what a session of the model keeps.
Result<Row> MethodRow(const MeasureContext& context, const Task& task, size_t method, std::vector<RunRecord>* records) {
  const RecallRun run = TimedRun(context.options, task, kReachingMethods[method]);
  std::vector<double> seconds, training;
  double inference = 0, state = 0;
  for (const uint64_t seed : OneSeed(context.options)) {
    TC_ASSIGN_OR_RETURN(const TrainJob job, MakeRecallJob(context.options, run, seed));
    TC_ASSIGN_OR_RETURN(const TrainJob whole, MakeRecallJob(context.options, {}, seed));
    TC_ASSIGN_OR_RETURN(const TrainedRun trained, context.lab.Find(job));
    seconds.push_back(trained.seconds_per_step * static_cast<double>(whole.config.train.steps));
    if (trained.peak_bytes > 0) training.push_back(static_cast<double>(trained.peak_bytes) / kGigabyte);
    records->push_back(trained.record);
    if (inference > 0) continue;
    TC_ASSIGN_OR_RETURN(const auto model, Model::Load(trained.folder, {.ring = PaperWindow(kReachingMethods[method])}));
    TC_ASSIGN_OR_RETURN(const int64_t bytes, RecallStateBytes(model, job.config.data.recall));
    state = static_cast<double>(bytes);
    inference = state + static_cast<double>(model->info().weight_bytes);
  }
  const Published& published = task.published;
  return Row{.label = fmt::format("{}, {}", published.gap, MethodTitle(kReachingMethods[method])),
             .cells = {Beside(Measured(seconds), published.seconds[method], published.seconds_std[method]),
                       Beside(training.empty() ? Cell{} : Measured(training), published.training_gb[method]),
                       Beside(Measured(inference / kGigabyte), published.inference_gb[method]),
                       Beside(Measured(state / kKibibyte), PublishedState(kReachingMethods[method], published.gap))}};
}

Table EmptyTable(const std::string& id, const std::string& title, const std::string& note) {
  return {.id = id,
          .title = title,
          .note = note,
          .row_title = "Gap, method",
          .columns = {{.title = "training", .unit = "s", .digits = 1},
                      {.title = "memory in training", .unit = "GB"},
                      {.title = "memory in inference", .unit = "GB"},
                      {.title = "state", .unit = "KiB", .digits = 0, .better = Better::kLower}}};
}

// Three rows a gap: kReachingMethods.
void AddFindings(const Table& matched, ExperimentResult* result) {
  std::string seconds, times, memory;
  for (size_t row = 0; row + 2 < matched.rows.size(); row += 3) {
    const std::vector<Cell>&full = matched.rows[row].cells, &ours = matched.rows[row + 2].cells;
    const char* comma = row > 0 ? ", " : "";
    seconds += fmt::format("{}{:.0f}", comma, *ours[0].value);
    times += fmt::format("{}{:.2f}", comma, *ours[0].value / *full[0].value);
    if (ours[1].value && full[1].value) memory += fmt::format("{}{:.2f}", comma, *ours[1].value / *full[1].value);
  }
  result->findings.push_back(
      fmt::format("At the matched gaps Tensor Cache trains in {} s on one CPU thread, {} times as long as Full KV; "
                  "published at gap "
                  "24 are 798 s on a GPU, 117 times as long as Full KV.",
                  seconds, times));
  if (memory.empty()) return;
  result->findings.push_back(fmt::format(
      "Its training takes {} times the process memory of Full KV's; published is 8.5 times the GPU's memory.", memory));
}

}  // namespace

Plan PlanEfficiency(const ExperimentOptions& options) {
  std::vector<TrainJob> jobs;
  for (const Task& task : TasksOf(options)) {
    for (const CacheMethod method : kReachingMethods) {
      TC_RETURN_IF_ERROR(AddRecallJobs(options, TimedRun(options, task, method), OneSeed(options), &jobs));
    }
  }
  return jobs;
}

Result<ExperimentResult> MeasureEfficiency(const MeasureContext& context) {
  const std::vector<Task> tasks = TasksOf(context.options);
  const std::vector<uint64_t> seeds = OneSeed(context.options);
  TC_ASSIGN_OR_RETURN(const TrainJob whole, MakeRecallJob(context.options, {}, seeds[0]));
  TC_ASSIGN_OR_RETURN(
      const TrainJob timed,
      MakeRecallJob(context.options, TimedRun(context.options, tasks.back(), CacheMethod::kFull), seeds[0]));
  ExperimentResult result{
      .experiment = "efficiency",
      .title = "Time and memory of training",
      .paper = "Appendix, training efficiency",
      .setup = fmt::format(
          "The model and task of the recall and the long-gap table. Here: one CPU thread, the median CPU time of {} "
          "steps times {} (what else the machine does changes it by up to a third), and the resident memory of the "
          "whole training process, LibTorch included. Inference: weights and state. Published: a GPU's time and "
          "memory. {}",
          timed.config.train.steps, whole.config.train.steps, SeedsNote(seeds))};
  Table matched = EmptyTable("matched", "Matched gaps", fmt::format("{} of six episodes.", BudgetText(whole)));
  Table distant = EmptyTable(
      "long", "Long gaps",
      fmt::format("{} steps of {} sequences of one episode; the paper does not say how many steps its times are of.",
                  whole.config.train.steps, timed.config.train.batch_size));
  for (const Task& task : tasks) {
    for (size_t m = 0; m < kReachingMethods.size(); ++m) {
      TC_ASSIGN_OR_RETURN(Row row, MethodRow(context, task, m, &result.runs));
      (task.episodes ? matched : distant).rows.push_back(std::move(row));
    }
  }
  AddFindings(matched, &result);
  result.tables = {std::move(matched), std::move(distant)};
  return result;
}

}  // namespace tensorcache::experiments
