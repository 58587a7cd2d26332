#include "experiments/lab.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "core/checksum.h"
#include "core/config.h"
#include "core/file.h"
#include "core/model_files.h"
#include "core/process.h"
#include "core/statistics.h"
#include "methods/flops.h"

namespace tensorcache::experiments {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxLogBytes = int64_t{1} << 28;
constexpr char kDoneFile[] = "done.json";
constexpr char kDivergedFile[] = "diverged.json";
// A part of every run's identity. Where a default changes, or what a training step computes, the runs of before are others:
// give it another text.
constexpr std::string_view kRunsVersion = "";
constexpr auto kPollEvery = std::chrono::milliseconds(50);
constexpr auto kReportEvery = std::chrono::seconds(1);

std::string ConfigText(const train::TrainConfig& config) { return JsonText(ToJson(config), 1); }

// "cache.window=12\n...": what is not as it is by default, so that an option which is added later leaves old runs theirs.
// Texts count by what is in them.
std::string ChangedKeys(train::TrainConfig config, const std::string& data) {
  if (!data.empty()) config.data.text.path = config.data.text.valid_path = config.data.text.tokenizer = data;
  const std::vector<ConfigKey> usual = ConfigKeys(train::TrainConfig{}), keys = ConfigKeys(config);
  std::string text;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].value != usual[i].value) text += fmt::format("{}={}\n", keys[i].path, keys[i].value);
  }
  return text;
}

std::string MetricsPath(const std::string& folder) { return folder + "/metrics.jsonl"; }

// A line of a run's metrics. NaN where a number is missing or is none.
struct MetricsRecord {
  std::string kind;
  int64_t step = 0;
  Json values;

  double Number(const char* key) const {
    const auto found = values.find(key);
    return found != values.end() && found->is_number() ? found->get<double>() : std::nan("");
  }
  std::string Text(const char* key) const {
    const auto found = values.find(key);
    return found != values.end() && found->is_string() ? found->get<std::string>() : "";
  }
};

// Nothing for a line that is cut short, or not one of metrics.
std::optional<MetricsRecord> ParseRecord(const std::string& line) {
  Result<Json> json = ParseJson(line, "metrics.jsonl");
  if (!json.ok() || !json->is_object()) return {};
  const auto kind = json->find("kind"), step = json->find("step");
  if (kind == json->end() || !kind->is_string() || step == json->end() || !step->is_number_integer()) return {};
  return MetricsRecord{.kind = *kind, .step = *step, .values = std::move(*json)};
}

// The complete lines of a run's metrics; none if there are none yet.
std::vector<MetricsRecord> ReadMetrics(const std::string& folder) {
  std::vector<MetricsRecord> records;
  const Result<std::string> text = ReadWholeFile(MetricsPath(folder), kMaxLogBytes);
  if (!text.ok()) return records;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    if (std::optional<MetricsRecord> record = ParseRecord(line)) records.push_back(std::move(*record));
  }
  return records;
}

// The last complete line alone: a run that goes on is asked often, and its metrics grow.
std::optional<MetricsRecord> LastRecord(const std::string& folder) {
  constexpr std::streamoff kTail = 64 << 10;
  std::ifstream file(MetricsPath(folder), std::ios::binary | std::ios::ate);
  if (!file) return {};
  file.seekg(std::max<std::streamoff>(0, file.tellg() - kTail));
  std::optional<MetricsRecord> last;
  for (std::string line; std::getline(file, line);) {
    if (std::optional<MetricsRecord> record = ParseRecord(line)) last = std::move(record);
  }
  return last;
}

// Of the numbers in a list; NaN if there are none.
double MeanIn(const Json& layer, const char* key) {
  const auto found = layer.find(key);
  double sum = 0, count = 0;
  if (found != layer.end() && found->is_array()) {
    for (const Json& value : *found) {
      sum += value.is_number() ? value.get<double>() : std::nan("");
      ++count;
    }
  }
  return sum / count;
}

std::vector<LearnedLayer> LearnedLayers(const Json& record) {
  std::vector<LearnedLayer> layers;
  const auto found = record.find("layers");
  if (found == record.end() || !found->is_array()) return layers;
  int64_t index = 0;
  for (const Json& layer : *found) {
    if (layer.is_object() && layer.contains("lambda")) {
      layers.push_back({.layer = index,
                        .gate = MeanIn(layer, "gate"),
                        .lambda = MeanIn(layer, "lambda"),
                        .eta = MeanIn(layer, "eta")});
    }
    ++index;
  }
  return layers;
}

// What the metrics tell of a run that is complete.
TrainedRun Summarize(const TrainJob& job, int threads, const std::vector<MetricsRecord>& metrics) {
  TrainedRun run;
  run.record.name = job.name;
  run.record.changes = job.changes;
  run.threads = threads;
  std::vector<double> seconds;
  double step_tokens = 0;
  for (const MetricsRecord& record : metrics) {
    if (record.kind == "diverged") {
      run.diverged = record.Text("why");
      run.record.steps = record.step - 1;
      continue;
    }
    run.record.steps = std::max(run.record.steps, record.step);
    if (record.kind == "eval") {
      run.evaluations.push_back(
          {.step = record.step, .loss = record.Number("loss"), .accuracy = record.Number("accuracy")});
      run.record.loss = run.evaluations.back().loss;
    } else if (record.kind == "train") {
      step_tokens = record.Number("tokens");
      seconds.push_back(record.Number("cpu_seconds") / static_cast<double>(threads));
      run.layers = LearnedLayers(record.values);
    }
  }
  run.seconds_per_step = Median(seconds);
  run.record.tokens = static_cast<int64_t>(step_tokens) * run.record.steps;
  run.record.seconds = run.seconds_per_step * static_cast<double>(run.record.steps);
  return run;
}

// The last thing the training program said, without its name.
std::string LastLine(const std::string& log) {
  const Result<std::string> text = ReadWholeFile(log, kMaxLogBytes);
  if (!text.ok() || text->empty()) return "it said nothing";
  std::istringstream lines(*text);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) last = line;
  }
  constexpr std::string_view kName = "tensorcache: ";
  return last.starts_with(kName) ? last.substr(kName.size()) : last;
}

bool HasModel(const fs::path& folder) { return Exists(folder / kDoneFile) && Exists(folder / kModelFile); }
bool IsComplete(const fs::path& folder, const TrainJob& job) {
  return HasModel(folder) || (job.may_diverge && Exists(folder / kDivergedFile));
}

double WorkLeftIn(const std::string& folder, const TrainJob& job) {
  if (IsComplete(folder, job)) return 0;
  const std::optional<MetricsRecord> last = LastRecord(folder);
  const double done = last ? static_cast<double>(last->step) / static_cast<double>(job.config.train.steps) : 0;
  return TrainingWork(job) * (1 - std::min(done, 1.0));
}

}  // namespace

double TrainingWork(const TrainJob& job) {
  const train::TrainConfig& config = job.config;
  ModelConfig model = config.model;
  const std::optional<data::TaskShape> task = data::TaskShapeOf(config.data);
  if (model.vocab_size == 0) model.vocab_size = task ? task->vocab_size : std::max<int64_t>(job.vocabulary, 1);
  const int64_t rows = config.train.batch_size, tokens = task ? task->length : config.Block();
  const double answers = task ? task->answers : static_cast<double>(tokens);  // of a row
  const int64_t supervised = std::llround(static_cast<double>(rows) * answers);
  return static_cast<double>(config.train.steps) *
         TrainingFlops(model, {.rows = rows, .tokens = tokens, .past = 0, .supervised = supervised});
}

// A run to be made. Its folders are kept: naming one compares whole configurations, and the loop asks often.
struct Lab::Order {
  TrainJob job;
  std::string folder;
  std::string from;  // the folder it starts from; empty: random parameters
};

struct Lab::Running {
  Order order;
  int64_t first_step;  // the last step of an earlier process, which this one goes on from
  ChildProcess process;
};

Result<std::unique_ptr<Lab>> Lab::Open(const LabOptions& options) {
  TC_RETURN_IF_ERROR(MakeFolder(options.folder + "/runs"));
  const std::string path = options.folder + "/lock";
  // Training programs inherit it: the folder stays locked until the last of them has ended, whatever happens to this one.
  const int lock = open(path.c_str(), O_RDWR | O_CREAT, 0644);  // NOLINT: not closed on exec, on purpose
  if (lock < 0) return IoError(fmt::format("{} cannot be written: {}", path, std::strerror(errno)));
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    close(lock);
    return InvalidArgument(
        fmt::format("{}: another program works in this folder; wait for it, or choose another one", options.folder));
  }
  return std::unique_ptr<Lab>(new Lab(options, lock));
}

Lab::~Lab() { close(lock_); }

std::string Lab::FolderOf(const TrainJob& job) const {
  std::string text = std::string(kRunsVersion) + ChangedKeys(job.config, job.data);
  if (job.from != nullptr) text += "from " + fs::path(FolderOf(*job.from)).filename().string();
  Crc64 checksum;
  checksum.Add(std::as_bytes(std::span(text)));
  return fmt::format("{}/runs/{}-{}-{:016x}", options_.folder, NameOf(job.config.data.kind),
                     NameOf(job.config.model.cache.method), checksum.value());
}

Result<TrainedRun> Lab::Find(const TrainJob& job) const {
  const std::string folder = FolderOf(job);
  if (!IsComplete(folder, job)) return NotFound(fmt::format("{} has not been trained", job.name));
  TrainedRun run;
  const char* const file = HasModel(folder) ? kDoneFile : kDivergedFile;
  if (const Status read = ReadConfigFile(fs::path(folder) / file, &run); !read.ok()) {
    return Status(read.code(),
                  fmt::format("{}; remove {}, and the same command trains {} again", read.message(), folder, job.name));
  }
  run.folder = folder;
  return run;
}

void Lab::AddMissing(const TrainJob& job, std::set<std::string>* seen, std::vector<TrainJob>* missing) const {
  const std::string folder = FolderOf(job);
  if (!seen->insert(folder).second || IsComplete(folder, job)) return;
  if (job.from != nullptr) AddMissing(*job.from, seen, missing);
  missing->push_back(job);
}

std::vector<TrainJob> Lab::Missing(std::span<const TrainJob> jobs) const {
  std::vector<TrainJob> missing;
  std::set<std::string> seen;
  for (const TrainJob& job : jobs) AddMissing(job, &seen, &missing);
  return missing;
}

double Lab::WorkLeft(std::span<const TrainJob> jobs) const {
  double left = 0;
  for (const TrainJob& job : jobs) left += WorkLeftIn(FolderOf(job), job);
  return left;
}

Result<Lab::Running> Lab::Start(const Order& order) const {
  const std::string& folder = order.folder;
  const std::string request = folder + "/request.json";
  TC_RETURN_IF_ERROR(MakeFolder(folder));
  TC_RETURN_IF_ERROR(WriteFileAtomically(request, ConfigText(order.job.config)));
  std::vector<std::string> arguments = {options_.program, "train", "--config",  request,
                                        "--out",          folder,  "--threads", std::to_string(options_.threads)};
  if (!order.from.empty()) arguments.insert(arguments.end(), {"--set", "train.init=" + order.from});
  if (Exists(fs::path(folder) / kTrainStateFile)) arguments.push_back("--resume");
  const std::optional<MetricsRecord> last = LastRecord(folder);
  TC_ASSIGN_OR_RETURN(
      ChildProcess process,
      ChildProcess::Start({.arguments = std::move(arguments), .log = folder + "/log.txt", .environment = {}}));
  return Running{order, last ? last->step : 0, std::move(process)};
}

Status Lab::Finish(const Running& running, int64_t peak_bytes) const {
  const auto& [job, folder, from] = running.order;
  TrainedRun run = Summarize(job, options_.threads, ReadMetrics(folder));
  const train::TrainOptions& train = job.config.train;
  const bool complete =
      !run.evaluations.empty() && (run.record.steps == train.steps || run.evaluations.back().loss <= train.target_loss);
  if (!complete) {
    return IoError(fmt::format("{} ended after {} of {} steps; the same command goes on from there", job.name,
                               run.record.steps, train.steps));
  }
  // A process that only found everything done has not had what training needs.
  run.peak_bytes = run.record.steps > running.first_step ? peak_bytes : 0;
  run.record.commit = options_.commit;
  return WriteFileAtomically(folder + "/" + kDoneFile, JsonText(ToJson(run), 1));
}

Result<bool> Lab::FinishDiverged(const Running& running) const {
  const auto& [job, folder, from] = running.order;
  if (!job.may_diverge) return false;
  TrainedRun run = Summarize(job, options_.threads, ReadMetrics(folder));
  if (run.diverged.empty()) return false;
  run.record.commit = options_.commit;
  TC_RETURN_IF_ERROR(WriteFileAtomically(folder + "/" + kDivergedFile, JsonText(ToJson(run), 1)));
  return true;
}

void Lab::Report(std::span<const Order> orders, std::span<const Running> running) const {
  if (!options_.progress) return;
  LabProgress progress{.total_runs = std::ssize(orders)};
  double total = 0, left = 0;
  for (const Order& order : orders) {
    total += TrainingWork(order.job);
    left += WorkLeftIn(order.folder, order.job);
    progress.runs += IsComplete(order.folder, order.job) ? 1 : 0;
  }
  for (const Running& run : running) {
    const std::optional<MetricsRecord> last = LastRecord(run.order.folder);
    if (!last) continue;
    const TrainJob& job = run.order.job;
    progress.running += fmt::format("{}{} {}/{} loss {:.3f}", progress.running.empty() ? "" : "; ", job.name,
                                    last->step, job.config.train.steps, last->Number("loss"));
  }
  progress.work = total > 0 ? 1 - left / total : 1;
  options_.progress(progress);
}

void Lab::StopAll(std::vector<Running>& running) const {
  for (const Running& run : running) run.process.Signal(SIGTERM);
  for (Running& run : running) run.process.Wait();
  running.clear();
}

Status Lab::StartSome(std::vector<Order>& waiting, std::vector<Running>& running) const {
  for (auto order = waiting.begin(); order != waiting.end() && std::ssize(running) < options_.jobs;) {
    if (!order->from.empty() && !HasModel(order->from)) {
      ++order;
      continue;
    }
    TC_ASSIGN_OR_RETURN(Running started, Start(*order));
    running.push_back(std::move(started));
    order = waiting.erase(order);
  }
  return OkStatus();
}

Status Lab::FinishSome(std::vector<Running>& running) const {
  for (size_t i = 0; i < running.size();) {
    const std::optional<ProcessExit> exit = running[i].process.Poll();
    if (!exit) {
      ++i;
      continue;
    }
    const Running ended = std::move(running[i]);
    running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
    const std::string log = ended.order.folder + "/log.txt";
    if (exit->status != 0) {
      TC_ASSIGN_OR_RETURN(const bool diverged, FinishDiverged(ended));
      if (diverged) continue;
      return IoError(fmt::format("{} failed: {} (all of it: {})", ended.order.job.name, LastLine(log), log));
    }
    TC_RETURN_IF_ERROR(Finish(ended, exit->peak_bytes));
  }
  return OkStatus();
}

Status Lab::Train(std::span<const TrainJob> all) {
  std::vector<Order> orders;
  for (TrainJob& job : Missing(all)) {
    std::string folder = FolderOf(job), from = job.from == nullptr ? "" : FolderOf(*job.from);
    orders.push_back({std::move(job), std::move(folder), std::move(from)});
  }
  std::vector<Order> waiting = orders;
  std::vector<Running> running;
  auto next_report = std::chrono::steady_clock::now();
  while (!waiting.empty() || !running.empty()) {
    Status status = StartSome(waiting, running);
    if (status.ok()) status = FinishSome(running);
    if (status.ok() && options_.stop != nullptr && options_.stop->load()) {
      status = IoError("stopped; what was trained is kept, and the same command goes on from there");
    }
    if (!status.ok()) {
      StopAll(running);
      return status;
    }
    const bool last = waiting.empty() && running.empty();
    if (const auto now = std::chrono::steady_clock::now(); last || now >= next_report) {
      Report(orders, running);
      next_report = now + kReportEvery;
    }
    std::this_thread::sleep_for(kPollEvery);
  }
  return OkStatus();
}

}  // namespace tensorcache::experiments
