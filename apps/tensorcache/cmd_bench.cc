// tensorcache bench: speed, each row beside its limit measured in the same run.
#include <nlohmann/json.hpp>

#include "apps/tensorcache/build_info.h"
#include "apps/tensorcache/command.h"
#include "apps/tensorcache/options.h"
#include "apps/tensorcache/output.h"
#include "apps/tensorcache/program.h"
#include "bench/driver.h"
#include "core/json.h"
#include "core/text.h"

namespace tensorcache::cli {
namespace {

using bench::Row;

struct KernelBench {
  const char* op;
  void (*run)(bench::Driver& driver);
};

constexpr KernelBench kKernelBenches[] = {
    {"memory_scan", bench::BenchMemoryScan},
    {"window_attention", bench::BenchWindowAttention},
    {"rope", bench::BenchRope},
    {"matmul", bench::BenchMatmul},
    {"norm", bench::BenchNorm},
    {"read_norm", bench::BenchReadNorm},
    {"short_conv", bench::BenchShortConv},
};

bool MetGoal(const Row& row) { return row.goal_is_upper_bound ? row.fraction <= row.goal : row.fraction >= row.goal; }

constexpr char kTableLine[] = "{:<26} {:<38} {:>2} {:>8} {:<7} {:>8} {:<20} {:>8}  {:<7}  {}\n";

void PrintHead() {
  Print(kTableLine, "kernel", "shape", "th", "value", "unit", "limit", "which is", "fraction", "goal", "");
}

// Four digits, never an exponent.
std::string Short(double value) { return value >= 1000 ? fmt::format("{:.0f}", value) : fmt::format("{:.4g}", value); }

void PrintRow(const Row& row) {
  const std::string goal =
      row.goal == 0 ? "" : fmt::format("{} {:.2f}", row.goal_is_upper_bound ? "<=" : ">=", row.goal);
  const char* verdict = row.goal == 0 ? "" : MetGoal(row) ? "met" : "missed";
  Print(kTableLine, row.op, row.shape, row.threads, Short(row.value), row.unit, Short(row.limit_value), row.limit,
        fmt::format("{:.2f}", row.fraction), goal, verdict);
}

nlohmann::ordered_json RowJson(const Row& row) {
  nlohmann::ordered_json json = {
      {"op", row.op},          {"shape", row.shape}, {"threads", row.threads},         {"unit", row.unit},
      {"value", row.value},    {"limit", row.limit}, {"limit_value", row.limit_value}, {"fraction", row.fraction},
      {"seconds", row.seconds}};
  if (row.goal != 0) {
    json["goal"] = row.goal;
    json["goal_is_upper_bound"] = row.goal_is_upper_bound;
    json["met"] = MetGoal(row);
  }
  return json;
}

std::string BenchJson(const std::vector<Row>& rows) {
  nlohmann::ordered_json json = BenchHead("kernels");
  json["rows"] = nlohmann::ordered_json::array();
  for (const Row& row : rows) json["rows"].push_back(RowJson(row));
  return JsonText(json);
}

Result<std::vector<KernelBench>> Select(const std::string& only) {
  std::vector<KernelBench> selected;
  std::vector<std::string_view> names;
  for (const KernelBench& kernel : kKernelBenches) {
    if (only.empty() || only == kernel.op) selected.push_back(kernel);
    names.emplace_back(kernel.op);
  }
  if (!selected.empty()) return selected;
  return InvalidArgument(
      fmt::format("--only: there is no kernel {}{}", Quoted(only), DidYouMeanOr(only, names, "the kernels are")));
}

Status RunKernels(const CommandLine& line) {
  std::string json_path;
  std::string only;
  double seconds = 0.6;
  Options app("Times each kernel and, alternating with it, the limit it is held against.");
  app.add_option("--json", json_path, "Also write the figures to FILE")->type_name("FILE");
  app.add_option("--only", only, "Measure this kernel alone")->type_name("OP");
  app.add_option("--seconds", seconds, "Time spent on each row")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 3600.0));
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  TC_ASSIGN_OR_RETURN(const auto kernels, Select(only));
  TC_RETURN_IF_ERROR(CheckOutputPath(json_path));

  PrintHead();
  bench::Driver driver(PrintRow, seconds);
  for (const KernelBench& kernel : kernels) kernel.run(driver);
  return WriteOutput(json_path, BenchJson(driver.rows()));
}

constexpr Command kBenches[] = {
    {"kernels", "The kernels, each beside sgemm or memory bandwidth", RunKernels},
    {"decode", "Decoding, one session and many, beside memory bandwidth and sgemm", RunBenchDecode},
    {"prefill", "Reading a long text, beside sgemm", RunBenchPrefill},
    {"memory", "What sessions keep of 4 thousand to a million tokens", RunBenchMemory},
    {"train", "Training, method by method, beside sgemm", RunInTrainProgram},
};

}  // namespace

Status RunBench(const CommandLine& line) {
  return Dispatch(kBenches, "Measures speed. Every row carries its own limit, measured in the same run.", line);
}

}  // namespace tensorcache::cli
