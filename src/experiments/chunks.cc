// Training chunk size: the paper's chunked modes, and the exact lagged scan.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/config.h"
#include "experiments/experiments.h"
#include "experiments/recall_runs.h"

namespace tensorcache::experiments {
namespace {

constexpr std::array<int64_t, 6> kChunks = {1, 4, 8, 16, 32, 64};

// A way of training.
struct Mode {
  MemoryWrite write;
  WriteRule rule;
};
constexpr std::array kModes = {
    Mode{MemoryWrite::kChunkStart, WriteRule::kOuter}, Mode{MemoryWrite::kChunkStart, WriteRule::kDelta},
    Mode{MemoryWrite::kChunkMean, WriteRule::kOuter},  Mode{MemoryWrite::kChunkMean, WriteRule::kDelta},
    Mode{MemoryWrite::kEvict, WriteRule::kOuter},      Mode{MemoryWrite::kEvict, WriteRule::kDelta}};

// The paper's seconds by chunk; its accuracy is 1 up to 32, and 0.265 for the chunk mean at 64.
constexpr double kOuterSeconds[] = {1145, 359, 198, 119, 82, 35};
constexpr double kDeltaSeconds[] = {1607, 428, 243, 142, 92, 35};

// Delta writes have unit keys: see the setup.
// The lagged scan has no chunk size that would change what it computes: one run stands for all.
RecallRun ChunkRun(const ExperimentOptions& options, const Mode& mode, int64_t chunk) {
  if (mode.write == MemoryWrite::kEvict) chunk = 32;
  RecallRun run{.name = fmt::format("chunks-{}-{}-{}", NameOf(mode.write), NameOf(mode.rule), chunk),
                .changes = {fmt::format("cache.tensor_cache.write.when={}", NameOf(mode.write)),
                            fmt::format("cache.tensor_cache.write.rule={}", NameOf(mode.rule)),
                            fmt::format("cache.tensor_cache.write.chunk={}", chunk)}};
  // None gets that far in a quick budget, whose evict is the recall table's Tensor Cache without it.
  if (!options.quick()) run.budget.push_back(UntilSolved());
  if (mode.rule == WriteRule::kDelta) run.changes.emplace_back("cache.tensor_cache.address.normalize_keys=true");
  return run;
}

std::vector<Mode> ModesOf(const ExperimentOptions& options) {
  std::vector<Mode> modes(kModes.begin(), kModes.end());
  if (options.quick()) std::erase_if(modes, [](const Mode& mode) { return mode.rule != WriteRule::kOuter; });
  return modes;
}

std::vector<int64_t> ChunksOf(const ExperimentOptions& options) {
  if (options.quick()) return {32, 64};
  return {kChunks.begin(), kChunks.end()};
}

// Beside the published figures, where there are some: the scan up to 32, the mean at 64.
void SetPublished(const Mode& mode, int64_t chunk, Cell* accuracy, Cell* seconds) {
  const bool start = mode.write == MemoryWrite::kChunkStart && chunk <= 32;
  const bool mean = mode.write == MemoryWrite::kChunkMean && chunk == 64;
  if (!start && !mean) return;
  const auto column = static_cast<size_t>(std::find(kChunks.begin(), kChunks.end(), chunk) - kChunks.begin());
  *accuracy = Beside(*accuracy, start ? 1.0 : 0.265);
  *seconds = Beside(*seconds, (mode.rule == WriteRule::kDelta ? kDeltaSeconds : kOuterSeconds)[column]);
}

// "0.996 (outer) and 0.668 (delta)": how the rules of a way to write end at a row's chunk size.
std::string EndsOf(MemoryWrite write, const std::vector<Mode>& modes, const Row& row) {
  std::string text;
  for (size_t m = 0; m < modes.size(); ++m) {
    if (modes[m].write != write) continue;
    text += fmt::format("{}{:.3f} ({})", text.empty() ? "" : " and ", *row.cells[m].value, NameOf(modes[m].rule));
  }
  return text;
}

void AddFindings(const std::vector<Mode>& modes, const Table& accuracy, ExperimentResult* result) {
  const Row& largest = accuracy.rows.back();
  result->findings.push_back(fmt::format(
      "At C = {}, where a whole episode fits into a chunk, chunk_start ends at {}, chunk_mean at {} (published 0.265 "
      "for both rules).",
      largest.label, EndsOf(MemoryWrite::kChunkStart, modes, largest),
      EndsOf(MemoryWrite::kChunkMean, modes, largest)));
  result->findings.push_back(
      fmt::format("evict, which has no chunks, ends at {}.", EndsOf(MemoryWrite::kEvict, modes, largest)));
}

}  // namespace

Plan PlanChunks(const ExperimentOptions& options) {
  std::vector<TrainJob> jobs;
  for (const Mode& mode : ModesOf(options)) {
    for (const int64_t chunk : ChunksOf(options)) {
      TC_RETURN_IF_ERROR(AddRecallJobs(options, ChunkRun(options, mode, chunk), OneSeed(options), &jobs));
    }
  }
  return jobs;
}

Result<ExperimentResult> MeasureChunks(const MeasureContext& context) {
  const bool quick = context.options.quick();
  TC_ASSIGN_OR_RETURN(const std::string setup, RecallSetup(context.options, OneSeed(context.options)));
  TC_ASSIGN_OR_RETURN(const TrainJob job, MakeRecallJob(context.options, {}, OneSeed(context.options)[0]));
  ExperimentResult result{
      .experiment = "chunks",
      .title = "Training chunk size",
      .paper = "Section 4.6, Table 4",
      .setup =
          setup + (quick ? "" : " " + UntilSolvedNote() + " That loss is of writes as inference has them.") +
          " Gap 24. chunk_start and chunk_mean are the paper's training modes; evict is the exact lagged scan, which "
          "has no chunk size: its one run a rule stands in every row. All of them stream the same way." +
          (quick ? ""
                 : " Delta writes have unit keys (the paper does not say that its have): chunk_start takes what one "
                   "key holds away up to C times, which overshoots where C eta |k|^2 exceeds 2.")};
  Table accuracy{.id = "accuracy", .title = "Answer accuracy by chunk size", .row_title = "C"};
  Table seconds{.id = "seconds",
                .title = "Training time by chunk size",
                .note = fmt::format("Published: a GPU. Here: one CPU thread, {}, at the median of the steps trained.",
                                    BudgetText(job)),
                .row_title = "C"};
  Table steps{.id = "steps", .title = "Steps trained by chunk size", .row_title = "C"};
  Figure figure{.id = "accuracy_by_chunk",
                .title = "Accuracy against chunk size",
                .note = "Streaming recall after training with each mode.",
                .x = {.title = "chunk size C", .unit = "tokens", .log = true},
                .y = {.title = "answer accuracy", .min = 0, .max = 1.05},
                .guides = {{.y = 1.0 / 16, .label = "chance"}}};
  const std::vector<Mode> modes = ModesOf(context.options);
  for (const Mode& mode : modes) {
    const std::string write(NameOf(mode.write)), rule(NameOf(mode.rule));
    accuracy.columns.push_back({.title = rule, .group = write, .better = Better::kHigher});
    seconds.columns.push_back({.title = rule, .group = write, .unit = "s", .digits = 0});
    steps.columns.push_back({.title = rule, .group = write, .digits = 0});
    figure.series.push_back(
        {.name = write + ", " + rule, .method = mode.write == MemoryWrite::kEvict ? "tensor_cache" : ""});
  }
  const std::vector<int64_t> chunks = ChunksOf(context.options);
  std::map<std::string, RecallScores> scores_of;  // by the run's name: one run of evict stands in every row
  double done = 0;
  for (const int64_t chunk : chunks) {
    accuracy.rows.push_back({.label = std::to_string(chunk)});
    seconds.rows.push_back({.label = std::to_string(chunk)});
    steps.rows.push_back({.label = std::to_string(chunk)});
    for (size_t m = 0; m < modes.size(); ++m) {
      const RecallRun run = ChunkRun(context.options, modes[m], chunk);
      context.Tell(done++ / static_cast<double>(modes.size() * chunks.size()), run.name);
      const auto [known, first] = scores_of.try_emplace(run.name);
      RecallScores& scores = known->second;
      if (first) {
        TC_ASSIGN_OR_RETURN(scores, ScoreRecallRun(context, run, OneSeed(context.options)));
        scores.AddRecords(&result.runs);
      }
      Cell score = Measured(scores.accuracy), time = Measured(scores.SecondsOf(job.config.train.steps));
      SetPublished(modes[m], chunk, &score, &time);
      figure.series[m].points.push_back(
          {.x = static_cast<double>(chunk), .y = *score.value, .error = score.std.value_or(0)});
      accuracy.rows.back().cells.push_back(score);
      seconds.rows.back().cells.push_back(time);
      steps.rows.back().cells.push_back(Measured(scores.Steps()));
    }
  }
  AddFindings(modes, accuracy, &result);
  result.tables = {std::move(accuracy), std::move(seconds), std::move(steps)};
  result.figures.push_back(std::move(figure));
  return result;
}

}  // namespace tensorcache::experiments
