// Two pairs at the paper's budget, in the associative design; and up to 32 of them: accuracy against pairs, and against the
// bytes of the state.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "core/config.h"
#include "experiments/experiments.h"
#include "experiments/recall_sweep.h"
#include "experiments/recall_tests.h"

namespace tensorcache::experiments {
namespace {

constexpr std::array<int64_t, 5> kPairs = {2, 4, 8, 16, 32};
constexpr int64_t kKinds = 64;  // keys, and values: 32 pairs need more than the eight of two
constexpr double kAnswered = 0.99;
constexpr double kPublishedTwoPairs = 0.563, kPublishedTwoPairsOfFull = 0.558;

// A model: a method, and the size of its state.
struct PairsModel {
  Arm arm;
  int64_t width, heads;

  std::string Label() const { return fmt::format("{}, {} heads of {}", arm.Title(), heads, width / heads); }
};
// The associative ones first, from small states to large.
constexpr PairsModel kModels[] = {{kAssociative, 64, 4},
                                  {kAssociative, 128, 4},
                                  {kAssociative, 128, 2},
                                  {CacheMethod::kTensorCache, 128, 4},
                                  {CacheMethod::kFull, 128, 4}};

std::vector<PairsModel> ModelsOf(const ExperimentOptions& options) {
  if (options.quick()) return {kModels[0]};
  return {std::begin(kModels), std::end(kModels)};
}

// Few pairs in short sequences teach to bind; many of them, then, to keep them apart.
struct Rung {
  int64_t pairs, episodes, most_steps;
};
constexpr Rung kRungs[] = {{4, 6, 300}, {32, 3, 300}};

RecallRun PairsRun(const ExperimentOptions& options, const PairsModel& model, size_t rung = std::size(kRungs) - 1) {
  const Rung& here = kRungs[rung];
  RecallRun run{
      .name = fmt::format("pairs-{}-{}x{}-{}", here.pairs, model.heads, model.width / model.heads, model.arm.Name()),
      .changes = model.arm.Changes()};
  run.changes.insert(
      run.changes.end(),
      {fmt::format("hidden_size={}", model.width), fmt::format("intermediate_size={}", 4 * model.width),
       fmt::format("num_attention_heads={}", model.heads), fmt::format("num_key_value_heads={}", model.heads),
       fmt::format("data.recall.keys={}", kKinds), fmt::format("data.recall.values={}", kKinds),
       fmt::format("data.recall.stores={}", here.pairs), fmt::format("data.recall.episodes={}", here.episodes)});
  run.budget = {UntilSolved()};
  if (!options.quick()) run.budget.push_back(fmt::format("train.steps={}", here.most_steps));
  if (rung > 0) run.from = std::make_shared<const RecallRun>(PairsRun(options, model, rung - 1));
  return run;
}

// What a model scores, by number of pairs.
struct PairsScores {
  PairsModel model;
  std::vector<Cell> accuracy;
  double kib = 0;  // of the state, behind the most pairs
  TrainedRun run;  // of the first seed
};

Result<PairsScores> Score(const MeasureContext& context, const PairsModel& model, std::vector<RunRecord>* records) {
  const RecallRun run = PairsRun(context.options, model);
  const std::vector<uint64_t> seeds = OneSeed(context.options);
  PairsScores all{.model = model};
  for (const int64_t pairs : kPairs) {
    TC_ASSIGN_OR_RETURN(const RecallScores scores, ScoreRecallTest(context, run, seeds, {.stores = pairs}));
    all.accuracy.push_back(Measured(scores.accuracy));
    all.run = scores.runs[0];
  }
  TC_ASSIGN_OR_RETURN(const double bytes,
                      TestStateBytes(context, run, seeds[0], RingType::kFp32, {.stores = kPairs.back()}));
  all.kib = bytes / kKibibyte;
  for (size_t rung = 0; rung < std::size(kRungs); ++rung) {
    TC_ASSIGN_OR_RETURN(const TrainJob job,
                        MakeRecallJob(context.options, PairsRun(context.options, model, rung), seeds[0]));
    TC_ASSIGN_OR_RETURN(const TrainedRun trained, context.lab.Find(job));
    records->push_back(trained.record);
  }
  return all;
}

std::string PairsTitle(int64_t pairs) { return fmt::format("{} pairs", pairs); }

Table AccuracyTable(std::span<const PairsScores> all) {
  Table table{
      .id = "pairs",
      .title = "More pairs: answer accuracy",
      .note = fmt::format("{} keys and {} values, so guessing is right in {:.1f} % of the cases. Float32 states, "
                          "behind the most pairs. Steps and loss are those of training on {} pairs.",
                          kKinds, kKinds, 100.0 / kKinds, kPairs.back()),
      .row_title = "Model"};
  for (const int64_t pairs : kPairs) table.columns.push_back({.title = PairsTitle(pairs), .better = Better::kHigher});
  table.columns.push_back({.title = "state", .unit = "KiB", .digits = 0, .better = Better::kLower});
  table.columns.push_back({.title = "steps", .digits = 0});
  table.columns.push_back({.title = "loss", .unit = "nats", .better = Better::kLower});
  for (const PairsScores& one : all) {
    Row row{.label = one.model.Label(), .cells = one.accuracy};
    row.cells.push_back(Measured(one.kib));
    row.cells.push_back(Measured(static_cast<double>(one.run.record.steps)));
    row.cells.push_back(Measured(one.run.record.loss));
    table.rows.push_back(std::move(row));
  }
  return table;
}

Figure PairsFigure(std::span<const PairsScores> all) {
  Figure figure{.id = "accuracy_by_pairs",
                .title = "Accuracy against pairs",
                .x = {.title = "pairs an episode", .log = true},
                .y = {.title = "answer accuracy", .min = 0, .max = 1.05},
                .guides = {{.y = 1.0 / kKinds, .label = "chance"}}};
  for (const PairsScores& one : all) {
    Series series{.name = one.model.Label(), .method = std::string(NameOf(one.model.arm.method))};
    for (size_t p = 0; p < kPairs.size(); ++p) {
      const Cell& cell = one.accuracy[p];
      series.points.push_back({.x = static_cast<double>(kPairs[p]), .y = *cell.value, .error = cell.std.value_or(0)});
    }
    figure.series.push_back(std::move(series));
  }
  return figure;
}

// A curve per number of pairs over the associative models, and a point per other one.
Figure StateFigure(std::span<const PairsScores> all) {
  Figure figure{.id = "accuracy_by_state",
                .title = "Accuracy against state",
                .note = "The associative design, a curve per number of pairs; the other methods with the most pairs.",
                .x = {.title = "state of one sequence", .unit = "KiB", .log = true},
                .y = {.title = "answer accuracy", .min = 0, .max = 1.05}};
  const auto ours = [](const PairsScores& one) { return one.model.arm.design == MemoryDesign::kAssociative; };
  for (size_t p = 0; p < kPairs.size(); ++p) {
    Series series{.name = PairsTitle(kPairs[p])};
    for (const PairsScores& one : all) {
      if (ours(one)) series.points.push_back({.x = one.kib, .y = *one.accuracy[p].value});
    }
    figure.series.push_back(std::move(series));
  }
  for (const PairsScores& one : all) {
    if (ours(one)) continue;
    figure.series.push_back({.name = fmt::format("{}, {}", one.model.arm.Title(), PairsTitle(kPairs.back())),
                             .method = std::string(NameOf(one.model.arm.method)),
                             .points = {{.x = one.kib, .y = *one.accuracy.back().value}}});
  }
  return figure;
}

// "Tensor Cache, associative, 4 heads of 16 (29 KiB) up to 16 pairs"
std::string ReachText(const PairsScores& one) {
  std::optional<int64_t> most;
  for (size_t p = 0; p < kPairs.size() && *one.accuracy[p].value >= kAnswered; ++p) most = kPairs[p];
  return fmt::format("{} ({:.0f} KiB) {}", one.model.Label(), one.kib,
                     most ? fmt::format("up to {} pairs", *most) : "nowhere");
}

std::vector<std::string> Findings(std::span<const PairsScores> all) {
  std::string reach, most;
  for (const PairsScores& one : all) {
    reach += (reach.empty() ? "" : "; ") + ReachText(one);
    most += fmt::format("{}{} {:.1f} %", most.empty() ? "" : "; ", one.model.Label(), 100 * *one.accuracy.back().value);
  }
  return {fmt::format("{:.0f} % or more of the answers are right: {}.", 100 * kAnswered, reach),
          fmt::format("With {} pairs an episode: {}.", kPairs.back(), most)};
}

// Two pairs as the paper has them. What it publishes stands in brackets; the other methods are in multistore.
Status MeasureTwoPairs(const MeasureContext& context, ExperimentResult* result) {
  const RecallRun run = MultistoreRun(kAssociative);
  const std::vector<uint64_t> seeds = PaperSeeds(context.options);
  TC_ASSIGN_OR_RETURN(const TrainJob job, MakeRecallJob(context.options, run, seeds[0]));
  TC_ASSIGN_OR_RETURN(const RecallScores scores, ScoreRecallRun(context, run, seeds));
  TC_ASSIGN_OR_RETURN(const double bytes, StateBytesOf(context, run, seeds[0], PaperWindow(CacheMethod::kTensorCache)));
  const Cell accuracy = Measured(scores.accuracy), solved = SolvedAt(scores.runs);
  result->tables.push_back(
      {.id = "two_pairs",
       .title = "Two pairs at the paper's budget",
       .note = fmt::format("Gap {}, 8 keys and 8 values, {}. {}", job.config.data.recall.gap, BudgetText(job),
                           SeedsNote(seeds)),
       .row_title = "Model",
       .columns = {{.title = "answer accuracy", .better = Better::kHigher},
                   {.title = "99 % at step", .digits = 0, .better = Better::kLower},
                   {.title = "state", .unit = "KiB", .digits = 0, .better = Better::kLower}},
       .rows = {{.label = kAssociative.Title(),
                 .cells = {Beside(accuracy, kPublishedTwoPairs), solved, Measured(bytes / kKibibyte)}}}});
  result->findings.push_back(fmt::format(
      "Two pairs: {:.1f} % of the answers are right after {}{}. The paper has {:.1f} % for its memory and {:.1f} % for "
      "Full KV.",
      100 * *accuracy.value, BudgetText(job),
      solved.value ? fmt::format(", and 99 % in training from step {:.0f} on", *solved.value) : "",
      100 * kPublishedTwoPairs, 100 * kPublishedTwoPairsOfFull));
  scores.AddRecords(&result->runs);
  return OkStatus();
}

Status MeasureMorePairs(const MeasureContext& context, ExperimentResult* result) {
  const std::vector<PairsModel> models = ModelsOf(context.options);
  std::vector<PairsScores> all;
  for (const PairsModel& model : models) {
    context.Tell(static_cast<double>(all.size() + 1) / static_cast<double>(models.size() + 1), model.Label());
    TC_ASSIGN_OR_RETURN(PairsScores scores, Score(context, model, &result->runs));
    all.push_back(std::move(scores));
  }
  for (std::string& finding : Findings(all)) result->findings.push_back(std::move(finding));
  result->tables.push_back(AccuracyTable(all));
  result->figures.push_back(PairsFigure(all));
  if (models.size() > 1) result->figures.push_back(StateFigure(all));
  return OkStatus();
}

Result<std::string> SetupText(const ExperimentOptions& options) {
  const PairsModel model = ModelsOf(options).front();
  std::string rungs;
  for (size_t rung = 0; rung < std::size(kRungs); ++rung) {
    TC_ASSIGN_OR_RETURN(const TrainJob job,
                        MakeRecallJob(options, PairsRun(options, model, rung), OneSeed(options)[0]));
    rungs +=
        fmt::format("{}{} pairs (at most {})", rungs.empty() ? "" : ", then ", kRungs[rung].pairs, BudgetText(job));
  }
  TC_ASSIGN_OR_RETURN(const std::string setup, RecallSetup(options, PaperSeeds(options)));
  return fmt::format(
      "Two pairs, as in multistore: {} More pairs: {} keys and {} values, models of several widths, each trained on "
      "{}, "
      "and asked with {} to {} pairs. {} One seed.",
      setup, kKinds, kKinds, rungs, kPairs.front(), kPairs.back(), UntilSolvedNote());
}

}  // namespace

Plan PlanPairs(const ExperimentOptions& options) {
  std::vector<TrainJob> jobs;
  TC_RETURN_IF_ERROR(AddRecallJobs(options, MultistoreRun(kAssociative), PaperSeeds(options), &jobs));
  for (const PairsModel& model : ModelsOf(options)) {
    TC_RETURN_IF_ERROR(AddRecallJobs(options, PairsRun(options, model), OneSeed(options), &jobs));
  }
  return jobs;
}

Result<ExperimentResult> MeasurePairs(const MeasureContext& context) {
  TC_ASSIGN_OR_RETURN(const std::string setup, SetupText(context.options));
  ExperimentResult result{.experiment = "pairs",
                          .title = "Two pairs, and up to 32",
                          .paper = "Appendix, synthetic stress tests, has two pairs",
                          .setup = setup};
  TC_RETURN_IF_ERROR(MeasureTwoPairs(context, &result));
  TC_RETURN_IF_ERROR(MeasureMorePairs(context, &result));
  return result;
}

}  // namespace tensorcache::experiments
