// Write rules: outer, delta and wedge on the same task.
#include <fmt/format.h>

#include "core/config.h"
#include "experiments/experiments.h"
#include "experiments/recall_runs.h"

namespace tensorcache::experiments {
namespace {

struct PublishedRule {
  WriteRule rule;
  double accuracy, accuracy_std, nll, nll_std, seconds, seconds_std;
  const char* per_seed;
};
constexpr PublishedRule kRules[] = {
    {WriteRule::kOuter, 0.998, 0.003, 0.021, 0.020, 201.0, 1.4, "0.994 / 1.000 / 0.999"},
    {WriteRule::kDelta, 1.000, 0.000, 0.001, 0.000, 264.8, 1.9, "1.000 / 1.000 / 1.000"},
    {WriteRule::kWedge, 0.979, 0.029, 0.150, 0.156, 260.5, 1.7, "0.938 / 0.999 / 1.000"},
};

RecallRun RuleRun(WriteRule rule) {
  RecallRun run = GapRun(CacheMethod::kTensorCache, 24);
  if (rule == WriteRule::kOuter) return run;  // the default: the main table's run
  run.name += fmt::format("-{}", NameOf(rule));
  run.changes.push_back(fmt::format("cache.tensor_cache.write.rule={}", NameOf(rule)));
  return run;
}

}  // namespace

Plan PlanRules(const ExperimentOptions& options) {
  std::vector<TrainJob> jobs;
  for (const PublishedRule& rule : kRules) {
    TC_RETURN_IF_ERROR(AddRecallJobs(options, RuleRun(rule.rule), PaperSeeds(options), &jobs));
  }
  return jobs;
}

Result<ExperimentResult> MeasureRules(const MeasureContext& context) {
  TC_ASSIGN_OR_RETURN(const std::string setup, RecallSetup(context.options, PaperSeeds(context.options)));
  ExperimentResult result{
      .experiment = "rules",
      .title = "Write rules",
      .paper = "Appendix, write-rule ablation",
      .setup =
          setup +
          " Gap 24. The delta rule is the exact one, solved in closed form within a chunk; the paper approximates it "
          "by the residual at a chunk's start."};
  Table table{.id = "rules",
              .title = "Accuracy, NLL and training time by write rule",
              .note =
                  "Times are of different machines: published on a GPU, here on CPU threads (median step times the "
                  "number of steps).",
              .row_title = "Rule",
              .columns = {{.title = "accuracy", .digits = 3, .better = Better::kHigher},
                          {.title = "NLL", .unit = "nats", .digits = 4, .better = Better::kLower},
                          {.title = "training", .unit = "s", .digits = 0},
                          {.title = "per seed"},
                          {.title = "per seed, published"}}};
  double done = 0;
  for (const PublishedRule& rule : kRules) {
    context.Tell(done++ / 3, std::string(NameOf(rule.rule)));
    TC_ASSIGN_OR_RETURN(const RecallScores scores,
                        ScoreRecallRun(context, RuleRun(rule.rule), PaperSeeds(context.options)));
    scores.AddRecords(&result.runs);
    table.rows.push_back({.label = std::string(NameOf(rule.rule)),
                          .cells = {Beside(Measured(scores.accuracy), rule.accuracy, rule.accuracy_std),
                                    Beside(Measured(scores.nll), rule.nll, rule.nll_std),
                                    Beside(Measured(scores.Seconds()), rule.seconds, rule.seconds_std),
                                    TextCell(PerSeed(scores.accuracy, 3)), TextCell(rule.per_seed)}});
  }
  const auto value = [&](size_t row, size_t column) { return *table.rows[row].cells[column].value; };
  result.findings.push_back(fmt::format(
      "Accuracy {:.3f} with outer, {:.3f} with delta, {:.3f} with wedge; NLL {:.4f}, {:.4f} and {:.4f} nats.",
      value(0, 0), value(1, 0), value(2, 0), value(0, 1), value(1, 1), value(2, 1)));
  result.findings.push_back(fmt::format(
      "A step of delta takes {:.2f} times as long as one of outer, of wedge {:.2f} (published 1.32 and 1.30).",
      value(1, 2) / value(0, 2), value(2, 2) / value(0, 2)));
  result.tables.push_back(std::move(table));
  return result;
}

}  // namespace tensorcache::experiments
