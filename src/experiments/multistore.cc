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
constexpr double kTargetLoss = 0.05, kSolvedAccuracy = 0.95;
constexpr double kPublishedState[] = {434, 114, 112};  // kB: kReachingMethods

// Trained from random parameters at gap 24, a model learns which two values were stored and then, for thousands of
// steps, not which of them belongs to the key. Near pairs, large batches and matrices that start larger than GPT-2's
// teach that; the distance comes after it. The near pairs are inside the window that all methods have, so Window KV
// learns them once for all.
struct Rung {
  std::string_view name;
  int64_t min_gap, gap, episodes;
  int64_t most_steps, batch_size;
  double target_loss;
};
constexpr std::array<Rung, 3> kLadder = {{
    {"near", 0, 2, 1, 3000, 128, 0.1},
    {"spread", 2, 24, 1, 3000, 64, 0.1},
    {"solved", 0, 24, 6, 1500, 32, kTargetLoss},
}};
constexpr double kInitialDeviation = 0.08;

RecallRun LadderRun(const ExperimentOptions& options, CacheMethod method, size_t rung) {
  const Rung& here = kLadder[rung];
  RecallRun run = MultistoreRun(rung == 0 ? CacheMethod::kWindow : method);
  run.name += fmt::format("-{}", here.name);
  run.changes.push_back(fmt::format("data.recall.min_gap={}", here.min_gap));
  run.changes.push_back(fmt::format("data.recall.gap={}", here.gap));
  run.changes.push_back(fmt::format("data.recall.episodes={}", here.episodes));
  run.budget = {fmt::format("train.target_loss={}", here.target_loss), "train.beta2=0.98"};
  if (rung == 0) run.budget.push_back(fmt::format("train.initializer_range={}", kInitialDeviation));
  if (options.quick()) {
    run.budget.emplace_back("train.steps=50");
  } else {
    run.budget.push_back(fmt::format("train.steps={}", here.most_steps));
    run.budget.push_back(fmt::format("train.batch_size={}", here.batch_size));
  }
  if (rung > 0) run.from = std::make_shared<const RecallRun>(LadderRun(options, method, rung - 1));
  return run;
}
// "gaps 2 to 24, one episode"
std::string RungText(const data::RecallConfig& task) {
  const std::string gaps =
      task.min_gap > 0 ? fmt::format("gaps {} to {}", task.min_gap, task.gap) : fmt::format("gap {}", task.gap);
  return fmt::format("{}, {}", gaps, task.episodes == 1 ? "one episode" : fmt::format("{} episodes", task.episodes));
}

Result<std::vector<TrainJob>> LadderJobs(const ExperimentOptions& options, CacheMethod method) {
  std::vector<TrainJob> jobs;
  for (size_t rung = 0; rung < kLadder.size(); ++rung) {
    TC_RETURN_IF_ERROR(AddRecallJobs(options, LadderRun(options, method, rung), OneSeed(options), &jobs));
  }
  return jobs;
}

}  // namespace

Plan PlanMultistore(const ExperimentOptions& options) {
  std::vector<TrainJob> jobs;
  for (const CacheMethod method : kAllMethods) {
    TC_RETURN_IF_ERROR(AddRecallJobs(options, MultistoreRun(method), PaperSeeds(options), &jobs));
  }
  for (const CacheMethod method : kReachingMethods) {
    TC_ASSIGN_OR_RETURN(const std::vector<TrainJob> ladder, LadderJobs(options, method));
    jobs.insert(jobs.end(), ladder.begin(), ladder.end());
  }
  return jobs;
}

Result<ExperimentResult> MeasureMultistore(const MeasureContext& context) {
  TC_ASSIGN_OR_RETURN(const TrainJob first, MakeRecallJob(context.options, MultistoreRun(CacheMethod::kTensorCache),
                                                          OneSeed(context.options)[0]));
  TC_ASSIGN_OR_RETURN(const std::vector<TrainJob> ladder, LadderJobs(context.options, CacheMethod::kTensorCache));
  std::string rungs;
  for (const TrainJob& job : ladder) {
    rungs += fmt::format("{}{} (to a loss of {}, at most {})", rungs.empty() ? "" : ", then ",
                         RungText(job.config.data.recall), job.config.train.target_loss, BudgetText(job));
  }
  TC_ASSIGN_OR_RETURN(const std::string setup, RecallSetup(context.options, PaperSeeds(context.options)));
  ExperimentResult result{
      .experiment = "multistore",
      .title = "Two stored pairs",
      .paper = "Appendix, synthetic stress tests",
      .setup = setup +
               fmt::format(
                   " Gap 24, two pairs an episode, 8 keys and 8 values: the published chance level, 0.125, is that "
                   "of 8 values. The second row's models climb a ladder, each rung from the model of the one before: "
                   "{}. The first rung's pairs are inside the window, so one model of Window KV is that of all; its "
                   "matrices start with deviation {}. One seed.",
                   rungs, ladder[0].config.train.initializer_range)};
  Table table{.id = "accuracy", .title = "Answer accuracy", .row_title = "Budget"};
  Table steps{.id = "steps", .title = "Steps of training until solved", .row_title = "Rung"};
  for (const TrainJob& job : ladder) steps.rows.push_back({.label = RungText(job.config.data.recall)});
  Table state{.id = "state", .title = "State of one sequence", .note = kPaperWindowNote, .row_title = "Budget"};
  Row paper_row{.label = BudgetText(first)}, solved_row{.label = "until solved"}, state_row{.label = "any"};
  double done = 0;
  for (size_t m = 0; m < kAllMethods.size(); ++m) {
    const CacheMethod method = kAllMethods[m];
    table.columns.push_back({.title = MethodTitle(method), .better = Better::kHigher});
    context.Tell(done++ / 8, MethodTitle(method));
    TC_ASSIGN_OR_RETURN(const RecallScores scores,
                        ScoreRecallRun(context, MultistoreRun(method), PaperSeeds(context.options)));
    paper_row.cells.push_back(Beside(Measured(scores.accuracy), kPublished[m].accuracy, kPublished[m].std));
    scores.AddRecords(&result.runs);
    if (std::find(kReachingMethods.begin(), kReachingMethods.end(), method) == kReachingMethods.end()) {
      solved_row.cells.push_back({});
      continue;
    }
    context.Tell(done++ / 8, MethodTitle(method) + " until solved");
    TC_ASSIGN_OR_RETURN(
        const RecallScores solved,
        ScoreRecallRun(context, LadderRun(context.options, method, kLadder.size() - 1), OneSeed(context.options)));
    solved_row.cells.push_back(Measured(solved.accuracy));
    steps.columns.push_back({.title = MethodTitle(method), .digits = 0});
    TC_ASSIGN_OR_RETURN(const std::vector<TrainJob> jobs, LadderJobs(context.options, method));
    for (size_t rung = 0; rung < jobs.size(); ++rung) {
      TC_ASSIGN_OR_RETURN(const TrainedRun trained, context.lab.Find(jobs[rung]));
      const std::vector<double> taken = {static_cast<double>(trained.record.steps)};
      const bool there = trained.record.loss <= jobs[rung].config.train.target_loss;
      steps.rows[rung].cells.push_back(there ? Measured(taken) : TextCell(fmt::format("not in {}", taken[0])));
      if (rung > 0 || steps.columns.size() == 1) result.runs.push_back(trained.record);
    }
    const uint64_t seed = PaperSeeds(context.options)[0];
    TC_ASSIGN_OR_RETURN(const double bytes, StateBytesOf(context, MultistoreRun(method), seed, PaperWindow(method)));
    state.columns.push_back({.title = MethodTitle(method), .unit = "KiB", .digits = 0, .better = Better::kLower});
    state_row.cells.push_back(Beside(Measured(bytes / kKibibyte), kPublishedState[state_row.cells.size()]));
  }
  result.findings.push_back(fmt::format(
      "At the first budget Tensor Cache answers {:.1f} % and Full KV {:.1f} % (published 56.3 and 55.8 %). "
      "Who knows the two stored values, and not which of them belongs to the key, answers 1/2 + 1/2 * 1/8 = 56 %.",
      100 * *paper_row.cells[4].value, 100 * *paper_row.cells[0].value));
  const double reached = *solved_row.cells[4].value;
  result.findings.push_back(fmt::format(
      "On the ladder Tensor Cache {}: {:.1f} %; Full KV {:.1f} %, Infini-attention {:.1f} %.",
      reached >= kSolvedAccuracy ? "learns to tell the pairs apart" : "does not yet learn to tell the pairs apart",
      100 * reached, 100 * *solved_row.cells[0].value, 100 * *solved_row.cells[3].value));
  table.rows = {std::move(paper_row), std::move(solved_row)};
  state.rows = {std::move(state_row)};
  result.tables = {std::move(table), std::move(steps), std::move(state)};
  return result;
}

}  // namespace tensorcache::experiments
