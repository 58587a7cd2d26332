// Gap generalisation: trained at gap 24, asked at gaps from half to eight times that.
#include <fmt/format.h>

#include "core/config.h"
#include "experiments/experiments.h"
#include "experiments/recall_runs.h"

namespace tensorcache::experiments {
namespace {

constexpr int64_t kTrainedGap = 24;
constexpr std::array kMethods = {CacheMethod::kFull, CacheMethod::kInfini, CacheMethod::kTensorCache};

std::vector<int64_t> FillersOf(const ExperimentOptions& options) {
  if (options.quick()) return {12, 24, 48, 192};
  return {12, 24, 36, 48, 96, 144, 192};
}

std::vector<Column> Columns(Better better, const char* unit, int64_t digits) {
  std::vector<Column> columns;
  for (const CacheMethod method : kMethods) {
    columns.push_back({.title = MethodTitle(method), .unit = unit, .digits = digits, .better = better});
  }
  return columns;
}

// The few figures that the paper's text names.
void SetPublished(int64_t fillers, Row* accuracy, Row* nll, Row* state) {
  if (fillers == 12) {
    accuracy->cells[1] = Beside(accuracy->cells[1], 0.046);
    accuracy->cells[2] = Beside(accuracy->cells[2], 0.254);
    nll->cells[1] = Beside(nll->cells[1], 14.3);
    nll->cells[2] = Beside(nll->cells[2], 6.4);
    state->cells[0] = Beside(state->cells[0], 254);
  }
  if (fillers == 192) state->cells[0] = Beside(state->cells[0], 2414);
  state->cells[2] = Beside(state->cells[2], 112);
}

}  // namespace

Plan PlanOod(const ExperimentOptions& options) {
  std::vector<TrainJob> jobs;
  for (const CacheMethod method : kMethods) {
    TC_RETURN_IF_ERROR(AddRecallJobs(options, GapRun(method, kTrainedGap), PaperSeeds(options), &jobs));
  }
  return jobs;
}

Result<ExperimentResult> MeasureOod(const MeasureContext& context) {
  const std::vector<uint64_t> seeds = PaperSeeds(context.options);
  ExperimentResult result{
      .experiment = "ood",
      .title = "Gaps that training did not show",
      .paper = "Section 4.3, OOD calibration",
      .setup = RecallSetup(context.options) +
               " Trained at gap 24 alone; the streamed sequences have other gaps. Full KV beyond the "
               "trained length uses NTK-aware RoPE."};
  Table accuracy{
      .id = "accuracy", .title = "Answer accuracy", .row_title = "Fillers", .columns = Columns(Better::kHigher, "", 3)};
  Table nll{.id = "nll",
            .title = "Negative log-likelihood of the answer, nats",
            .note = "Chance is 2.773: what is above it is confidently wrong.",
            .row_title = "Fillers",
            .columns = Columns(Better::kLower, "", 2)};
  Table state{.id = "state",
              .title = "State of one sequence at its end",
              .note = "Full KV with bfloat16 keys and values, the others with a float32 window, as in the paper.",
              .row_title = "Fillers",
              .columns = Columns(Better::kLower, "kB", 0)};
  Figure figure{.id = "accuracy_by_fillers",
                .title = "Recall at gaps that training did not show",
                .x = {.title = "fillers between store and query", .unit = "tokens", .log = true},
                .y = {.title = "answer accuracy", .log = false, .min = 0, .max = 1.05},
                .guides = {{.x = 24, .y = {}, .label = "trained gap"}, {.y = 1.0 / 16, .label = "chance"}}};
  for (const CacheMethod method : kMethods) {
    figure.series.push_back({.name = MethodTitle(method), .method = std::string(NameOf(method)), .paper = false});
  }
  double done = 0;
  const std::vector<int64_t> lengths = FillersOf(context.options);
  for (const int64_t fillers : lengths) {
    const data::RecallConfig task{.gap = fillers};
    Row accuracy_row{.label = std::to_string(fillers)}, nll_row = accuracy_row, state_row = accuracy_row;
    for (size_t m = 0; m < kMethods.size(); ++m) {
      context.Tell(done++ / static_cast<double>(3 * lengths.size()),
                   fmt::format("{} fillers {}", fillers, MethodTitle(kMethods[m])));
      const RecallRun run = GapRun(kMethods[m], kTrainedGap);
      TC_ASSIGN_OR_RETURN(const RecallScores scores, ScoreRecallRun(context, run, seeds, &task));
      const RingType window = kMethods[m] == CacheMethod::kFull ? RingType::kBf16 : RingType::kFp32;
      TC_ASSIGN_OR_RETURN(const double bytes, StateBytesOf(context, run, seeds[0], window, task));
      accuracy_row.cells.push_back(Measured(scores.accuracy));
      nll_row.cells.push_back(Measured(scores.nll));
      state_row.cells.push_back(Measured(bytes / kKilobyte));
      figure.series[m].points.push_back({.x = static_cast<double>(fillers),
                                         .y = *accuracy_row.cells[m].value,
                                         .error = accuracy_row.cells[m].std.value_or(0)});
      if (fillers == kTrainedGap) {
        for (const TrainedRun& trained : scores.runs) result.runs.push_back(trained.record);
      }
    }
    SetPublished(fillers, &accuracy_row, &nll_row, &state_row);
    accuracy.rows.push_back(std::move(accuracy_row));
    nll.rows.push_back(std::move(nll_row));
    state.rows.push_back(std::move(state_row));
  }
  const Row& shortest = accuracy.rows.front();
  const Row& longest = accuracy.rows.back();
  result.findings.push_back(
      fmt::format("At 192 fillers, eight times the trained gap, Tensor Cache answers {:.1f} %, Full KV {:.1f} %, "
                  "Infini-attention {:.1f} %; the paper has Tensor Cache within 5 points of Full KV.",
                  100 * *longest.cells[2].value, 100 * *longest.cells[0].value, 100 * *longest.cells[1].value));
  result.findings.push_back(
      fmt::format("At 12 fillers, half the trained gap, Tensor Cache answers {:.1f} % at {:.1f} nats, Infini-attention "
                  "{:.1f} % at {:.1f} nats (published: 25.4 % at 6.4 and 4.6 % at 14.3).",
                  100 * *shortest.cells[2].value, *nll.rows.front().cells[2].value, 100 * *shortest.cells[1].value,
                  *nll.rows.front().cells[1].value));
  result.tables = {std::move(accuracy), std::move(nll), std::move(state)};
  result.figures.push_back(std::move(figure));
  return result;
}

}  // namespace tensorcache::experiments
