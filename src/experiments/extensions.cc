// The appendix's extensions, which the paper describes and does not measure: each on recall and on two stored pairs, beside
// the default.
#include <fmt/format.h>

#include "core/config.h"
#include "experiments/experiments.h"
#include "experiments/recall_runs.h"

namespace tensorcache::experiments {
namespace {

struct Variant {
  std::string label;
  std::vector<std::string> changes;  // of cache.tensor_cache: "router.slots=2"
};

struct Extension {
  std::string name;
  std::string title;
  std::string paper;
  std::string what;
  std::vector<Variant> variants;  // besides the default
};

Extension Slots() {
  return {
      .name = "slots",
      .title = "Several memory slots a head",
      .paper = "Appendix A.1 (described there, not measured)",
      .what = "S matrices a head; a router writes each pair into one of them and reads the k best.",
      .variants = {{"S = 2, reads 1", {"router.slots=2", "router.top_k=1"}},
                   {"S = 4, reads 2", {"router.slots=4", "router.top_k=2"}},
                   {"S = 4, reads 2, routed by the query", {"router.slots=4", "router.top_k=2", "router.by=query"}}}};
}

Extension Timescales() {
  return {.name = "timescales",
          .title = "A fast and a slow memory",
          .paper = "Appendix A.2 (described there, not measured)",
          .what = "Two matrices a head with decays of their own; the slow one starts at 0.9995.",
          .variants = {{"two timescales", {"timescales.slow=true"}},
                       {"two timescales, fast 0.98", {"timescales.slow=true", "write.lambda_init=0.98"}}}};
}

Extension Gates() {
  return {.name = "gates",
          .title = "Gates",
          .paper = "Section 3.3 describes the default",
          .what =
              "How the memory's read joins the local output. The default is one learned number a layer that starts at "
              "σ(0) = 0.5.",
          .variants = {{"starts at σ(-2), as the authors' code", {"read.gate_init=-2"}},
                       {"one a token", {"read.gate=per_token"}},
                       {"fixed at 0.5", {"read.learn_gate=false"}}}};
}

Extension Layers() {
  return {.name = "layers",
          .title = "Which layers have a memory",
          .paper = "Appendix A.3 (described there, not measured)",
          .what = "The default is all four.",
          .variants = {{"top 2", {"layers=top", "top_layers=2"}},
                       {"top 1", {"layers=top", "top_layers=1"}},
                       {"none: a window", {"layers=none"}}}};
}

Extension Norms() {
  return {.name = "norms",
          .title = "Normalisation and addressing",
          .paper = "Appendix A.3 describes unit queries and keys and scaled values, and measures none",
          .what =
              "Unit queries and keys, scaled values, reads divided by their weight, and addressing before rotary "
              "embedding.",
          .variants = {{"unit queries", {"address.normalize_queries=true"}},
                       {"unit keys", {"address.normalize_keys=true"}},
                       {"unit queries and keys", {"address.normalize_queries=true", "address.normalize_keys=true"}},
                       {"values times 4", {"write.value_scale=4"}},
                       {"normalised reads", {"read.normalize=true"}},
                       {"addressed before RoPE", {"address.by=content"}}}};
}

enum class Task { kRecall, kMultistore };
std::string TaskName(Task task) { return task == Task::kRecall ? "recall" : "multistore"; }

// A quick budget teaches nobody two pairs.
std::vector<Task> TasksOf(const ExperimentOptions& options) {
  if (options.quick()) return {Task::kRecall};
  return {Task::kRecall, Task::kMultistore};
}

RecallRun VariantRun(const ExperimentOptions& options, const Extension& extension, const Variant& variant, Task task) {
  const bool recall = task == Task::kRecall;
  RecallRun run{
      .name = fmt::format("{}-{}-{}", extension.name, TaskName(task),
                          variant.changes.empty() ? "default" : variant.changes.back()),
      .changes = recall ? GapRun(CacheMethod::kTensorCache, 24).changes : MultistoreChanges(CacheMethod::kTensorCache)};
  for (const std::string& change : variant.changes) run.changes.push_back("cache.tensor_cache." + change);
  // The figure of interest is how soon it is solved.
  run.budget.push_back(UntilSolved());
  if (options.quick()) run.budget.emplace_back("train.batch_size=8");
  return run;
}

std::vector<Variant> WithDefault(const Extension& extension) {
  std::vector<Variant> variants = {{"default", {}}};
  variants.insert(variants.end(), extension.variants.begin(), extension.variants.end());
  return variants;
}

Plan PlanOf(const Extension& extension, const ExperimentOptions& options) {
  std::vector<TrainJob> jobs;
  for (const Variant& variant : WithDefault(extension)) {
    for (const Task task : TasksOf(options)) {
      TC_RETURN_IF_ERROR(
          AddRecallJobs(options, VariantRun(options, extension, variant, task), OneSeed(options), &jobs));
    }
  }
  return jobs;
}

// "On recall the default is solved at step 150; top 1 is not solved (accuracy 0.813)." `first` is the task's first column:
// accuracy, NLL, step.
std::string TaskFinding(const Table& table, const std::string& task, size_t first) {
  std::string finding = "On " + task;
  for (size_t row = 0; row < table.rows.size(); ++row) {
    const auto& [label, cells] = table.rows[row];
    const Cell& step = cells[first + 2];
    finding += fmt::format("{} {} {}", row > 0 ? ";" : "", row > 0 ? label : "the default",
                           step.value ? fmt::format("is solved at step {:.0f}", *step.value)
                                      : fmt::format("is not solved (accuracy {:.3f})", *cells[first].value));
  }
  return finding + ".";
}

Result<ExperimentResult> MeasureOf(const Extension& extension, const MeasureContext& context) {
  const std::vector<Task> tasks = TasksOf(context.options);
  TC_ASSIGN_OR_RETURN(const std::string setup, RecallSetup(context.options, OneSeed(context.options),
                                                           VariantRun(context.options, extension, {}, tasks[0])));
  ExperimentResult result{
      .experiment = extension.name,
      .title = extension.title,
      .paper = extension.paper,
      .setup = extension.what + " " + setup +
               (context.options.quick() ? " Gap 24, one pair."
                                        : " Recall: gap 24, one pair; multistore: gap 24, two pairs, 8 values.") +
               " " + UntilSolvedNote()};
  Table table{
      .id = "variants",
      .title = "Scores by variant",
      .note = fmt::format("Accuracy and NLL are streamed; the step is that of the first evaluation in training, "
                          "one each 25 steps, that answers {:.0f} %.",
                          100 * kNearlyAllAnswered),
      .row_title = "Variant"};
  for (const Task task : tasks) {
    const std::string group = TaskName(task);
    table.columns.push_back({.title = "accuracy", .group = group, .better = Better::kHigher});
    table.columns.push_back({.title = "NLL", .group = group, .unit = "nats", .better = Better::kLower});
    table.columns.push_back({.title = "99 % at step", .group = group, .digits = 0, .better = Better::kLower});
  }
  table.columns.push_back({.title = "state", .unit = "KiB", .digits = 0, .better = Better::kLower});
  const std::vector<Variant> variants = WithDefault(extension);
  double done = 0;
  for (const Variant& variant : variants) {
    Row row{.label = variant.label};
    for (const Task task : tasks) {
      context.Tell(done++ / static_cast<double>(tasks.size() * variants.size()), variant.label);
      TC_ASSIGN_OR_RETURN(
          const RecallScores scores,
          ScoreRecallRun(context, VariantRun(context.options, extension, variant, task), OneSeed(context.options)));
      row.cells.push_back(Measured(scores.accuracy));
      row.cells.push_back(Measured(scores.nll));
      row.cells.push_back(SolvedAt(scores.runs));
      scores.AddRecords(&result.runs);
    }
    TC_ASSIGN_OR_RETURN(const double bytes,
                        StateBytesOf(context, VariantRun(context.options, extension, variant, Task::kRecall),
                                     OneSeed(context.options)[0], RingType::kFp32));
    row.cells.push_back(Measured(bytes / kKibibyte));
    table.rows.push_back(std::move(row));
  }
  for (size_t t = 0; t < tasks.size(); ++t) result.findings.push_back(TaskFinding(table, TaskName(tasks[t]), 3 * t));
  result.tables.push_back(std::move(table));
  return result;
}

}  // namespace

Plan PlanSlots(const ExperimentOptions& options) { return PlanOf(Slots(), options); }
Plan PlanTimescales(const ExperimentOptions& options) { return PlanOf(Timescales(), options); }
Plan PlanGates(const ExperimentOptions& options) { return PlanOf(Gates(), options); }
Plan PlanLayers(const ExperimentOptions& options) { return PlanOf(Layers(), options); }
Plan PlanNorms(const ExperimentOptions& options) { return PlanOf(Norms(), options); }

Result<ExperimentResult> MeasureSlots(const MeasureContext& context) { return MeasureOf(Slots(), context); }
Result<ExperimentResult> MeasureTimescales(const MeasureContext& context) { return MeasureOf(Timescales(), context); }
Result<ExperimentResult> MeasureGates(const MeasureContext& context) { return MeasureOf(Gates(), context); }
Result<ExperimentResult> MeasureLayers(const MeasureContext& context) { return MeasureOf(Layers(), context); }
Result<ExperimentResult> MeasureNorms(const MeasureContext& context) { return MeasureOf(Norms(), context); }

}  // namespace tensorcache::experiments
