// The associative design with one of its parts taken away: what each is worth, at gaps that training did not show and
// with many pairs.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "experiments/experiments.h"
#include "experiments/mqar_runs.h"
#include "experiments/recall_runs.h"

namespace tensorcache::experiments {
namespace {

constexpr int64_t kTrainedGap = 24;
constexpr int64_t kWindow = 16;  // of mqar
constexpr double kRate = 1e-2;   // of mqar
constexpr std::array kPairTests = {kMostTrained, kBeyond};

// A change of the design.
struct Part {
  std::string name;  // of its runs; empty: the design itself
  std::string label;
  std::vector<std::string> changes;  // of cache.tensor_cache: "address.conv=0"
  bool taken = true;                 // away; otherwise replaced or added
};

std::vector<Part> AllParts() {
  return {
      {"", "the design", {}, false},
      {"no_conv", "no convolution", {"address.conv=0"}},
      {"conv_from_zero", "convolution starts at zero", {"address.conv_previous=0"}},
      {"shift", "shifted keys for the convolution", {"address.conv=0", "address.shift=true"}, false},
      {"rope", "addressed behind RoPE", {"address.by=rope"}},
      {"no_unit", "no unit queries and keys", {"address.normalize_queries=false", "address.normalize_keys=false"}},
      {"outer", "outer rule", {"write.rule=outer"}},
      {"evict", "written on eviction", {"write.when=evict"}},
      {"token_decay", "a decay of each token", {"write.decay=per_token"}, false},
      {"head_strength", "a strength of each head", {"write.strength=per_head"}},
      {"paper_decay", "the paper's decay", {"write.first_half_life=0", "write.last_half_life=0"}},
      {"paper_rates",
       "the paper's decay and strength",
       {"write.strength=per_head", "write.first_half_life=0", "write.last_half_life=0", "write.eta_init=0.05"}},
      {"no_norm", "no norm of reads", {"read.norm=none"}},
      {"rms", "hard norm of reads", {"read.norm=rms"}, false},
      {"random_output", "W_tc starts at random", {"read.zero_output=false"}},
      {"channel_gate", "with a gate for each channel", {"read.gate=channel"}, false},
  };
}

std::vector<Part> PartsOf(const ExperimentOptions& options) {
  std::vector<Part> parts = AllParts();
  if (options.quick()) {
    constexpr std::array<std::string_view, 4> kQuick = {"", "no_conv", "no_unit", "outer"};
    std::erase_if(parts, [&](const Part& part) { return std::ranges::find(kQuick, part.name) == kQuick.end(); });
  }
  return parts;
}

std::vector<int64_t> FillersOf(const ExperimentOptions& options) {
  if (options.quick()) return {8, kTrainedGap, 96};
  return {8, kTrainedGap, 96, 384, 1536, 6144};
}

std::vector<std::string> ChangesOf(const Part& part) {
  std::vector<std::string> changes;
  for (const std::string& change : part.changes) changes.push_back("cache.tensor_cache." + change);
  return changes;
}

// The design itself is the run of `ood`, and of `mqar`; it does not diverge.
RecallRun RecallRunOf(const Part& part) {
  RecallRun run = GapRun(kAssociative, kTrainedGap);
  if (part.changes.empty()) return run;
  run.name += "-" + part.name;
  for (const std::string& change : ChangesOf(part)) run.changes.push_back(change);
  run.may_diverge = true;
  return run;
}

Result<TrainJob> MqarJobOf(const ExperimentOptions& options, const Part& part, uint64_t seed) {
  const MqarModel model{.arm = kAssociative, .window = kWindow, .variant = part.name, .changes = ChangesOf(part)};
  TC_ASSIGN_OR_RETURN(TrainJob job, MakeMqarJob(options, model, kRate, seed));
  job.may_diverge = !part.changes.empty();
  return job;
}

// The runs of a row on one task, by seed.
struct TaskRuns {
  std::vector<TrainJob> jobs;
  std::vector<TrainedRun> trained;
  std::string diverged;  // "diverged at step 12" if one did

  std::vector<double> Losses() const {
    std::vector<double> losses;
    for (const TrainedRun& run : trained) losses.push_back(run.record.loss);
    return losses;
  }
  std::vector<double> Steps() const {
    std::vector<double> steps;
    for (const TrainedRun& run : trained) steps.push_back(static_cast<double>(run.record.steps));
    return steps;
  }
};

Result<TaskRuns> FindRuns(const MeasureContext& context, std::vector<TrainJob> jobs, std::vector<RunRecord>* records) {
  TaskRuns runs{.jobs = std::move(jobs)};
  for (const TrainJob& job : runs.jobs) {
    TC_ASSIGN_OR_RETURN(TrainedRun run, context.lab.Find(job));
    records->push_back(run.record);
    if (!run.diverged.empty()) {
      runs.diverged = fmt::format("diverged at step {}", run.record.steps + 1);
      records->back().name += ", diverged";
    }
    runs.trained.push_back(std::move(run));
  }
  return runs;
}

// What was measured, unless the memory grew without bound where training had not been: a result, too.
Result<Cell> CellOf(const Result<std::vector<double>>& values) {
  if (values.ok()) return Measured(*values);
  if (values.status().code() == StatusCode::kDiverged) return TextCell("diverged");
  return values.status();
}

// A row of the tables.
struct RowScores {
  Part part;
  std::vector<Cell> recall;    // by fillers
  std::vector<Cell> pairs;     // by kPairTests
  std::vector<Cell> training;  // recall: loss, solved at; mqar: steps, loss
};

Result<Cell> RecallCell(const MeasureContext& context, const RecallRun& run, int64_t fillers) {
  const Result<RecallScores> scores = ScoreRecallRun(context, run, OneSeed(context.options), fillers);
  return CellOf(scores.ok() ? Result<std::vector<double>>(scores->accuracy) : scores.status());
}

Result<Cell> PairsCell(const MeasureContext& context, const TaskRuns& runs, const MqarTest& test) {
  std::vector<double> accuracy;
  for (size_t i = 0; i < runs.jobs.size(); ++i) {
    const Result<TaskScore> score = ScoreMqarTest(context, runs.jobs[i], runs.trained[i], test);
    if (!score.ok()) return CellOf(score.status());
    accuracy.push_back(score->accuracy);
  }
  return CellOf(accuracy);
}

Status ScoreRecall(const MeasureContext& context, RowScores* row, std::vector<RunRecord>* records) {
  const RecallRun run = RecallRunOf(row->part);
  std::vector<TrainJob> jobs;
  TC_RETURN_IF_ERROR(AddRecallJobs(context.options, run, OneSeed(context.options), &jobs));
  TC_ASSIGN_OR_RETURN(const TaskRuns runs, FindRuns(context, std::move(jobs), records));
  const bool diverged = !runs.diverged.empty();
  for (const int64_t fillers : FillersOf(context.options)) {
    TC_ASSIGN_OR_RETURN(Cell cell, diverged ? TextCell(runs.diverged) : RecallCell(context, run, fillers));
    row->recall.push_back(std::move(cell));
  }
  row->training.push_back(diverged ? TextCell(runs.diverged) : Measured(runs.Losses()));
  row->training.push_back(diverged ? TextCell(runs.diverged) : SolvedAt(runs.trained));
  return OkStatus();
}

Status ScorePairs(const MeasureContext& context, RowScores* row, std::vector<RunRecord>* records) {
  std::vector<TrainJob> jobs;
  for (const uint64_t seed : OneSeed(context.options)) {
    TC_ASSIGN_OR_RETURN(TrainJob job, MqarJobOf(context.options, row->part, seed));
    jobs.push_back(std::move(job));
  }
  TC_ASSIGN_OR_RETURN(const TaskRuns runs, FindRuns(context, std::move(jobs), records));
  const bool diverged = !runs.diverged.empty();
  for (const MqarTest& test : kPairTests) {
    TC_ASSIGN_OR_RETURN(Cell cell, diverged ? TextCell(runs.diverged) : PairsCell(context, runs, test));
    row->pairs.push_back(std::move(cell));
  }
  row->training.push_back(diverged ? TextCell(runs.diverged) : Measured(runs.Steps()));
  row->training.push_back(diverged ? TextCell(runs.diverged) : Measured(runs.Losses()));
  return OkStatus();
}

Table AccuracyTable(std::span<const RowScores> rows, const ExperimentOptions& options) {
  Table table{
      .id = "accuracy",
      .title = "Answer accuracy, one part changed",
      .note = fmt::format("Recall is trained at {} fillers alone. {}", kTrainedGap, SeedsNote(OneSeed(options))),
      .row_title = "Design"};
  for (const int64_t fillers : FillersOf(options)) {
    table.columns.push_back(
        {.title = std::to_string(fillers), .group = "recall, by fillers", .better = Better::kHigher});
  }
  for (const MqarTest& test : kPairTests) {
    table.columns.push_back({.title = test.Label(), .group = "mqar, pairs of tokens", .better = Better::kHigher});
  }
  for (const RowScores& row : rows) {
    Row shown{.label = row.part.label, .cells = row.recall};
    shown.cells.insert(shown.cells.end(), row.pairs.begin(), row.pairs.end());
    table.rows.push_back(std::move(shown));
  }
  return table;
}

Table TrainingTable(std::span<const RowScores> rows) {
  Table table{
      .id = "training",
      .title = "Training, one part changed",
      .note =
          "Loss of the last validation; the step of the first one, each 25 steps, that answers 99 %. Training on "
          "mqar ends early when it is solved.",
      .row_title = "Design",
      .columns = {{.title = "loss", .group = "recall", .unit = "nats", .better = Better::kLower},
                  {.title = "99 % at step", .group = "recall", .digits = 0, .better = Better::kLower},
                  {.title = "steps", .group = "mqar", .digits = 0, .better = Better::kLower},
                  {.title = "loss", .group = "mqar", .unit = "nats", .better = Better::kLower}}};
  for (const RowScores& row : rows) table.rows.push_back({.label = row.part.label, .cells = row.training});
  return table;
}

// The design, and it without each of its parts.
Figure FillersFigure(std::span<const RowScores> rows, const ExperimentOptions& options) {
  Figure figure{.id = "accuracy_by_fillers",
                .title = "Recall without one of the parts",
                .x = {.title = "fillers between store and query", .unit = "tokens", .log = true},
                .y = {.title = "answer accuracy", .min = 0, .max = 1.05},
                .guides = {{.x = static_cast<double>(kTrainedGap), .label = "trained gap"},
                           {.y = 1.0 / static_cast<double>(data::RecallConfig{}.values), .label = "chance"}}};
  const std::vector<int64_t> fillers = FillersOf(options);
  for (const RowScores& row : rows) {
    const bool design = row.part.changes.empty();
    if (!design && !row.part.taken) continue;
    Series series{.name = row.part.label, .method = design ? "tensor_cache" : ""};
    for (size_t i = 0; i < fillers.size(); ++i) {
      const Cell& cell = row.recall[i];
      if (!cell.value) continue;
      series.points.push_back({.x = static_cast<double>(fillers[i]), .y = *cell.value, .error = cell.std.value_or(0)});
    }
    if (!series.points.empty()) figure.series.push_back(std::move(series));
  }
  return figure;
}

// The three figures that a row is judged by; empty: it diverged.
struct Summary {
  std::optional<double> trained_gap, other_gaps, pairs, more_pairs;
};

Summary SummaryOf(const RowScores& row, const std::vector<int64_t>& fillers) {
  Summary summary{.other_gaps = 0.0, .pairs = row.pairs[0].value, .more_pairs = row.pairs[1].value};
  for (size_t i = 0; i < fillers.size(); ++i) {
    const std::optional<double>& value = row.recall[i].value;
    if (fillers[i] == kTrainedGap) {
      summary.trained_gap = value;
    } else if (!value) {
      summary.other_gaps.reset();
    } else if (summary.other_gaps) {
      *summary.other_gaps += *value / static_cast<double>(fillers.size() - 1);
    }
  }
  return summary;
}

std::string Percent(const std::optional<double>& part) {
  return part ? fmt::format("{:.1f} %", 100 * *part) : "nothing (it diverged)";
}

std::string SummaryText(const std::string& label, const Summary& row) {
  return fmt::format("{}: {} at {} fillers, {} on average at other gaps, {} of {} pairs, {} of {}.", label,
                     Percent(row.trained_gap), kTrainedGap, Percent(row.other_gaps), Percent(row.pairs),
                     kPairTests[0].pairs, Percent(row.more_pairs), kPairTests[1].pairs);
}

// Which part is missed most in one of the figures: "no convolution (-93.1 points)".
std::string MostMissed(std::span<const RowScores> rows, const std::vector<int64_t>& fillers,
                       std::optional<double> Summary::* figure) {
  const std::optional<double> design = SummaryOf(rows[0], fillers).*figure;
  std::string label, diverged;
  double least = 0;
  for (const RowScores& row : rows) {
    if (!row.part.taken) continue;
    const std::optional<double> value = SummaryOf(row, fillers).*figure;
    if (!value) {
      diverged += (diverged.empty() ? "" : ", ") + row.part.label;
    } else if (label.empty() || *value < least) {
      label = row.part.label;
      least = *value;
    }
  }
  std::string text = label;
  if (design && !label.empty()) text += fmt::format(" ({:+.1f} points)", 100 * (least - *design));
  return text + (diverged.empty() ? "" : fmt::format("; diverged: {}", diverged));
}

std::vector<std::string> FindingsOf(std::span<const RowScores> rows, const ExperimentOptions& options) {
  const std::vector<int64_t> fillers = FillersOf(options);
  std::vector<std::string> findings = {fmt::format(
      "Of the parts that were taken away alone, the one with the lowest score at gaps that training did not "
      "show: {}; of {} pairs: {}; of {} pairs: {}.",
      MostMissed(rows, fillers, &Summary::other_gaps), kPairTests[0].pairs, MostMissed(rows, fillers, &Summary::pairs),
      kPairTests[1].pairs, MostMissed(rows, fillers, &Summary::more_pairs))};
  for (const RowScores& row : rows) findings.push_back(SummaryText(row.part.label, SummaryOf(row, fillers)));
  return findings;
}

Result<std::string> SetupText(const ExperimentOptions& options) {
  const std::vector<uint64_t> seeds = OneSeed(options);
  TC_ASSIGN_OR_RETURN(const std::string recall, RecallSetup(options, seeds, RecallRunOf({})));
  TC_ASSIGN_OR_RETURN(const TrainJob job, MqarJobOf(options, {}, seeds[0]));
  return fmt::format(
      "Each row changes the associative design in what it names, and in nothing else. Recall, as in ood: {} Trained at "
      "gap {} alone. Multi-query recall, as in mqar: window {}, from the same model of near pairs, at most {}, all at "
      "a "
      "rate of {}. {}",
      recall, kTrainedGap, kWindow, BudgetText(job), kRate, UntilSolvedNote());
}

}  // namespace

Plan PlanAblation(const ExperimentOptions& options) {
  std::vector<TrainJob> jobs;
  const std::vector<Part> parts = PartsOf(options);
  for (const Part& part : parts) {
    TC_RETURN_IF_ERROR(AddRecallJobs(options, RecallRunOf(part), OneSeed(options), &jobs));
  }
  for (const Part& part : parts) {
    for (const uint64_t seed : OneSeed(options)) {
      TC_ASSIGN_OR_RETURN(TrainJob job, MqarJobOf(options, part, seed));
      jobs.push_back(std::move(job));
    }
  }
  return jobs;
}

Result<ExperimentResult> MeasureAblation(const MeasureContext& context) {
  TC_ASSIGN_OR_RETURN(const std::string setup, SetupText(context.options));
  ExperimentResult result{.experiment = "ablation",
                          .title = "The associative design, part by part",
                          .paper = "Not in the paper, which has another design",
                          .setup = setup};
  for (const uint64_t seed : OneSeed(context.options)) {
    TC_ASSIGN_OR_RETURN(const TrainJob near, MakeMqarNearJob(context.options, seed));
    TC_ASSIGN_OR_RETURN(const TrainedRun run, context.lab.Find(near));
    result.runs.push_back(run.record);
  }
  const std::vector<Part> parts = PartsOf(context.options);
  std::vector<RowScores> rows;
  for (const Part& part : parts) {
    context.Tell(static_cast<double>(rows.size()) / static_cast<double>(parts.size()), part.label);
    RowScores row{.part = part};
    TC_RETURN_IF_ERROR(ScoreRecall(context, &row, &result.runs));
    TC_RETURN_IF_ERROR(ScorePairs(context, &row, &result.runs));
    rows.push_back(std::move(row));
  }
  result.findings = FindingsOf(rows, context.options);
  result.tables = {AccuracyTable(rows, context.options), TrainingTable(rows)};
  result.figures = {FillersFigure(rows, context.options)};
  return result;
}

}  // namespace tensorcache::experiments
