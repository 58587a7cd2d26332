// tensorcache bench train: tokens per second of each method, beside sgemm and beside Window KV.
#include <nlohmann/json.hpp>

#include "apps/tensorcache/build_info.h"
#include "apps/tensorcache/command.h"
#include "apps/tensorcache/options.h"
#include "apps/tensorcache/output.h"
#include "core/json.h"
#include "train/torch.h"
#include "train/train_bench.h"

namespace tensorcache::cli {
namespace {

using train::FusionRow;
using train::TrainBenchRow;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kPresets[] = {"recall", "shakespeare", "gpt-130m"};
constexpr double kMebibyte = 1024.0 * 1024.0;

// What the project promises; 0: nothing.
struct Goals {
  double to_window = 0;
  double memory_to_window = 0;
  double utilisation = 0;
};

Goals GoalsOf(const TrainBenchRow& row) {
  Goals goals;
  if (row.method == "tensor_cache outer") {
    goals = {.to_window = 0.8, .memory_to_window = 1.3};
    if (row.preset == "recall") goals.utilisation = 0.45;
    if (row.preset == "gpt-130m") goals.utilisation = 0.60;
  }
  if (row.method == "tensor_cache delta") goals.to_window = 0.6;
  if (row.method == "tensor_cache associative") goals.to_window = 0.75;
  return goals;
}

std::string Verdict(double value, double goal, bool upper_bound) {
  if (goal == 0) return "";
  return (upper_bound ? value <= goal : value >= goal) ? " ok" : " MISSED";
}

constexpr char kLine[] = "{:<12} {:<25} {:>9} {:>12} {:>16} {:>14} {:>16} {:>10}\n";

void PrintHead() {
  Print(kLine, "preset", "method", "batch", "tokens/s", "to window", "of sgemm", "tensors, peak", "to window");
}

void PrintRow(const TrainBenchRow& row) {
  const Goals goals = GoalsOf(row);
  Print(kLine, row.preset, row.method, fmt::format("{}x{}", row.rows, row.tokens),
        fmt::format("{:.0f}", row.tokens_per_second),
        fmt::format("{:.2f}{}", row.to_window, Verdict(row.to_window, goals.to_window, false)),
        fmt::format("{:.2f}{}", row.utilisation, Verdict(row.utilisation, goals.utilisation, false)),
        fmt::format("{:.0f} MiB", static_cast<double>(row.peak_bytes) / kMebibyte),
        fmt::format("{:.2f}{}", row.memory_to_window, Verdict(row.memory_to_window, goals.memory_to_window, true)));
}

OrderedJson RowJson(const TrainBenchRow& row) {
  const Goals goals = GoalsOf(row);
  OrderedJson json = {{"preset", row.preset},
                      {"method", row.method},
                      {"rows", row.rows},
                      {"tokens", row.tokens},
                      {"tokens_per_second", row.tokens_per_second},
                      {"to_window", row.to_window},
                      {"gflops", row.gflops},
                      {"sgemm_gflops", row.sgemm_gflops},
                      {"utilisation", row.utilisation},
                      {"peak_tensor_bytes", row.peak_bytes},
                      {"memory_to_window", row.memory_to_window},
                      {"peak_resident_bytes", row.peak_resident}};
  if (goals.to_window != 0) json["goal_to_window"] = goals.to_window;
  if (goals.memory_to_window != 0) json["goal_memory_to_window"] = goals.memory_to_window;
  if (goals.utilisation != 0) json["goal_utilisation"] = goals.utilisation;
  return json;
}

// A step of the largest preset at the batch a run would use: it must fit into a small machine.
constexpr int64_t kMemoryBatch = 4;
constexpr double kMemoryGoal = 6e9;
constexpr double kFusionGoal = 2;

Result<OrderedJson> BenchLargeStep() {
  TC_ASSIGN_OR_RETURN(const TrainBenchRow row,
                      train::MeasureStepMemory("gpt-130m", "tensor_cache outer", kMemoryBatch));
  const auto resident = static_cast<double>(row.peak_resident);
  Print("gpt-130m step of {} x {}: resident memory at most {:.2f} GB, of which tensors {:.2f} GB; goal < 6 GB{}\n",
        row.rows, row.tokens, resident / 1e9, static_cast<double>(row.peak_bytes) / 1e9,
        Verdict(resident, kMemoryGoal, true));
  return OrderedJson{{"rows", row.rows},
                     {"tokens", row.tokens},
                     {"peak_resident_bytes", row.peak_resident},
                     {"peak_tensor_bytes", row.peak_bytes},
                     {"goal", kMemoryGoal}};
}

Result<OrderedJson> BenchFusionRows(const std::string& preset, int repeats) {
  OrderedJson json = OrderedJson::array();
  TC_ASSIGN_OR_RETURN(const std::vector<FusionRow> rows, train::BenchFusion(preset, repeats));
  for (const FusionRow& row : rows) {
    Print(
        "{:<12} {:<20} attention and memory: {:>6.1f} ms, composite {:>6.1f} ms, {:.1f} x{};  whole layer: {:>6.1f} "
        "ms, "
        "composite {:>6.1f} ms, {:.1f} x\n",
        row.preset, row.method, row.ops_fused_seconds * 1e3, row.ops_composite_seconds * 1e3, row.ops_speedup,
        Verdict(row.ops_speedup, kFusionGoal, false), row.layer_fused_seconds * 1e3, row.layer_composite_seconds * 1e3,
        row.layer_speedup);
    json.push_back({{"preset", row.preset},
                    {"method", row.method},
                    {"ops_fused_seconds", row.ops_fused_seconds},
                    {"ops_composite_seconds", row.ops_composite_seconds},
                    {"ops_speedup", row.ops_speedup},
                    {"goal_ops_speedup", kFusionGoal},
                    {"layer_fused_seconds", row.layer_fused_seconds},
                    {"layer_composite_seconds", row.layer_composite_seconds},
                    {"layer_speedup", row.layer_speedup}});
  }
  return json;
}

}  // namespace

Status RunBenchTrain(const CommandLine& line) {
  std::string json_path;
  std::string only;
  int repeats = 5;
  int threads = 0;
  Options app(
      "Times training steps (forward, backward, optimiser) of each cache method, in turn with Window KV and sgemm.");
  app.add_option("--json", json_path, "Also write the figures to FILE")->type_name("FILE");
  app.add_option("--only", only, "Measure this preset alone")
      ->check(CLI::IsMember({"recall", "shakespeare", "gpt-130m"}));
  app.add_option("--repeats", repeats, "Steps per row; the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--threads", threads, "CPU threads; default: all cores")->check(CLI::Range(1, 4096));
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  TC_RETURN_IF_ERROR(CheckOutputPath(json_path));
  if (threads > 0) at::set_num_threads(threads);

  OrderedJson json = BenchHead("train");
  json["torch"] = GetBuildInfo().torch;
  json["threads"] = at::get_num_threads();
  json["rows"] = OrderedJson::array();
  json["fusion"] = OrderedJson::array();
  PrintHead();
  for (const char* preset : kPresets) {
    if (!only.empty() && only != preset) continue;
    const int steps = std::string_view(preset) == "gpt-130m" ? std::min(repeats, 2) : repeats;
    TC_ASSIGN_OR_RETURN(const auto rows, train::BenchTraining({.preset = preset, .repeats = steps}, PrintRow));
    for (const TrainBenchRow& row : rows) json["rows"].push_back(RowJson(row));
  }
  for (const char* preset : kPresets) {
    if (!only.empty() && only != preset) continue;
    TC_ASSIGN_OR_RETURN(const OrderedJson rows, BenchFusionRows(preset, repeats));
    for (const OrderedJson& row : rows) json["fusion"].push_back(row);
  }
  if (only.empty() || only == "gpt-130m") {
    TC_ASSIGN_OR_RETURN(json["large_step"], BenchLargeStep());
  }
  return WriteOutput(json_path, JsonText(json));
}

}  // namespace tensorcache::cli
