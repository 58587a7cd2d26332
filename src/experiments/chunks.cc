// Training chunk size: the paper's chunked modes, and the exact lagged scan.
#include <fmt/format.h>

#include "core/config.h"
#include "experiments/experiments.h"
#include "experiments/recall_runs.h"

namespace tensorcache::experiments {
namespace {

constexpr std::array<int64_t, 6> kChunks = {1, 4, 8, 16, 32, 64};
constexpr std::array kModes = {MemoryWrite::kChunkStart, MemoryWrite::kChunkMean, MemoryWrite::kEvict};
constexpr std::array kRules = {WriteRule::kOuter, WriteRule::kDelta};

// Training time in seconds by rule and chunk; accuracy is 1 up to chunk 32, and 0.265 for the chunk mean at 64.
constexpr double kPublishedSeconds[2][6] = {{1145, 359, 198, 119, 82, 35}, {1607, 428, 243, 142, 92, 35}};

// The lagged scan has no chunk size that would change what it computes: one run stands for all.
RecallRun ChunkRun(MemoryWrite mode, WriteRule rule, int64_t chunk) {
  if (mode == MemoryWrite::kEvict) chunk = 32;
  return {.name = fmt::format("chunks-{}-{}-{}", NameOf(mode), NameOf(rule), chunk),
          .changes = {fmt::format("cache.tensor_cache.write={}", NameOf(mode)),
                      fmt::format("cache.tensor_cache.rule={}", NameOf(rule)),
                      fmt::format("cache.tensor_cache.chunk={}", chunk)}};
}

std::vector<int64_t> ChunksOf(const ExperimentOptions& options) {
  if (options.quick()) return {32, 64};
  return {kChunks.begin(), kChunks.end()};
}

std::string RuleTitle(WriteRule rule) { return rule == WriteRule::kOuter ? "outer" : "delta"; }

// The published figure of a cell, if there is one: the scan up to 32, the mean at 64.
bool HasPublished(MemoryWrite mode, int64_t chunk) {
  return mode == MemoryWrite::kChunkStart ? chunk <= 32 : mode == MemoryWrite::kChunkMean && chunk == 64;
}

}  // namespace

Plan PlanChunks(const ExperimentOptions& options) {
  std::vector<TrainJob> jobs;
  for (const MemoryWrite mode : kModes) {
    for (const WriteRule rule : kRules) {
      for (const int64_t chunk : ChunksOf(options)) {
        TC_RETURN_IF_ERROR(AddRecallJobs(options, ChunkRun(mode, rule, chunk), OneSeed(options), &jobs));
      }
    }
  }
  return jobs;
}

Result<ExperimentResult> MeasureChunks(const MeasureContext& context) {
  const std::vector<int64_t> chunks = ChunksOf(context.options);
  ExperimentResult result{
      .experiment = "chunks",
      .title = "Training chunk size",
      .paper = "Section 4.6, Table 4",
      .setup = RecallSetup(context.options) +
               " Gap 24. chunk_start and chunk_mean are the paper's training modes; evict is the exact lagged scan, "
               "which has no chunk size: its one run a rule stands in every row. All of them stream the same way."};
  Table accuracy{.id = "accuracy", .title = "Answer accuracy by chunk size", .row_title = "C"};
  Table seconds{.id = "seconds",
                .title = "Training time by chunk size",
                .note = "Published: a GPU. Here: CPU threads, median step times the number of steps.",
                .row_title = "C"};
  Figure figure{.id = "accuracy_by_chunk",
                .title = "Accuracy against chunk size",
                .note = "Streaming recall after training with each mode.",
                .x = {.title = "chunk size C", .unit = "tokens", .log = true},
                .y = {.title = "answer accuracy", .log = false, .min = 0, .max = 1.05},
                .guides = {{.y = 1.0 / 16, .label = "chance"}}};
  for (const MemoryWrite mode : kModes) {
    for (const WriteRule rule : kRules) {
      const std::string name(NameOf(mode));
      accuracy.columns.push_back({.title = RuleTitle(rule), .group = name, .digits = 3, .better = Better::kHigher});
      seconds.columns.push_back({.title = RuleTitle(rule), .group = name, .unit = "s", .digits = 0});
      figure.series.push_back({.name = name + ", " + RuleTitle(rule),
                               .method = mode == MemoryWrite::kEvict ? "tensor_cache" : "",
                               .paper = false});
    }
  }
  double done = 0;
  for (size_t c = 0; c < chunks.size(); ++c) {
    Row accuracy_row{.label = std::to_string(chunks[c])}, seconds_row = accuracy_row;
    const auto published_column =
        static_cast<size_t>(std::find(kChunks.begin(), kChunks.end(), chunks[c]) - kChunks.begin());
    size_t series = 0;
    for (const MemoryWrite mode : kModes) {
      for (size_t r = 0; r < kRules.size(); ++r) {
        const RecallRun run = ChunkRun(mode, kRules[r], chunks[c]);
        context.Tell(done++ / static_cast<double>(6 * chunks.size()), run.name);
        TC_ASSIGN_OR_RETURN(const RecallScores scores, ScoreRecallRun(context, run, OneSeed(context.options)));
        if (mode != MemoryWrite::kEvict || c == 0) scores.AddRecords(&result.runs);
        Cell score = Measured(scores.accuracy), time = Measured(scores.Seconds());
        if (HasPublished(mode, chunks[c])) {
          score = Beside(score, chunks[c] == 64 ? 0.265 : 1.0);
          time = Beside(time, kPublishedSeconds[r][published_column]);
        }
        figure.series[series++].points.push_back(
            {.x = static_cast<double>(chunks[c]), .y = *score.value, .error = score.std.value_or(0)});
        accuracy_row.cells.push_back(score);
        seconds_row.cells.push_back(time);
      }
    }
    accuracy.rows.push_back(std::move(accuracy_row));
    seconds.rows.push_back(std::move(seconds_row));
  }
  const Row& largest = accuracy.rows.back();
  double worst_evict = 1;
  for (const Row& row : accuracy.rows) worst_evict = std::min({worst_evict, *row.cells[4].value, *row.cells[5].value});
  result.findings.push_back(
      fmt::format("At C = 64, where a whole episode fits into a chunk, chunk_start ends at {:.3f} (outer) and {:.3f} "
                  "(delta), chunk_mean at {:.3f} and {:.3f} (published 0.265).",
                  *largest.cells[0].value, *largest.cells[1].value, *largest.cells[2].value, *largest.cells[3].value));
  result.findings.push_back(
      fmt::format("evict has no such failure: its accuracy is {:.3f} or more, with either rule.", worst_evict));
  result.tables = {std::move(accuracy), std::move(seconds)};
  result.figures.push_back(std::move(figure));
  return result;
}

}  // namespace tensorcache::experiments
