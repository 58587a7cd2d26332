#include "train/metrics_log.h"

#include <filesystem>

namespace tensorcache::train {
namespace {

constexpr int64_t kMaxBytes = int64_t{4} << 30;

// The lines of `text` that belong to steps up to `step`. A last line without its end was cut off by a crash.
std::string LinesUpTo(const std::string& text, int64_t step) {
  std::string kept;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == text.npos) break;
    const std::string line = text.substr(begin, end + 1 - begin);
    const Result<Json> record = ParseJson(line, "metrics.jsonl");
    const bool keep = record.ok() && record->is_object() && record->contains("step") &&
                      (*record)["step"].is_number_integer() && (*record)["step"].get<int64_t>() <= step;
    if (keep) kept += line;
    begin = end + 1;
  }
  return kept;
}

}  // namespace

OrderedJson TrainRecord(const StepMetrics& metrics, const StepTime& time) {
  OrderedJson json;
  json["kind"] = "train";
  json["step"] = metrics.step;
  json["loss"] = metrics.loss;
  json["learning_rate"] = metrics.learning_rate;
  json["gradient_norm"] = metrics.gradient_norm;
  json["tokens"] = metrics.tokens;
  json["tokens_per_second"] = static_cast<double>(metrics.tokens) / time.seconds;
  json["cpu_seconds"] = time.cpu_seconds;
  OrderedJson layers = OrderedJson::array();
  for (const LayerMetrics& layer : metrics.layers) {
    OrderedJson figures = OrderedJson::object();
    for (const auto& [name, values] : layer.learned) figures[name] = values;
    if (layer.memory_norm) figures["memory_norm"] = *layer.memory_norm;
    layers.push_back(figures);
  }
  if (!layers.empty()) json["layers"] = layers;
  return json;
}

OrderedJson EvalRecord(int64_t step, const EvalMetrics& metrics, bool best) {
  return {{"kind", "eval"},           {"step", step}, {"loss", metrics.loss}, {"accuracy", metrics.accuracy},
          {"tokens", metrics.tokens}, {"best", best}};
}

OrderedJson DivergedRecord(int64_t step, const std::string& why) {
  return {{"kind", "diverged"}, {"step", step}, {"why", why}};
}

Result<MetricsLog> MetricsLog::Open(const std::string& folder, int64_t step) {
  const std::string path = (std::filesystem::path(folder) / "metrics.jsonl").string();
  if (Exists(path)) {
    TC_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kMaxBytes));
    const std::string kept = LinesUpTo(text, step);
    if (kept.size() != text.size()) TC_RETURN_IF_ERROR(WriteFileAtomically(path, kept));
  }
  TC_ASSIGN_OR_RETURN(AppendedFile file, AppendedFile::Open(path));
  return MetricsLog(std::move(file));
}

}  // namespace tensorcache::train
