// Raw capacity of one memory head: the tables.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "experiments/capacity.h"
#include "experiments/experiments.h"

namespace tensorcache::experiments {
namespace {

using Seeds = std::vector<uint64_t>;

// A full memory has had so many pairs for each row of its matrices.
constexpr int64_t kEarlier = 4;
// Retrieval, with pairs up to as many as mqar asks for.
constexpr int64_t kRetrievalDim = 64;
constexpr std::array<int64_t, 4> kRetrievalPairs = {16, 64, 256, 1024};

// They cost milliseconds each, so there are more of them than the paper's five.
Seeds SeedsOf(const ExperimentOptions& options) {
  if (!options.seeds.empty()) return options.seeds;
  Seeds seeds(options.quick() ? 20 : 1000);
  std::iota(seeds.begin(), seeds.end(), 0);
  return seeds;
}
// For what takes longer.
Seeds FirstOf(Seeds seeds, size_t most) {
  seeds.resize(std::min(most, seeds.size()));
  return seeds;
}

std::string PaperTitle(CapacityRegime regime) {
  switch (regime) {
    case CapacityRegime::kOrthoPrefix: return "orthonormal prefix";
    case CapacityRegime::kRandom: return "random keys";
    case CapacityRegime::kDecayed: return "random keys, decayed";
    default: return "";
  }
}

std::string SeedsText(const Seeds& seeds) { return fmt::format("Mean and deviation over {} seeds.", seeds.size()); }

// Tells how much of all is done.
class Steps {
 public:
  Steps(const MeasureContext& context, size_t count) : context_(context), count_(static_cast<double>(count)) {}
  void Tell(const std::string& what) { context_.Tell(done_++ / count_, what); }

 private:
  const MeasureContext& context_;
  double count_, done_ = 0;
};

Cell CellOf(const Seeds& seeds, const std::function<double(uint64_t)>& measure) {
  std::vector<double> values;
  for (const uint64_t seed : seeds) values.push_back(measure(seed));
  return Measured(values);
}

void AddPaperTable(const Seeds& seeds, Steps* steps, ExperimentResult* result) {
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
  for (const CapacityRegime regime : kPaperRegimes) {
    table.columns.push_back({.title = "measured", .group = PaperTitle(regime), .digits = 1});
    table.columns.push_back({.title = "expected", .group = PaperTitle(regime), .digits = 1});
    figure.series.push_back({.name = PaperTitle(regime)});
    figure.series.push_back({.name = PaperTitle(regime) + ", published", .paper = true});
  }
  for (const int64_t dim : kCapacityDims) {
    Row row{.label = std::to_string(dim)};
    for (size_t r = 0; r < kPaperRegimes.size(); ++r) {
      steps->Tell(fmt::format("D = {}", dim));
      const CapacityRow measured = MeasureCapacityRow(dim, kPaperRegimes[r], seeds);
      Cell cell = Measured(measured.mean);
      if (seeds.size() > 1) cell.std = measured.std;
      cell.n = std::ssize(seeds);
      row.cells.push_back(Beside(cell, measured.paper_mean, measured.paper_std));
      row.cells.push_back(Measured(ExpectedCapacity(dim, kPaperRegimes[r])));
      const auto x = static_cast<double>(dim);
      figure.series[2 * r].points.push_back({.x = x, .y = measured.mean, .error = measured.std});
      figure.series[2 * r + 1].points.push_back({.x = x, .y = measured.paper_mean, .error = measured.paper_std});
    }
    table.rows.push_back(std::move(row));
  }
  result->findings.push_back(
      fmt::format("At D = 128 the oldest of {:.0f} random pairs is lost without decay, of {:.0f} with it (published "
                  "143.8 and 84.2).",
                  *table.rows.back().cells[2].value, *table.rows.back().cells[4].value));
  result->tables.push_back(std::move(table));
  result->figures.push_back(std::move(figure));
}

// Later writes that a pair bears, by regime and dimension; measured and expected.
Table LaterWritesTable(const Seeds& seeds, bool full, Steps* steps) {
  const std::string where =
      full ? fmt::format("Before it, {} D pairs were written into each matrix.", kEarlier) : "It is the first.";
  Table table{.id = full ? "full_memory" : "empty_memory",
              .title = fmt::format("Later writes that a pair bears, {}", full ? "full memory" : "empty memory"),
              .note = fmt::format("{} It is lost where crosstalk is as large as what is left of its value; expected: "
                                  "where their mean squares are equal. {}",
                                  where, SeedsText(seeds)),
              .row_title = "Rule"};
  for (const int64_t dim : kCapacityDims) {
    table.columns.push_back({.title = "measured", .group = fmt::format("D = {}", dim), .digits = 1});
    table.columns.push_back({.title = "expected", .group = fmt::format("D = {}", dim), .digits = 1});
  }
  for (const CapacityRegime regime : kRandomRegimes) {
    const CapacitySpec& spec = SpecOf(regime);
    Row row{.label = std::string(spec.title)};
    for (const int64_t dim : kCapacityDims) {
      steps->Tell(fmt::format("{}, D = {}", spec.title, dim));
      const int64_t earlier = full ? kEarlier * spec.slots * dim : 0;
      row.cells.push_back(CellOf(
          seeds, [&](uint64_t seed) { return static_cast<double>(MeasureLaterWrites(dim, regime, seed, earlier)); }));
      row.cells.push_back(Measured(ExpectedLaterWrites(dim, regime, earlier)));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

Figure LaterWritesFigure(const Table& table) {
  Figure figure{.id = "rules_by_dim",
                .title = "Later writes that a pair bears",
                .note = "From an empty memory.",
                .x = {.title = "head dimension D", .log = true},
                .y = {.title = "later writes", .log = true}};
  for (const Row& row : table.rows) {
    Series series{.name = row.label};
    for (size_t d = 0; d < kCapacityDims.size(); ++d) {
      const Cell& cell = row.cells[2 * d];
      series.points.push_back(
          {.x = static_cast<double>(kCapacityDims[d]), .y = *cell.value, .error = cell.std.value_or(0)});
    }
    figure.series.push_back(std::move(series));
  }
  return figure;
}

Table RetrievalTable(const Seeds& seeds, Steps* steps) {
  Table table{.id = "retrieval",
              .title = fmt::format("Keys that find their value, D = {}", kRetrievalDim),
              .note = fmt::format("After all pairs were written: the part of the keys to whose read the value that was "
                                  "stored with them is nearer, by angle, than all others. {}",
                                  SeedsText(seeds)),
              .row_title = "Rule"};
  for (const int64_t pairs : kRetrievalPairs) {
    table.columns.push_back({.title = fmt::format("{} pairs", pairs), .better = Better::kHigher});
  }
  for (const CapacityRegime regime : kRandomRegimes) {
    const std::string title(SpecOf(regime).title);
    Row row{.label = title};
    for (const int64_t pairs : kRetrievalPairs) {
      steps->Tell(fmt::format("{}, {} pairs", title, pairs));
      row.cells.push_back(
          CellOf(seeds, [&](uint64_t seed) { return MeasureRetrieved(kRetrievalDim, regime, seed, pairs); }));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

Figure RetrievalFigure(const Table& table) {
  Figure figure{.id = "retrieval_by_pairs",
                .title = fmt::format("Keys that find their value, D = {}", kRetrievalDim),
                .x = {.title = "pairs", .log = true},
                .y = {.title = "part of the keys", .min = 0, .max = 1.05}};
  for (const Row& row : table.rows) {
    Series series{.name = row.label};
    for (size_t p = 0; p < kRetrievalPairs.size(); ++p) {
      const Cell& cell = row.cells[p];
      series.points.push_back(
          {.x = static_cast<double>(kRetrievalPairs[p]), .y = *cell.value, .error = cell.std.value_or(0)});
    }
    figure.series.push_back(std::move(series));
  }
  return figure;
}

const Row& RowOf(const Table& table, CapacityRegime regime) {
  return *std::ranges::find(table.rows, SpecOf(regime).title, &Row::label);
}

// "outer 131.0 (128.0 expected), delta 63.1 (61.6)", at the largest dimension
std::string WritesText(const Table& table) {
  std::string text;
  for (const Row& row : table.rows) {
    const size_t last = row.cells.size() - 2;
    text += fmt::format("{}{} {:.1f} ({:.1f}{})", text.empty() ? "" : ", ", row.label, *row.cells[last].value,
                        *row.cells[last + 1].value, text.empty() ? " expected" : "");
  }
  return text;
}

std::string RetrievalText(const Table& table) {
  std::string text = fmt::format("At D = {} the part of the keys that find their value among those of", kRetrievalDim);
  for (size_t p = 1; p < kRetrievalPairs.size(); ++p) {
    text += fmt::format("{} {} pairs: ", p > 1 ? "; of" : "", kRetrievalPairs[p]);
    for (const CapacityRegime regime :
         {CapacityRegime::kRandom, CapacityRegime::kDelta, CapacityRegime::kGatedDelta, CapacityRegime::kEightSlots}) {
      const Row& row = RowOf(table, regime);
      text += fmt::format("{}{} {:.3f}", regime == CapacityRegime::kRandom ? "" : ", ", row.label, *row.cells[p].value);
    }
  }
  return text + ".";
}

void AddRuleTables(const Seeds& seeds, Steps* steps, ExperimentResult* result) {
  const int64_t largest = kCapacityDims.back();
  Table empty = LaterWritesTable(FirstOf(seeds, 200), /*full=*/false, steps);
  Table full = LaterWritesTable(FirstOf(seeds, 50), /*full=*/true, steps);
  Table retrieval = RetrievalTable(FirstOf(seeds, 10), steps);
  result->findings.push_back(
      fmt::format("Later writes that the first pair bears at D = {}: {}.", largest, WritesText(empty)));
  result->findings.push_back(fmt::format("The same of a pair that comes into a full memory: {}.", WritesText(full)));
  result->findings.push_back(RetrievalText(retrieval));
  result->figures.push_back(LaterWritesFigure(empty));
  result->figures.push_back(RetrievalFigure(retrieval));
  for (Table* table : {&empty, &full, &retrieval}) result->tables.push_back(std::move(*table));
}

}  // namespace

Result<ExperimentResult> MeasureCapacityTable(const MeasureContext& context) {
  const Seeds seeds = SeedsOf(context.options);
  ExperimentResult result{
      .experiment = "capacity",
      .title = "Raw capacity of one memory head",
      .paper = "Section 4.5, Table 3; the other rules and slots are not there",
      .setup =
          "Random pairs are written into one D x D matrix until the oldest one's relative error exceeds 1. Decayed: "
          "lambda 0.995, eta 0.05 (gated delta: eta 1). Normal keys have elements of variance 1 / D, all others are of "
          "unit "
          "length. Slots are matrices: each pair is written into that whose random vector its key is nearest to, and "
          "read from there."};
  Steps steps(context, kCapacityDims.size() * (kPaperRegimes.size() + 2 * kRandomRegimes.size()) +
                           kRandomRegimes.size() * kRetrievalPairs.size());
  AddPaperTable(seeds, &steps, &result);
  AddRuleTables(seeds, &steps, &result);
  return result;
}

}  // namespace tensorcache::experiments
