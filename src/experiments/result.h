// What an experiment found, in a form that the terminal, a JSON file and the report page all show in their own way:
// tables whose cells stand beside the published figures, and figures made of curves.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config.h"
#include "tensorcache/status.h"

namespace tensorcache::experiments {

// One number of a table: ours as mean and deviation over n, and the published one where there is one.
struct Cell {
  std::optional<double> value;  // empty: not measured
  std::optional<double> std;    // of the sample (n - 1), or what the table's note calls ±; empty: a single value
  int64_t n = 1;
  std::optional<double> paper;
  std::optional<double> paper_std;
  std::string text;  // shown instead of the number, if not empty

  template <class V>
  void Fields(V& v) {
    v("value", value, "mean");
    v("std", std, "standard deviation over n, or what the note of the table says");
    v("n", n, "values that the mean is of");
    v("paper", paper, "the published value");
    v("paper_std", paper_std, "its published deviation");
    v("text", text, "what is shown instead");
  }
};

// Which of two values of a column is the good one; colours the difference to the paper's.
enum class Better { kNeither, kHigher, kLower };
constexpr auto EnumNames(Better) {
  return std::to_array<std::pair<Better, std::string_view>>(
      {{Better::kNeither, "neither"}, {Better::kHigher, "higher"}, {Better::kLower, "lower"}});
}

struct Column {
  std::string title;
  std::string group;  // a heading over neighbouring columns of one group; may be empty
  std::string unit;   // "s", "KiB"; may be empty
  int64_t digits = 3;
  Better better = Better::kNeither;

  template <class V>
  void Fields(V& v) {
    v("title", title, "the column's heading");
    v("group", group, "heading over neighbouring columns");
    v("unit", unit, "of the numbers");
    v("digits", digits, "after the point");
    v("better", better, "which value is the good one");
  }
};

struct Row {
  std::string label;
  std::vector<Cell> cells;  // one a column

  template <class V>
  void Fields(V& v) {
    v("label", label, "the row's heading");
    v("cells", cells, "one a column");
  }
};

struct Table {
  std::string id;  // unique in its experiment
  std::string title;
  std::string note;       // below it; may be empty
  std::string row_title;  // over the rows' labels
  std::vector<Column> columns;
  std::vector<Row> rows;

  template <class V>
  void Fields(V& v) {
    v("id", id, "unique in the experiment");
    v("title", title, "what it shows");
    v("note", note, "what to know about it");
    v("row_title", row_title, "heading of the rows' labels");
    v("columns", columns, "");
    v("rows", rows, "");
  }
};

struct Point {
  double x = 0;
  double y = 0;
  double error = 0;  // half the length of the error bar; 0: none

  template <class V>
  void Fields(V& v) {
    v("x", x, "");
    v("y", y, "");
    v("error", error, "half the length of the error bar");
  }
};

struct Series {
  std::string name;
  std::string method;  // a CacheMethod's name, which has the same colour in every figure; may be empty
  bool paper = false;  // published figures: drawn thin and dashed
  std::vector<Point> points;

  template <class V>
  void Fields(V& v) {
    v("name", name, "in the legend");
    v("method", method, "the cache's method, for its colour");
    v("paper", paper, "published figures");
    v("points", points, "from left to right");
  }
};

struct Axis {
  std::string title;
  std::string unit;
  bool log = false;
  std::optional<double> min;
  std::optional<double> max;

  template <class V>
  void Fields(V& v) {
    v("title", title, "");
    v("unit", unit, "");
    v("log", log, "logarithmic");
    v("min", min, "where it begins; null: at the data");
    v("max", max, "where it ends; null: at the data");
  }
};

// A dotted line across the figure: the trained length, chance.
struct Guide {
  std::optional<double> x;
  std::optional<double> y;
  std::string label;

  template <class V>
  void Fields(V& v) {
    v("x", x, "of a vertical line");
    v("y", y, "of a horizontal line");
    v("label", label, "beside it");
  }
};

struct Figure {
  std::string id;  // unique in its experiment
  std::string title;
  std::string note;
  Axis x;
  Axis y;
  std::vector<Series> series;
  std::vector<Guide> guides;

  template <class V>
  void Fields(V& v) {
    v("id", id, "unique in the experiment");
    v("title", title, "what it shows");
    v("note", note, "what to know about it");
    v("x", x, "");
    v("y", y, "");
    v("series", series, "the curves");
    v("guides", guides, "lines across");
  }
};

// With what, how and how long it was made.
struct Provenance {
  std::string version;
  std::string commit;
  std::string build;
  std::string cpu;
  int64_t threads = 0;
  std::string command;
  std::string budget;  // "quick", "full"
  std::string data;    // checksum of the texts it read; empty: none
  std::vector<uint64_t> seeds;
  std::vector<std::string> changes;  // of every training run, by the user
  double seconds = 0;                // of training and measuring together, on this machine

  template <class V>
  void Fields(V& v) {
    v("version", version, "of tensorcache");
    v("commit", commit, "it was built from");
    v("build", build, "kind and compiler");
    v("cpu", cpu, "");
    v("threads", threads, "");
    v("command", command, "that makes it again");
    v("budget", budget, "quick or full");
    v("data", data, "checksum of the texts");
    v("seeds", seeds, "of the training runs");
    v("changes", changes, "of every training run, by the user");
    v("seconds", seconds, "of training and measuring");
  }
};

// A training run that the figures come from.
struct RunRecord {
  std::string name;
  int64_t steps = 0;
  int64_t tokens = 0;   // read in training
  double seconds = 0;   // of training
  double loss = 0;      // of the last evaluation in training
  std::string changes;  // of the preset: "cache.method=window train.seed=2027"
  std::string commit;   // that the program which trained it was built from; may be empty

  template <class V>
  void Fields(V& v) {
    v("name", name, "");
    v("steps", steps, "of training");
    v("tokens", tokens, "read in training");
    v("seconds", seconds, "of training");
    v("loss", loss, "of the last evaluation in training");
    v("changes", changes, "what it changes in its preset");
    v("commit", commit, "the program that trained it was built from");
  }
};

struct ExperimentResult {
  std::string experiment;  // "recall"
  std::string title;
  std::string paper;                  // where the paper has it
  std::string setup;                  // one paragraph: model, data, budget
  std::vector<std::string> findings;  // one sentence each: what it shows, and where it falls short
  Provenance made;
  std::vector<Figure> figures;
  std::vector<Table> tables;
  std::vector<RunRecord> runs;

  template <class V>
  void Fields(V& v) {
    v("experiment", experiment, "its name on the command line");
    v("title", title, "");
    v("paper", paper, "where the paper has it");
    v("setup", setup, "model, data, budget");
    v("findings", findings, "what it shows");
    v("made", made, "with what, how and how long");
    v("figures", figures, "");
    v("tables", tables, "");
    v("runs", runs, "the training runs");
  }
};

// Cells of ours: a single value, or mean and deviation of several.
Cell Measured(double value);
Cell Measured(const std::vector<double>& values);
Cell TextCell(std::string text);
// The same cell beside the published figure.
Cell Beside(Cell cell, double paper, std::optional<double> paper_std = {});

// Every row has as many cells as there are columns; ids are unique; numbers are finite; log axes have positive values.
Status ValidateResult(const ExperimentResult& result);

// Pretty-printed JSON, and back. Reading validates; errors name the file.
std::string ResultToJson(const ExperimentResult& result);
Result<ExperimentResult> ReadResult(const std::string& path);

}  // namespace tensorcache::experiments
