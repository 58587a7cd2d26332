// tensorcache bench decode, prefill, memory: the run half beside the limits of the machine.
#include <nlohmann/json.hpp>

#include "apps/tensorcache/build_info.h"
#include "apps/tensorcache/command.h"
#include "apps/tensorcache/options.h"
#include "apps/tensorcache/output.h"
#include "apps/tensorcache/terminal.h"
#include "core/config.h"
#include "runtime/run_bench.h"

namespace tensorcache::cli {
namespace {

using runtime::DecodeRow;
using runtime::PrefillRow;
using runtime::RunBenchOptions;
using runtime::StateRow;
using OrderedJson = nlohmann::ordered_json;

constexpr double kMega = 1e6;

std::string Verdict(double value, double goal) {
  if (goal == 0) return "";
  return value >= goal ? " ok" : " MISSED";
}

// A value, the goal it is held against (0: none), and where the JSON keeps it.
struct Figure {
  const char* key;
  double value;
  double goal;
};
std::string Text(const Figure& figure) {
  return figure.value == 0 ? "" : fmt::format("{:.2f}{}", figure.value, Verdict(figure.value, figure.goal));
}
void Put(const Figure& figure, OrderedJson& json) {
  if (figure.value == 0) return;
  json[figure.key] = figure.value;
  if (figure.goal != 0) json[fmt::format("goal_{}", figure.key)] = figure.goal;
}

// What the three benches share.
struct Setup {
  RunBenchOptions options;
  std::string json_path;
  bool go = false;
};

Result<Setup> Parse(const CommandLine& line, const char* description, bool deep) {
  Setup setup{.options = {.config = runtime::Gpt130mConfig()}};
  std::vector<std::string> overrides;
  Options app(description);
  app.add_option("--json", setup.json_path, "Also write the figures to FILE")->type_name("FILE");
  app.add_option("--threads", setup.options.threads, "CPU threads; default: all cores")->check(CLI::Range(1, 1023));
  app.add_option("--set", overrides,
                 "Change the model, which is GPT-2 small's shape with window 512: key=value, as in config.json")
      ->type_name("KEY=VALUE");
  if (deep) {
    app.add_option("--seconds", setup.options.seconds, "Time spent on each row")
        ->capture_default_str()
        ->check(CLI::Range(0.01, 3600.0));
    app.add_option("--depth", setup.options.depth, "Tokens of context in the deep rows")
        ->capture_default_str()
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  }
  TC_ASSIGN_OR_RETURN(setup.go, ParseOptions(app, line));
  if (!setup.go) return setup;
  for (const std::string& assignment : overrides) TC_RETURN_IF_ERROR(ApplyOverride(assignment, &setup.options.config));
  TC_RETURN_IF_ERROR(ValidateModelConfig(setup.options.config));
  TC_RETURN_IF_ERROR(CheckOutputPath(setup.json_path));
  return setup;
}

OrderedJson Head(const std::string& name, const Setup& setup) {
  OrderedJson json = BenchHead(name);
  json["model"] = ToJson(setup.options.config);
  json["rows"] = OrderedJson::array();
  return json;
}

// ----- decode --------------------------------------------------------------------------------------------------------

constexpr char kDecodeLine[] = "{:<25} {:<10} {:>8} {:>9} {:>10} {:>22} {:>16} {:>14} {:>10}\n";

struct DecodeFigures {
  Figure to_baseline, of_bandwidth, of_sgemm, of_both;
};

DecodeFigures FiguresOf(const DecodeRow& row) {
  DecodeFigures figures{.to_baseline = {"to_baseline", row.to_baseline, 0},
                        .of_bandwidth = {"of_bandwidth", row.of_bandwidth, 0},
                        .of_sgemm = {"of_sgemm", row.of_sgemm, 0},
                        .of_both = {"of_sgemm_and_bandwidth", row.of_both, 0}};
  if (row.method == "tensor_cache outer" && row.sessions == 1) {
    figures.of_bandwidth.goal = row.weights == WeightType::kFp32   ? 0.90
                                : row.weights == WeightType::kBf16 ? 0.85
                                                                   : 0.75;
    figures.to_baseline.goal = row.baseline == "window" ? 0.90 : 0.98;
  }
  if (row.method == "tensor_cache associative") figures.to_baseline.goal = 0.93;
  if (row.sessions > 1) figures.of_sgemm.goal = 0.70;
  return figures;
}

void PrintDecode(const DecodeRow& row) {
  const DecodeFigures figures = FiguresOf(row);
  const std::string to = row.baseline.empty() ? "" : fmt::format("{} {}", Text(figures.to_baseline), row.baseline);
  Print(kDecodeLine, row.method, fmt::format("{}/{}", NameOf(row.weights), NameOf(row.ring)), row.sessions, row.context,
        fmt::format("{:.1f}", row.tokens_per_second), to, Text(figures.of_bandwidth), Text(figures.of_sgemm),
        Text(figures.of_both));
}

OrderedJson DecodeJson(const DecodeRow& row) {
  OrderedJson json = {{"method", row.method},        {"weights", NameOf(row.weights)},
                      {"ring", NameOf(row.ring)},    {"sessions", row.sessions},
                      {"context", row.context},      {"tokens_per_second", row.tokens_per_second},
                      {"bytes_per_step", row.bytes}, {"read_bandwidth", row.bandwidth}};
  const DecodeFigures figures = FiguresOf(row);
  if (!row.baseline.empty()) json["baseline"] = row.baseline;
  Put(figures.to_baseline, json);
  Put(figures.of_bandwidth, json);
  if (row.sgemm_rate > 0) {
    json["flops_per_step"] = row.flops;
    json["sgemm_rate"] = row.sgemm_rate;
  }
  Put(figures.of_sgemm, json);
  Put(figures.of_both, json);
  return json;
}

// Shows the preparation of a row on a terminal.
std::function<void(const std::string&, double)> ShowProgress() {
  auto progress = std::make_shared<std::optional<Progress>>();
  return [progress](const std::string& what, double done) {
    constexpr int kSteps = 1000;
    if (!progress->has_value()) progress->emplace(kSteps);
    (*progress)->Show(static_cast<int>(done * kSteps), what);
    if (done >= 1) progress->reset();
  };
}

// ----- prefill and memory ---------------------------------------------------------------------------------------------

constexpr char kPrefillLine[] = "{:<20} {:<8} {:>7} {:>9} {:>10} {:>12} {:>12}\n";

void PrintPrefill(const PrefillRow& row) {
  const bool ours = row.method != "window";
  Print(kPrefillLine, row.method, NameOf(row.weights), row.block, row.context,
        fmt::format("{:.0f}", row.tokens_per_second), Text({"to_window", row.to_window, ours ? 0.9 : 0}),
        Text({"of_sgemm", row.of_sgemm, ours ? 0.75 : 0}));
}

OrderedJson PrefillJson(const PrefillRow& row) {
  OrderedJson json = {{"method", row.method},
                      {"weights", NameOf(row.weights)},
                      {"block", row.block},
                      {"context", row.context},
                      {"tokens_per_second", row.tokens_per_second},
                      {"sgemm_rate", row.sgemm_rate}};
  const bool ours = row.method != "window";
  Put({"to_window", row.to_window, ours ? 0.9 : 0}, json);
  Put({"of_sgemm", row.of_sgemm, ours ? 0.75 : 0}, json);
  return json;
}

constexpr char kMemoryLine[] = "{:<16} {:<6} {:>9} {:>14} {:>18} {:>14}\n";

void PrintMemory(const StateRow& row) {
  const auto megabytes = [](int64_t bytes) { return fmt::format("{:.1f} MB", static_cast<double>(bytes) / kMega); };
  Print(kMemoryLine, row.method, NameOf(row.ring), row.context, megabytes(row.state_bytes),
        row.measured ? megabytes(row.resident_bytes) : "does not fit here",
        row.file_bytes == 0 ? "" : megabytes(row.file_bytes));
}

OrderedJson MemoryJson(const StateRow& row) {
  OrderedJson json = {{"method", row.method},
                      {"ring", NameOf(row.ring)},
                      {"context", row.context},
                      {"state_bytes", row.state_bytes},
                      {"measured", row.measured}};
  if (row.measured) json["resident_bytes"] = row.resident_bytes;
  if (row.file_bytes > 0) json["file_bytes"] = row.file_bytes;
  return json;
}

}  // namespace

Status RunBenchDecode(const CommandLine& line) {
  TC_ASSIGN_OR_RETURN(Setup setup, Parse(line,
                                         "Times decoding, in turn with reading as many bytes as a token needs (all "
                                         "weights and the state, once) and, for "
                                         "batches, with sgemm. Random weights.",
                                         /*deep=*/true));
  if (!setup.go) return OkStatus();
  OrderedJson json = Head("decode", setup);
  setup.options.progress = ShowProgress();
  Print(kDecodeLine, "method", "weights", "sessions", "context", "tokens/s", "to", "of bandwidth", "of sgemm",
        "of both");
  TC_RETURN_IF_ERROR(runtime::BenchDecode(setup.options, [&](const DecodeRow& row) {
    PrintDecode(row);
    json["rows"].push_back(DecodeJson(row));
  }));
  return WriteOutput(setup.json_path, JsonText(json));
}

Status RunBenchPrefill(const CommandLine& line) {
  TC_ASSIGN_OR_RETURN(
      Setup setup,
      Parse(line, "Times prefilling a block of tokens, in turn with sgemm. Random weights.", /*deep=*/true));
  if (!setup.go) return OkStatus();
  OrderedJson json = Head("prefill", setup);
  setup.options.progress = ShowProgress();
  Print(kPrefillLine, "method", "weights", "block", "context", "tokens/s", "to window", "of sgemm");
  TC_RETURN_IF_ERROR(runtime::BenchPrefill(setup.options, [&](const PrefillRow& row) {
    PrintPrefill(row);
    json["rows"].push_back(PrefillJson(row));
  }));
  return WriteOutput(setup.json_path, JsonText(json));
}

Status RunBenchMemory(const CommandLine& line) {
  TC_ASSIGN_OR_RETURN(
      Setup setup,
      Parse(line, "Feeds up to 1,000,000 tokens to a cache of each method and measures what the process grows by.",
            /*deep=*/false));
  if (!setup.go) return OkStatus();
  OrderedJson json = Head("memory", setup);
  Print(kMemoryLine, "method", "ring", "context", "state", "resident", "file");
  TC_RETURN_IF_ERROR(runtime::BenchState(setup.options, [&](const StateRow& row) {
    PrintMemory(row);
    json["rows"].push_back(MemoryJson(row));
  }));
  return WriteOutput(setup.json_path, JsonText(json));
}

}  // namespace tensorcache::cli
