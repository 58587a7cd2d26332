// Retained state against context length.
#include <fmt/format.h>

#include <algorithm>

#include "core/config.h"
#include "experiments/experiments.h"
#include "experiments/methods.h"
#include "runtime/run_bench.h"

namespace tensorcache::experiments {
namespace {

// A shape that a laptop streams a million tokens through in seconds.
ModelConfig SmallShape() {
  ModelConfig config = runtime::Gpt130mConfig();
  config.hidden_size = 256;
  config.num_hidden_layers = 2;
  config.num_attention_heads = config.num_key_value_heads = 4;
  return config;
}

Cell StateCell(const runtime::StateRow& row, bool quick) {
  Cell cell = Measured(static_cast<double>(row.state_bytes) / kGigabyte);
  if (quick || row.ring != RingType::kFp32) return cell;
  if (row.method == "full" && row.context == 4096) return Beside(cell, 0.25);
  if (row.method == "full" && row.context == 131072) return Beside(cell, 7.75);
  return cell;
}

// Where its column is; kAllMethods.size() if the paper does not have it.
size_t MethodIndex(const std::string& name) {
  size_t i = 0;
  while (i < kAllMethods.size() && NameOf(kAllMethods[i]) != name) ++i;
  return i;
}

}  // namespace

Result<ExperimentResult> MeasureScaling(const MeasureContext& context) {
  const bool quick = context.options.quick();
  ExperimentResult result{
      .experiment = "scaling",
      .title = "State against context",
      .paper = "Section 4.2, Figure 3",
      .setup = fmt::format(
          "The caches of {}, window 512, float32: so many tokens really go through each, and its bytes "
          "are counted, unless a note says otherwise. Published are 0.25 to 7.75 GB for Full KV, and 0.75 to 0.80 GB "
          "for "
          "each of the others, Tensor Cache 0.04 GB above Window KV: more than a window of 512 tokens takes, so "
          "something else is counted there, too.",
          quick ? "a model of 2 layers and width 256 (quick)" : "GPT-2 small's shape (12 layers, width 768)")};
  Table table{.id = "state", .title = "State of one sequence", .row_title = "Context"};
  Table resident{.id = "resident",
                 .title = "Growth of the process",
                 .note = "Resident memory, as Linux reports it.",
                 .row_title = "Context"};
  Figure figure{.id = "state_by_context",
                .title = "State against context",
                .note = "Bytes that one sequence keeps; both axes logarithmic.",
                .x = {.title = "context", .unit = "tokens", .log = true},
                .y = {.title = "state of one sequence", .unit = "GB", .log = true}};
  for (const CacheMethod method : kAllMethods) {
    const Column column{.title = MethodTitle(method), .unit = "GB", .digits = quick ? 4 : 3};
    table.columns.push_back(column);
    resident.columns.push_back(column);
    figure.series.push_back({.name = MethodTitle(method), .method = std::string(NameOf(method))});
  }
  const auto row_of = [](Table& in, const std::string& label) -> Row& {
    for (Row& row : in.rows) {
      if (row.label == label) return row;
    }
    in.rows.push_back({.label = label, .cells = std::vector<Cell>(kAllMethods.size())});
    return in.rows.back();
  };
  runtime::RunBenchOptions options{.config = quick ? SmallShape() : runtime::Gpt130mConfig(),
                                   .threads = context.options.threads};
  std::string by_formula;  // contexts that Full KV does not fit for
  double done = 0;
  TC_RETURN_IF_ERROR(runtime::BenchState(options, [&](const runtime::StateRow& row) {
    context.Tell(done++ / 30, fmt::format("{}, {} tokens", row.method, row.context));
    const size_t method = MethodIndex(row.method);
    if (row.ring != RingType::kFp32 || method == kAllMethods.size()) return;
    const std::string label = ContextLabel(row.context);
    row_of(table, label).cells[method] = StateCell(row, quick);
    if (!row.measured) by_formula += (by_formula.empty() ? "" : ", ") + label;
    if (row.measured) {
      row_of(resident, label).cells[method] = Measured(static_cast<double>(row.resident_bytes) / kGigabyte);
    }
    figure.series[method].points.push_back(
        {.x = static_cast<double>(row.context), .y = static_cast<double>(row.state_bytes) / kGigabyte});
  }));
  if (!by_formula.empty()) {
    table.note = fmt::format("Full KV at {} does not fit into this machine: its size by formula.", by_formula);
    figure.note += " " + table.note;
  }
  const Row& longest = table.rows.back();
  result.findings.push_back(fmt::format(
      "At a million tokens Full KV {} {:.1f} GB, Tensor Cache {:.3f} GB as at every length: {:.0f} times less. "
      "Its memories add {:.1f} % to Window KV's state.",
      by_formula.empty() ? "keeps" : "would keep", *longest.cells[0].value, *longest.cells[4].value,
      *longest.cells[0].value / *longest.cells[4].value,
      100 * (*longest.cells[4].value / *longest.cells[1].value - 1)));
  result.tables = {std::move(table), std::move(resident)};
  result.figures.push_back(std::move(figure));
  return result;
}

}  // namespace tensorcache::experiments
