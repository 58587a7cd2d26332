// Raw capacity of one memory head: the table.
#include <fmt/format.h>

#include <numeric>

#include "experiments/capacity.h"
#include "experiments/experiments.h"

namespace tensorcache::experiments {
namespace {

// They cost milliseconds each, so there are more of them than the paper's five.
std::vector<uint64_t> SeedsOf(const ExperimentOptions& options) {
  if (!options.seeds.empty()) return options.seeds;
  std::vector<uint64_t> seeds(options.quick() ? 20 : 1000);
  std::iota(seeds.begin(), seeds.end(), 0);
  return seeds;
}

std::string RegimeTitle(CapacityRegime regime) {
  switch (regime) {
    case CapacityRegime::kOrthoPrefix: return "orthonormal prefix";
    case CapacityRegime::kRandom: return "random keys";
    case CapacityRegime::kDecayed: return "random keys, decayed";
  }
  return "";
}

}  // namespace

Result<ExperimentResult> MeasureCapacityTable(const MeasureContext& context) {
  const std::vector<uint64_t> seeds = SeedsOf(context.options);
  ExperimentResult result{
      .experiment = "capacity",
      .title = "Raw capacity of one memory head",
      .paper = "Section 4.5, Table 3",
      .setup =
          "Random pairs are written into one D x D matrix until the oldest one's relative error exceeds 1. Decayed: "
          "lambda 0.995, eta 0.05."};
  Table table{.id = "capacity",
              .title = "Writes until the oldest item is lost",
              .note = fmt::format(
                  "Mean and deviation over {} seeds (published: five). Expected: where crosstalk is as large as the "
                  "signal.",
                  seeds.size()),
              .row_title = "D"};
  Figure figure{.id = "capacity_by_dim",
                .title = "Capacity against head dimension",
                .x = {.title = "head dimension D", .log = true},
                .y = {.title = "writes until the oldest is lost", .log = true}};
  for (const CapacityRegime regime : kCapacityRegimes) {
    table.columns.push_back({.title = "measured", .group = RegimeTitle(regime), .digits = 1});
    table.columns.push_back({.title = "expected", .group = RegimeTitle(regime), .digits = 1});
    figure.series.push_back({.name = RegimeTitle(regime)});
    figure.series.push_back({.name = RegimeTitle(regime) + ", published", .paper = true});
  }
  for (const int64_t dim : kCapacityDims) {
    Row row{.label = std::to_string(dim)};
    for (size_t r = 0; r < kCapacityRegimes.size(); ++r) {
      context.Tell(static_cast<double>(table.rows.size() * kCapacityRegimes.size() + r) /
                       static_cast<double>(kCapacityDims.size() * kCapacityRegimes.size()),
                   fmt::format("D = {}", dim));
      const CapacityRow measured = MeasureCapacityRow(dim, kCapacityRegimes[r], seeds);
      Cell cell = Measured(measured.mean);
      if (seeds.size() > 1) cell.std = measured.std;
      cell.n = std::ssize(seeds);
      row.cells.push_back(Beside(cell, measured.paper_mean, measured.paper_std));
      row.cells.push_back(Measured(ExpectedCapacity(dim, kCapacityRegimes[r])));
      const auto x = static_cast<double>(dim);
      figure.series[2 * r].points.push_back({.x = x, .y = measured.mean, .error = measured.std});
      figure.series[2 * r + 1].points.push_back({.x = x, .y = measured.paper_mean, .error = measured.paper_std});
    }
    table.rows.push_back(std::move(row));
  }
  result.findings.push_back(
      fmt::format("At D = 128 the oldest of {:.0f} random pairs is lost without decay, of {:.0f} with it (published "
                  "143.8 and 84.2).",
                  *table.rows.back().cells[2].value, *table.rows.back().cells[4].value));
  result.tables.push_back(std::move(table));
  result.figures.push_back(std::move(figure));
  return result;
}

}  // namespace tensorcache::experiments
