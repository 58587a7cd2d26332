// tensorcache reproduce: the paper's tables and figures, made here.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "apps/tensorcache/build_info.h"
#include "apps/tensorcache/command.h"
#include "apps/tensorcache/options.h"
#include "apps/tensorcache/output.h"
#include "apps/tensorcache/program.h"
#include "apps/tensorcache/provenance.h"
#include "apps/tensorcache/result_text.h"
#include "apps/tensorcache/stop_signal.h"
#include "apps/tensorcache/terminal.h"
#include "bench/driver.h"
#include "core/config.h"
#include "core/text.h"
#include "experiments/experiment.h"

namespace tensorcache::cli {
namespace {

using experiments::Experiment;
using experiments::ExperimentOptions;
using experiments::ExperimentResult;
using experiments::Lab;
using experiments::LabProgress;
using experiments::TrainJob;
using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point since) { return std::chrono::duration<double>(Clock::now() - since).count(); }

struct ReproduceArguments {
  std::string name;
  bool quick = false;
  bool full = false;
  std::vector<uint64_t> seeds;
  std::vector<std::string> changes;
  std::string out;
  std::string data = "../shared/data";
  std::string json;
  int jobs = 0;
  bool again = false;
};

std::string Names() {
  std::string names = "all, or one of:\n";
  for (const Experiment& experiment : experiments::Experiments()) {
    names += fmt::format("  {:<12} {}\n", experiment.name, experiment.summary);
  }
  return names;
}

void AddOptions(Options& app, ReproduceArguments& arguments) {
  app.add_option("NAME", arguments.name, "Which experiment; see below")->type_name("");
  app.add_flag("--full", arguments.full, "The paper's budget, or as much of it as CPUs do in hours (the default)");
  app.add_flag("--quick", arguments.quick, "A small budget: `reproduce all --quick` takes twenty minutes on two cores");
  app.add_option("--seeds", arguments.seeds,
                 "Seeds of training, e.g. 1,2,3; default: the experiment's own. Those on text take the first alone")
      ->type_name("N,N,...");
  app.add_option("--set", arguments.changes,
                 "Change a key of every training run's config, e.g. train.steps=500; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option("--out", arguments.out,
                 "Folder for training runs and results; what is there is not made again. Default: reproduction, "
                 "or reproduction-quick")
      ->type_name("DIR");
  app.add_option("--data", arguments.data,
                 "Folder with shakespeare, novels and tokenizers, for the experiments on text")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--json", arguments.json, "Also write the result to FILE (one experiment only)")->type_name("FILE");
  app.add_option("--jobs", arguments.jobs, "Models trained at a time, one thread each; default: one per core")
      ->check(CLI::Range(1, 1023));
  app.add_flag("--again", arguments.again, "Measure again what was measured; training runs are kept");
  app.footer("NAME is " + Names() +
             "Ctrl-C stops; the same command goes on. `tensorcache report DIR` makes a page of what is in DIR.");
}

Status CheckSeeds(const std::vector<uint64_t>& seeds) {
  for (auto seed = seeds.begin(); seed != seeds.end(); ++seed) {
    if (std::find(seeds.begin(), seed, *seed) != seed) {
      return InvalidArgument(fmt::format("--seeds has {} twice; a second run of it would be the same", *seed));
    }
  }
  return OkStatus();
}

// FLOPs a second that training reaches with all jobs together, about: half of what sgemm does.
double TrainingRate(int jobs) {
  const int threads = std::max(1, std::min(jobs, static_cast<int>(std::thread::hardware_concurrency())));
  bench::RunSgemms(threads);
  const auto start = Clock::now();
  int repeats = 0;
  while (Seconds(start) < 0.2) {
    bench::RunSgemms(threads);
    ++repeats;
  }
  return 0.5 * repeats * threads * bench::SgemmFlops() / Seconds(start);
}

std::string DataOf(const std::vector<TrainJob>& jobs) { return jobs.empty() ? "" : jobs[0].data; }

struct Task {
  const Experiment* experiment;
  std::vector<TrainJob> jobs;
  std::optional<ExperimentResult> known;  // made before, as this one would be, of the same texts
};

class Reproduction {
 public:
  Reproduction(const ReproduceArguments& arguments, const ExperimentOptions& options)
      : arguments_(arguments), options_(options) {}

  Status Run(const std::vector<const Experiment*>& chosen);

 private:
  Result<Task> Prepare(const Experiment& experiment) const;
  void Announce(const std::vector<Task>& tasks) const;
  Status RunOne(Task& task);
  Status Train(const std::vector<TrainJob>& jobs);
  Result<ExperimentResult> Measure(const Task& task) const;
  // The command line that makes it, but for folders.
  std::string CommandOf(const Experiment& experiment) const;
  void Sign(const Task& task, double seconds, ExperimentResult* result) const;
  std::string ResultPath(const Experiment& experiment) const {
    return fmt::format("{}/{}.json", arguments_.out, experiment.name);
  }

  const ReproduceArguments& arguments_;
  const ExperimentOptions& options_;
  std::unique_ptr<Lab> lab_;
  std::function<void(const LabProgress&)> on_progress_;
  std::string json_;  // of the last experiment
};

Result<Task> Reproduction::Prepare(const Experiment& experiment) const {
  Task task{.experiment = &experiment};
  if (experiment.plan != nullptr) {
    TC_ASSIGN_OR_RETURN(task.jobs, experiment.plan(options_));
  }
  if (arguments_.again) return task;
  const std::string path = ResultPath(experiment);
  Result<ExperimentResult> there = experiments::ReadResult(path);
  if (!there.ok()) return task;
  // What was made in another way, perhaps in hours, is not overwritten by the way.
  const bool same_command = there->made.command == CommandOf(experiment);
  if (!same_command || there->made.data != DataOf(task.jobs)) {
    return InvalidArgument(fmt::format("{} was made {}; give another --out to keep it, or --again to replace it",
                                       Quoted(path),
                                       same_command ? "of other texts" : fmt::format("by `{}`", there->made.command)));
  }
  task.known = std::move(*there);
  return task;
}

std::string Reproduction::CommandOf(const Experiment& experiment) const {
  std::string command = fmt::format("tensorcache reproduce {} --{}", experiment.name, NameOf(options_.budget));
  if (!options_.seeds.empty()) command += fmt::format(" --seeds {}", fmt::join(options_.seeds, ","));
  for (const std::string& change : options_.changes) command += " --set " + change;
  return command;
}

void Reproduction::Announce(const std::vector<Task>& tasks) const {
  std::vector<TrainJob> jobs;
  for (const Task& task : tasks) {
    if (!task.known) jobs.insert(jobs.end(), task.jobs.begin(), task.jobs.end());
  }
  if (!options_.quick()) {
    for (const Task& task : tasks) {
      if (task.known || task.experiment->minutes == 0) continue;
      Print("{} is measured in about {} min; a measurement that is stopped begins again\n", task.experiment->name,
            task.experiment->minutes);
    }
  }
  const std::vector<TrainJob> missing = lab_->Missing(jobs);
  if (missing.empty()) return;
  Print("{} model{} to train, about {} ({} at a time){}\n\n", missing.size(), missing.size() == 1 ? "" : "s",
        Duration(lab_->WorkLeft(missing) / TrainingRate(arguments_.jobs)), arguments_.jobs,
        options_.quick() ? "; quick budget: figures are rough" : ". Ctrl-C stops; the same command goes on");
}

Status Reproduction::Train(const std::vector<TrainJob>& jobs) {
  Progress progress;
  on_progress_ = [&](const LabProgress& now) {
    progress.ShowPart(now.work, fmt::format("{}/{} models; {}", now.runs, now.total_runs, now.running));
  };
  const Status status = lab_->Train(jobs);
  on_progress_ = {};
  return status;
}

void Reproduction::Sign(const Task& task, double seconds, ExperimentResult* result) const {
  const std::vector<TrainJob>& jobs = task.jobs;
  for (size_t i = 0; i < options_.changes.size() && !jobs.empty(); ++i) {
    result->setup += (i == 0 ? " Changed in every run: " : ", ") + options_.changes[i];
  }
  if (options_.quick()) result->setup = "Quick budget, for a first look. " + result->setup;
  result->made = MadeHere(CommandOf(*task.experiment));
  result->made.budget = NameOf(options_.budget);
  result->made.data = DataOf(jobs);
  if (jobs.empty()) {
    result->made.seeds = options_.seeds;
  } else {
    result->made.changes = options_.changes;
  }
  for (const TrainJob& job : jobs) {
    std::vector<uint64_t>& seeds = result->made.seeds;
    if (std::ranges::find(seeds, job.config.train.seed) == seeds.end()) seeds.push_back(job.config.train.seed);
  }
  result->made.seconds = seconds;
  for (const experiments::RunRecord& run : result->runs) result->made.seconds += run.seconds;
}

Result<ExperimentResult> Reproduction::Measure(const Task& task) const {
  const auto start = Clock::now();
  Progress progress;
  const experiments::MeasureContext context{
      .options = options_, .lab = *lab_, .progress = [&](double done, const std::string& what) {
        progress.ShowPart(done, what);
      }};
  TC_ASSIGN_OR_RETURN(ExperimentResult result, task.experiment->measure(context));
  progress.Clear();
  Sign(task, Seconds(start), &result);
  TC_RETURN_IF_ERROR(experiments::ValidateResult(result));
  return result;
}

Status Reproduction::RunOne(Task& task) {
  const Experiment& experiment = *task.experiment;
  Status kept;
  if (task.known) {
    const std::string& commit = task.known->made.commit;
    Print("{} was made before, by {}; --again measures it again.\n\n", experiment.name,
          commit.empty() ? "this program" : "the program of commit " + commit);
  } else {
    StopOnSignals();
    TC_RETURN_IF_ERROR(Train(task.jobs));
    EndOnSignals();  // models are kept, and a measurement is made as a whole
    TC_ASSIGN_OR_RETURN(task.known, Measure(task));
    kept = WriteOutput(ResultPath(experiment), experiments::ResultToJson(*task.known));
  }
  Print("{}\n", ResultText(*task.known));
  if (options_.quick()) Print("  Quick budget: --full gives the paper's.\n\n");
  json_ = experiments::ResultToJson(*task.known);
  return kept;
}

Status Reproduction::Run(const std::vector<const Experiment*>& chosen) {
  const std::atomic<bool>* const stop = StopOnSignals();
  TC_ASSIGN_OR_RETURN(lab_, Lab::Open({.folder = arguments_.out,
                                       .program = TrainProgramPath(),
                                       .jobs = arguments_.jobs,
                                       .threads = 1,
                                       .commit = GetBuildInfo().commit,
                                       .stop = stop,
                                       .progress = [this](const LabProgress& now) {
                                         if (on_progress_) on_progress_(now);
                                       }}));
  // One that fails does not keep the others from being made.
  Status failure;
  int failures = 0;
  const auto failed = [&](const Experiment& experiment, const Status& status) {
    Print("{} failed: {}\n\n", experiment.name, status.message());
    failure = Status(status.code(), fmt::format("{} of {} experiments failed; the last, {}: {}", ++failures,
                                                chosen.size(), experiment.name, status.message()));
  };
  std::vector<Task> tasks;
  for (const Experiment* experiment : chosen) {
    Result<Task> task = Prepare(*experiment);
    if (task.ok()) {
      tasks.push_back(std::move(*task));
    } else {
      if (chosen.size() == 1) return task.status();
      failed(*experiment, task.status());
    }
  }
  Announce(tasks);
  for (Task& task : tasks) {
    if (*stop) return IoError("stopped; what was made is kept, and the same command goes on from there");
    const Status status = RunOne(task);
    if (status.ok()) continue;
    if (chosen.size() == 1 || *stop) return status;
    failed(*task.experiment, status);
  }
  Print("Results are in {}; `tensorcache report {} --out report.html` makes a page of them.\n", arguments_.out,
        arguments_.out);
  if (!failure.ok()) return failure;
  return WriteOutput(arguments_.json, json_);  // last: it may be standard output
}

}  // namespace

Status RunReproduce(const CommandLine& line) {
  ReproduceArguments arguments;
  Options app("Repeats the experiments of the Tensor Cache paper, each beside the published figures.");
  AddOptions(app, arguments);
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  if (arguments.name.empty()) return InvalidArgument("which experiment? `tensorcache reproduce --help` lists them");
  if (arguments.quick && arguments.full) return InvalidArgument("--quick and --full contradict each other");
  if (arguments.out.empty()) arguments.out = arguments.quick ? "reproduction-quick" : "reproduction";
  if (arguments.jobs == 0) arguments.jobs = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<const Experiment*> chosen;
  if (arguments.name == "all") {
    for (const Experiment& experiment : experiments::Experiments()) chosen.push_back(&experiment);
    if (!arguments.json.empty()) return InvalidArgument("--json is for one experiment; all of them write to --out");
  } else {
    TC_ASSIGN_OR_RETURN(const Experiment* experiment, experiments::FindExperiment(arguments.name));
    chosen.push_back(experiment);
    if (experiment->plan == nullptr && !arguments.changes.empty()) {
      return InvalidArgument(
          fmt::format("--set changes training runs, and {} trains nothing; leave it out", experiment->name));
    }
  }
  TC_RETURN_IF_ERROR(CheckOutputPath(arguments.json));
  TC_RETURN_IF_ERROR(CheckSeeds(arguments.seeds));
  const ExperimentOptions options{.budget = arguments.quick ? experiments::Budget::kQuick : experiments::Budget::kFull,
                                  .seeds = arguments.seeds,
                                  .changes = arguments.changes,
                                  // As one path, however it was given: a run that goes on must find the same config.
                                  .data = std::filesystem::weakly_canonical(arguments.data).string(),
                                  .work = arguments.out};
  return Reproduction(arguments, options).Run(chosen);
}

}  // namespace tensorcache::cli
