// tensorcache demo: the capacity experiment, drawn.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "apps/tensorcache/command.h"
#include "apps/tensorcache/options.h"
#include "apps/tensorcache/terminal.h"
#include "experiments/capacity.h"

namespace tensorcache::cli {
namespace {

using experiments::CapacityRegime;
using experiments::kCapacityDims;
using experiments::kCapacityRegimes;

constexpr int kSeeds = 20;
constexpr int64_t kChartDim = 64;
constexpr int kChartColumns = 72;
constexpr int kWritesPerColumn = 2;
constexpr int kChartRows = 12;
constexpr double kChartTop = 1.2;

struct Glyphs {
  std::array<const char*, 3> curve;  // one per regime
  const char* threshold;
  const char* axis;
  const char* corner;
  const char* floor;
  const char* bar;
  const char* mark;
};

const Glyphs& TerminalGlyphs() {
  static constexpr Glyphs kUnicode = {{"●", "▲", "■"}, "┈", "│", "└", "─", "█", "◆"};
  static constexpr Glyphs kAscii = {{"o", "+", "x"}, "-", "|", "+", "-", "#", "*"};
  return Utf8Terminal() ? kUnicode : kAscii;
}

const char* Describe(CapacityRegime regime) {
  switch (regime) {
    case CapacityRegime::kOrthoPrefix: return "orthogonal: the first D keys do not overlap at all";
    case CapacityRegime::kRandom: return "random: keys point anywhere";
    case CapacityRegime::kDecayed: return "decayed: random keys, and the memory fades by 0.5 % a write";
  }
  return "";
}

// Mean error of the oldest item after 1, 2, ... writes.
std::vector<double> MeanErrors(CapacityRegime regime, int writes) {
  std::vector<double> errors(static_cast<size_t>(writes), 0.0);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    experiments::CapacityTrial trial(kChartDim, regime, seed);
    for (double& error : errors) error += trial.WriteNext() / kSeeds;
  }
  return errors;
}

void PrintChart() {
  const Glyphs& glyphs = TerminalGlyphs();
  // (row, column), row 0 on top.
  std::vector<std::vector<const char*>> canvas(kChartRows, std::vector<const char*>(kChartColumns, " "));
  const auto row_of = [](double error) {
    return kChartRows - 1 - static_cast<int>(std::min(error, kChartTop - 1e-9) / kChartTop * kChartRows);
  };
  for (auto& cell : canvas[static_cast<size_t>(row_of(1.0))]) cell = glyphs.threshold;
  for (size_t i = 0; i < kCapacityRegimes.size(); ++i) {
    const auto errors = MeanErrors(kCapacityRegimes[i], kChartColumns * kWritesPerColumn);
    for (size_t column = 0; column < kChartColumns; ++column) {
      const double error = errors[(column + 1) * kWritesPerColumn - 1];
      if (error >= kChartTop) break;
      canvas[static_cast<size_t>(row_of(error))][column] = glyphs.curve[i];
    }
  }
  for (int row = 0; row < kChartRows; ++row) {
    const bool threshold = row == row_of(1.0);
    fmt::print("  {:>4} {}", threshold ? "1.0" : row == kChartRows - 1 ? "0" : "", glyphs.axis);
    for (const char* cell : canvas[static_cast<size_t>(row)]) fmt::print("{}", cell);
    fmt::print("{}\n", threshold ? " lost" : "");
  }
  fmt::print("       {}", glyphs.corner);
  for (int column = 0; column < kChartColumns; ++column) fmt::print("{}", glyphs.floor);
  fmt::print(" {} writes\n\n", kChartColumns * kWritesPerColumn);
  for (size_t i = 0; i < kCapacityRegimes.size(); ++i) {
    fmt::print("       {} {}\n", glyphs.curve[i], Describe(kCapacityRegimes[i]));
  }
}

void PrintBars() {
  const Glyphs& glyphs = TerminalGlyphs();
  constexpr double kWritesPerCell = 5;
  std::vector<uint64_t> seeds(kSeeds);
  for (size_t i = 0; i < seeds.size(); ++i) seeds[i] = i;
  for (const int64_t dim : kCapacityDims) {
    for (const CapacityRegime regime : kCapacityRegimes) {
      const auto row = experiments::MeasureCapacityRow(dim, regime, seeds);
      const int length = static_cast<int>(std::lround(row.mean / kWritesPerCell));
      const int mark = static_cast<int>(std::lround(row.paper_mean / kWritesPerCell));
      fmt::print("  {:<6} {:<13}", regime == kCapacityRegimes[0] ? fmt::format("D={}", dim) : "",
                 experiments::CapacityRegimeName(regime));
      for (int i = 1; i <= std::max(length, mark); ++i) {
        fmt::print("{}", i == mark ? glyphs.mark : i <= length ? glyphs.bar : " ");
      }
      fmt::print(" {:.0f}\n", row.mean);
    }
  }
}

}  // namespace

Status RunDemo(const CommandLine& line) {
  CLI::App app("Fills a fixed-size memory and shows when it forgets. Takes about a second.");
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();

  fmt::print(
      "A transformer's key-value cache grows with every token. Tensor Cache keeps exact attention over the last few\n"
      "tokens only; a pair (key, value) that falls out of that window is added to one D x D matrix per head:\n\n"
      "    write:  A <- A + k^T v          read:  r = q A\n\n"
      "The matrix never grows. All pairs share its numbers, and reading with an old key returns the old value plus a\n"
      "little of every other value whose key points in a similar direction. How many pairs fit?\n\n"
      "Error of the oldest pair while more are written, D = {} ({} numbers of memory), mean of {} runs:\n\n",
      kChartDim, kChartDim * kChartDim, kSeeds);
  PrintChart();
  fmt::print(
      "\nAt an error of 1 the noise is as large as the value itself: the pair is lost. A bigger matrix holds more:\n"
      "without fading, in proportion to D. Pairs held before the oldest is lost ({} runs; {} marks the paper's "
      "figure):\n\n",
      kSeeds, TerminalGlyphs().mark);
  PrintBars();
  fmt::print(
      "\nFading loses the oldest pair sooner; in return the noise on the newest ones stops growing.\n"
      "Next: `tensorcache reproduce capacity` for the table, `tensorcache bench kernels` for speed.\n");
  return OkStatus();
}

}  // namespace tensorcache::cli
