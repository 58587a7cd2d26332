#include "experiments/result.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "core/statistics.h"
#include "core/text.h"

namespace tensorcache::experiments {
namespace {

bool Finite(const std::optional<double>& value) { return !value || std::isfinite(*value); }

Status ValidateTable(const Table& table) {
  for (const Row& row : table.rows) {
    if (row.cells.size() != table.columns.size()) {
      return InvalidArgument(fmt::format("table {}: row {} has {} cells for {} columns", Quoted(table.id),
                                         Quoted(row.label), row.cells.size(), table.columns.size()));
    }
    for (const Cell& cell : row.cells) {
      if (!Finite(cell.value) || !Finite(cell.std) || !Finite(cell.paper) || !Finite(cell.paper_std)) {
        return InvalidArgument(
            fmt::format("table {}: row {} has a number that is not finite", Quoted(table.id), Quoted(row.label)));
      }
    }
  }
  return OkStatus();
}

Status ValidateFigure(const Figure& figure) {
  for (const Series& series : figure.series) {
    for (const Point& point : series.points) {
      const bool finite = std::isfinite(point.x) && std::isfinite(point.y) && std::isfinite(point.error);
      if (!finite || (figure.x.log && point.x <= 0) || (figure.y.log && point.y <= 0)) {
        return InvalidArgument(fmt::format("figure {}: {} has the point ({}, {}), which cannot be drawn",
                                           Quoted(figure.id), Quoted(series.name), point.x, point.y));
      }
    }
  }
  return OkStatus();
}

}  // namespace

Cell Measured(double value) {
  Cell cell;
  cell.value = value;
  return cell;
}

Cell TextCell(std::string text) {
  Cell cell;
  cell.text = std::move(text);
  return cell;
}

Cell Measured(const std::vector<double>& values) {
  if (values.empty()) return {};
  const Spread spread = SpreadOf(values);
  Cell cell = Measured(spread.mean);
  cell.n = static_cast<int64_t>(values.size());
  if (values.size() > 1) cell.std = spread.std;
  return cell;
}

Cell Beside(Cell cell, double paper, std::optional<double> paper_std) {
  cell.paper = paper;
  cell.paper_std = paper_std;
  return cell;
}

Status ValidateResult(const ExperimentResult& result) {
  std::set<std::string> ids;
  const auto take = [&](const std::string& id) {
    if (!id.empty() && ids.insert(id).second) return OkStatus();
    return InvalidArgument(fmt::format("two tables or figures have the id {}, or none", Quoted(id)));
  };
  for (const Table& table : result.tables) {
    TC_RETURN_IF_ERROR(take(table.id));
    TC_RETURN_IF_ERROR(ValidateTable(table));
  }
  for (const Figure& figure : result.figures) {
    TC_RETURN_IF_ERROR(take(figure.id));
    TC_RETURN_IF_ERROR(ValidateFigure(figure));
  }
  return OkStatus();
}

std::string ResultToJson(const ExperimentResult& result) { return JsonText(ToJson(result), 1); }

Result<ExperimentResult> ReadResult(const std::string& path) {
  ExperimentResult result;
  TC_RETURN_IF_ERROR(ReadConfigFile(path, &result));
  const Status status = ValidateResult(result);
  if (!status.ok()) return Status(status.code(), path + ": " + status.message());
  if (result.experiment.empty()) return InvalidArgument(path + " does not name its experiment");
  return result;
}

}  // namespace tensorcache::experiments
