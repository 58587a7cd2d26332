// Scores of several methods at several gaps: tables with a column per method and a row per gap, and a figure.
#pragma once

#include <span>
#include <string>

#include "experiments/methods.h"
#include "experiments/recall_runs.h"
#include "experiments/result.h"

namespace tensorcache::experiments {

struct RecallSweep {
  Table accuracy;
  Table nll;
  Table state;  // KiB: Full KV with bfloat16 keys and values, the others with a float32 window, as in the paper
  Figure figure;

  // The cells that follow are of this row; `at` is its place in the figure.
  void StartRow(const std::string& label, double at);
  // The next method's cells.
  void Add(const RecallScores& scores, double state_bytes);
  // The next method has no cells in this row.
  void Skip();

  // The cells of a method in the last row.
  Cell& LastAccuracy(size_t method) { return accuracy.rows.back().cells[method]; }
  Cell& LastNll(size_t method) { return nll.rows.back().cells[method]; }
  Cell& LastState(size_t method) { return state.rows.back().cells[method]; }

  double x = 0;  // of the last row
};

// Columns are called by their methods, and by their designs too where there is more than one of a method. `figure` has its id, title, x axis and guides; `row_title` is what a row is.
RecallSweep MakeRecallSweep(std::span<const Arm> arms, const std::string& row_title, Figure figure);

// The window in which RecallSweep counts a method's state, and what that means.
RingType PaperWindow(CacheMethod method);
inline constexpr char kPaperWindowNote[] =
    "Full KV with bfloat16 keys and values, the others with a float32 window, as in the paper.";
// The published KiB of one of kReachingMethods, at a gap of the paper's tables.
double PublishedState(CacheMethod method, int64_t gap);

}  // namespace tensorcache::experiments
