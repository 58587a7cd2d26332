#include "experiments/recall_sweep.h"

#include <algorithm>
#include <cmath>

#include "core/config.h"

namespace tensorcache::experiments {

RingType PaperWindow(CacheMethod method) { return method == CacheMethod::kFull ? RingType::kBf16 : RingType::kFp32; }

RecallSweep MakeRecallSweep(std::span<const Arm> arms, const std::string& row_title, Figure figure) {
  RecallSweep sweep{.accuracy = {.id = "accuracy", .title = "Answer accuracy", .row_title = row_title},
                    .nll = {.id = "nll",
                            .title = "Negative log-likelihood of the answer, nats",
                            .note = "Chance is 2.773; what is far above it is confidently wrong.",
                            .row_title = row_title},
                    .state = {.id = "state",
                              .title = "State of one sequence at its end",
                              .note = kPaperWindowNote,
                              .row_title = row_title},
                    .figure = std::move(figure)};
  sweep.figure.y = {.title = "answer accuracy", .min = 0, .max = 1.05};
  sweep.figure.guides.push_back({.y = 1.0 / 16, .label = "chance"});
  const auto same_method = [&](const Arm& arm) {
    return std::ranges::count_if(arms, [&](const Arm& other) { return other.method == arm.method; });
  };
  for (const Arm& arm : arms) {
    const std::string title = same_method(arm) > 1 ? arm.Title() : MethodTitle(arm.method);
    sweep.accuracy.columns.push_back({.title = title, .better = Better::kHigher});
    sweep.nll.columns.push_back({.title = title, .better = Better::kLower});
    sweep.state.columns.push_back({.title = title, .unit = "KiB", .digits = 0, .better = Better::kLower});
    sweep.figure.series.push_back({.name = title, .method = std::string(NameOf(arm.method))});
  }
  return sweep;
}

void RecallSweep::StartRow(const std::string& label, double at) {
  x = at;
  for (Table* table : {&accuracy, &nll, &state}) table->rows.push_back({.label = label});
}

void RecallSweep::Add(const RecallScores& scores, double state_bytes) {
  const size_t method = accuracy.rows.back().cells.size();
  const Cell cell = Measured(scores.accuracy);
  accuracy.rows.back().cells.push_back(cell);
  nll.rows.back().cells.push_back(Measured(scores.nll));
  state.rows.back().cells.push_back(Measured(state_bytes / kKibibyte));
  figure.series[method].points.push_back({.x = x, .y = *cell.value, .error = cell.std.value_or(0)});
}

void RecallSweep::Skip() {
  for (Table* table : {&accuracy, &nll, &state}) table->rows.back().cells.emplace_back();
}

double PublishedState(CacheMethod method, int64_t gap) {
  if (method == CacheMethod::kInfini) return 114;
  if (method == CacheMethod::kTensorCache) return 112;
  switch (gap) {  // Full KV: six episodes up to gap 48 and at 192, otherwise one
    case 12: return 254;
    case 24: return 398;
    case 36: return 542;
    case 48: return 686;
    case 128: return 286;
    case 192: return 2414;
    case 256: return 542;
    case 512: return 1054;
    case 1024: return 2078;
    default: return std::nan("");  // which ValidateResult refuses
  }
}

}  // namespace tensorcache::experiments
