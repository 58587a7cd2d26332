// tensorcache reproduce: the paper's tables, one part per experiment.
#include <fmt/core.h>

#include "apps/tensorcache/command.h"
#include "apps/tensorcache/json_file.h"
#include "apps/tensorcache/options.h"
#include "apps/tensorcache/terminal.h"
#include "experiments/capacity.h"

namespace tensorcache::cli {
namespace {

using experiments::CapacityRow;

constexpr size_t kCellWidth = 15;

void PrintCapacityHead(size_t seeds) {
  fmt::print(
      "Writes until the oldest item's relative error exceeds 1: here (mean and deviation over {} seed{}), "
      "published\n\n",
      seeds, seeds == 1 ? "" : "s");
  fmt::print("     ");
  for (const auto regime : experiments::kCapacityRegimes) {
    fmt::print("  {:^{}}", experiments::CapacityRegimeName(regime), 2 * kCellWidth);
  }
  fmt::print("\n    D");
  for (size_t i = 0; i < experiments::kCapacityRegimes.size(); ++i) {
    fmt::print("  {}{}", PadLeft("here", kCellWidth), PadLeft("paper", kCellWidth));
  }
  fmt::print("\n");
}

Status RunCapacity(const CommandLine& line) {
  std::string seeds_text = "5";
  std::string json_path;
  CLI::App app("Raw capacity of one memory head: how many key-value pairs fit into a D x D matrix?");
  app.add_option("--seeds", seeds_text, "How many seeds, or a list of them: 5 or 1,2,3")->capture_default_str();
  app.add_option("--json", json_path, "Also write the figures to FILE")->type_name("FILE");
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  TC_ASSIGN_OR_RETURN(const auto seeds, experiments::ParseSeeds(seeds_text));
  TC_RETURN_IF_ERROR(CheckOutputPath(json_path));

  PrintCapacityHead(seeds.size());
  std::vector<CapacityRow> rows;
  Progress progress(
      static_cast<int>(experiments::kCapacityDims.size() * experiments::kCapacityRegimes.size() * seeds.size()));
  int trials = 0;
  for (const int64_t dim : experiments::kCapacityDims) {
    std::string printed = fmt::format("{:>5}", dim);
    for (const auto regime : experiments::kCapacityRegimes) {
      const std::string what = fmt::format("D={} {}", dim, experiments::CapacityRegimeName(regime));
      rows.push_back(experiments::MeasureCapacityRow(dim, regime, seeds, [&] { progress.Show(++trials, what); }));
      const CapacityRow& row = rows.back();
      printed += fmt::format("  {}{}", PadLeft(PlusMinus(row.mean, row.std), kCellWidth),
                             PadLeft(PlusMinus(row.paper_mean, row.paper_std), kCellWidth));
    }
    progress.Clear();
    fmt::print("{}\n", printed);
    std::fflush(stdout);
  }
  return WriteOutput(json_path, experiments::CapacityJson(rows, seeds));
}

constexpr Command kExperiments[] = {
    {"capacity", "How many associations fit into one memory matrix", RunCapacity},
};

}  // namespace

Status RunReproduce(const CommandLine& line) {
  return Dispatch(kExperiments, "Repeats an experiment of the Tensor Cache paper beside the published figures.", line);
}

}  // namespace tensorcache::cli
