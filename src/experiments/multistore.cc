// Two pairs an episode, one of which is asked for.
#include <fmt/format.h>

#include "core/config.h"
#include "experiments/experiments.h"
#include "experiments/recall_sweep.h"

namespace tensorcache::experiments {
namespace {

struct Published {
  double accuracy, std;
};
constexpr Published kPublished[5] = {{0.558, 0.004}, {0.125, 0.005}, {0.128, 0.003}, {0.464, 0.118}, {0.563, 0.003}};
constexpr int64_t kMostSteps = 2000;
constexpr double kTargetLoss = 0.05, kSolvedAccuracy = 0.95;
constexpr double kPublishedState[] = {434, 114, 112};  // kB: kReachingMethods

RecallRun StoreRun(CacheMethod method) {
  return {.name = fmt::format("multistore-{}", NameOf(method)), .changes = MultistoreChanges(method)};
}

// The same model, trained on until it knows both pairs.
RecallRun SolvedRun(const ExperimentOptions& options, CacheMethod method) {
  RecallRun run = StoreRun(method);
  run.name += "-solved";
  run.budget = {fmt::format("train.steps={}", options.quick() ? 150 : kMostSteps),
                fmt::format("train.target_loss={}", kTargetLoss)};
  return run;
}

}  // namespace

Plan PlanMultistore(const ExperimentOptions& options) {
  std::vector<TrainJob> jobs;
  for (const CacheMethod method : kAllMethods) {
    TC_RETURN_IF_ERROR(AddRecallJobs(options, StoreRun(method), PaperSeeds(options), &jobs));
  }
  for (const CacheMethod method : kReachingMethods) {
    TC_RETURN_IF_ERROR(AddRecallJobs(options, SolvedRun(options, method), OneSeed(options), &jobs));
  }
  return jobs;
}

Result<ExperimentResult> MeasureMultistore(const MeasureContext& context) {
  const uint64_t first_seed = OneSeed(context.options)[0];
  TC_ASSIGN_OR_RETURN(const TrainJob first,
                      MakeRecallJob(context.options, StoreRun(CacheMethod::kTensorCache), first_seed));
  TC_ASSIGN_OR_RETURN(
      const TrainJob last,
      MakeRecallJob(context.options, SolvedRun(context.options, CacheMethod::kTensorCache), first_seed));
  const train::TrainOptions& longest = last.config.train;
  TC_ASSIGN_OR_RETURN(const std::string setup, RecallSetup(context.options, PaperSeeds(context.options)));
  ExperimentResult result{
      .experiment = "multistore",
      .title = "Two stored pairs",
      .paper = "Appendix, synthetic stress tests",
      .setup =
          setup +
          fmt::format(" Gap 24, two pairs an episode, 8 keys and 8 values: the published chance level, 0.125, is that "
                      "of 8 values. The second row trains on until a validation loss is below {}, at the latest to "
                      "step {}, with one seed.",
                      longest.target_loss, longest.steps)};
  Table table{.id = "accuracy", .title = "Answer accuracy", .row_title = "Budget"};
  Table steps{.id = "steps", .title = "Steps of training", .row_title = "Budget"};
  Table state{.id = "state", .title = "State of one sequence", .note = kPaperWindowNote, .row_title = "Budget"};
  const std::string longer = fmt::format("until solved, at most {} steps", longest.steps);
  Row paper_row{.label = BudgetText(first)};
  Row solved_row{.label = longer}, steps_row{.label = longer}, state_row{.label = "any"};
  double done = 0;
  for (size_t m = 0; m < kAllMethods.size(); ++m) {
    const CacheMethod method = kAllMethods[m];
    table.columns.push_back({.title = MethodTitle(method), .better = Better::kHigher});
    steps.columns.push_back({.title = MethodTitle(method), .digits = 0});
    context.Tell(done++ / 8, MethodTitle(method));
    TC_ASSIGN_OR_RETURN(const RecallScores scores,
                        ScoreRecallRun(context, StoreRun(method), PaperSeeds(context.options)));
    paper_row.cells.push_back(Beside(Measured(scores.accuracy), kPublished[m].accuracy, kPublished[m].std));
    scores.AddRecords(&result.runs);
    if (std::find(kReachingMethods.begin(), kReachingMethods.end(), method) == kReachingMethods.end()) {
      solved_row.cells.push_back({});
      steps_row.cells.push_back({});
      continue;
    }
    context.Tell(done++ / 8, MethodTitle(method) + " until solved");
    TC_ASSIGN_OR_RETURN(const RecallScores solved,
                        ScoreRecallRun(context, SolvedRun(context.options, method), OneSeed(context.options)));
    solved_row.cells.push_back(Measured(solved.accuracy));
    solved.AddRecords(&result.runs);
    steps_row.cells.push_back(Measured(solved.Steps()));
    const uint64_t seed = PaperSeeds(context.options)[0];
    TC_ASSIGN_OR_RETURN(const double bytes, StateBytesOf(context, StoreRun(method), seed, PaperWindow(method)));
    state.columns.push_back({.title = MethodTitle(method), .unit = "KiB", .digits = 0, .better = Better::kLower});
    state_row.cells.push_back(Beside(Measured(bytes / kKibibyte), kPublishedState[state_row.cells.size()]));
  }
  result.findings.push_back(
      fmt::format("At the first budget Tensor Cache answers {:.1f} % and Full KV {:.1f} % (published 56.3 and 55.8 %). "
                  "56 % is one of the two pairs known and a guess at the other: 1/2 + 1/2 * 1/8.",
                  100 * *paper_row.cells[4].value, 100 * *paper_row.cells[0].value));
  const double reached = *solved_row.cells[4].value;
  result.findings.push_back(fmt::format(
      "Trained on, Tensor Cache {}: {:.1f} % after {:.0f} steps; Full KV {:.1f} %, Infini-attention {:.1f} %.",
      reached >= kSolvedAccuracy ? "tells the pairs apart" : "does not yet tell the pairs apart", 100 * reached,
      *steps_row.cells[4].value, 100 * *solved_row.cells[0].value, 100 * *solved_row.cells[3].value));
  table.rows = {std::move(paper_row), std::move(solved_row)};
  steps.rows = {std::move(steps_row)};
  state.rows = {std::move(state_row)};
  result.tables = {std::move(table), std::move(steps), std::move(state)};
  return result;
}

}  // namespace tensorcache::experiments
