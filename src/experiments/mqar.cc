// Multi-query associative recall, the task by which the field compares states of bounded size: accuracy against state bytes, on
// more pairs and longer sequences than training had.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/config.h"
#include "experiments/experiments.h"
#include "experiments/methods.h"
#include "experiments/recall_runs.h"
#include "experiments/task_streaming.h"
#include "train/presets.h"

namespace tensorcache::experiments {
namespace {

// A test: so many tokens, so many pairs.
struct Task {
  int64_t length, pairs;

  std::string Label() const { return fmt::format("{} of {}", pairs, length); }
};
// Zoology's test tasks, and one that is far longer. The most of training is 64 pairs in 256 tokens.
constexpr Task kTasks[] = {{64, 4}, {64, 8}, {64, 16}, {128, 32}, {256, 64}, {512, 128}, {1024, 256}, {4096, 256}};
constexpr Task kQuickTasks[] = {{64, 4}, {64, 16}, {256, 64}, {1024, 256}};
constexpr Task kMostTrained = {256, 64}, kBeyond = {1024, 256};
constexpr double kAnswered = 0.99;

std::span<const Task> TasksOf(const ExperimentOptions& options) {
  if (options.quick()) return kQuickTasks;
  return kTasks;
}

size_t IndexOf(std::span<const Task> tasks, const Task& task) {
  const auto same = [&](const Task& other) { return other.length == task.length && other.pairs == task.pairs; };
  return static_cast<size_t>(std::ranges::find_if(tasks, same) - tasks.begin());
}

// A model: a method with a window. Full KV has none.
struct Candidate {
  Arm arm;
  int64_t window = 0;

  std::string Label() const { return window == 0 ? arm.Title() : fmt::format("{}, W = {}", arm.Title(), window); }
};

constexpr std::array<Arm, 5> kBoundedArms = {CacheMethod::kWindow, CacheMethod::kStreamingLlm, CacheMethod::kInfini,
                                             CacheMethod::kTensorCache, kAssociative};

std::vector<Candidate> CandidatesOf(const ExperimentOptions& options) {
  if (options.quick()) return {{CacheMethod::kFull}, {CacheMethod::kWindow, 16}, {kAssociative, 16}};
  std::vector<Candidate> candidates = {{CacheMethod::kFull}};
  for (const Arm& arm : kBoundedArms) {
    for (const int64_t window : {16, 64}) candidates.push_back({arm, window});
  }
  return candidates;
}

Result<TrainJob> MakeJob(const ExperimentOptions& options, const Candidate& candidate, uint64_t seed) {
  TrainJob job{.name = fmt::format("mqar-{}-{}", candidate.arm.Name(), seed)};
  std::vector<std::string> usual = {UntilSolved()}, own = candidate.arm.Changes();
  if (options.quick()) usual.insert(usual.end(), {"train.steps=150", "train.batch_size=16", "train.warmup_steps=20"});
  if (candidate.window > 0) {
    job.name = fmt::format("mqar-{}-w{}-{}", candidate.arm.Name(), candidate.window, seed);
    own.push_back(fmt::format("cache.window={}", candidate.window));
  }
  own.push_back(fmt::format("train.seed={}", seed));
  TC_RETURN_IF_ERROR(train::ReadPresetOrFile("mqar", &job.config));
  TC_RETURN_IF_ERROR(ApplyChanges(usual, own, options.changes, &job));
  return job;
}

// Sequences that a score is of.
int64_t RowsOf(const ExperimentOptions& options, const Task& task) {
  const int64_t answers = options.quick() ? 256 : 4096;
  return std::max<int64_t>(options.quick() ? 2 : 16, answers / task.pairs);
}

// Of a candidate, over seeds.
struct Scores {
  std::vector<Cell> accuracy;  // by task
  std::vector<double> bytes;   // by task: the state at its end
  std::vector<TrainedRun> runs;
};

Result<Scores> Measure(const MeasureContext& context, const Candidate& candidate, const std::vector<uint64_t>& seeds) {
  const std::span<const Task> tasks = TasksOf(context.options);
  Scores scores;
  std::vector<std::vector<double>> accuracy(tasks.size());
  for (const uint64_t seed : seeds) {
    TC_ASSIGN_OR_RETURN(const TrainJob job, MakeJob(context.options, candidate, seed));
    TC_ASSIGN_OR_RETURN(TrainedRun trained, context.lab.Find(job));
    TC_ASSIGN_OR_RETURN(const auto model, Model::Load(trained.folder, {.threads = context.options.threads}));
    scores.bytes.clear();
    for (size_t t = 0; t < tasks.size(); ++t) {
      data::MqarConfig test = job.config.data.mqar;
      test.length = tasks[t].length;
      test.pairs = tasks[t].pairs;
      test.min_pairs = 0;
      TC_ASSIGN_OR_RETURN(const auto source, data::MakeMqarSource(test, seed + 1));
      TC_ASSIGN_OR_RETURN(const TaskScore score,
                          StreamTask(model, *source, {.rows = RowsOf(context.options, tasks[t]), .prefill = true}));
      accuracy[t].push_back(score.accuracy);
      scores.bytes.push_back(static_cast<double>(score.state_bytes));
    }
    scores.runs.push_back(std::move(trained));
  }
  for (const auto& values : accuracy) scores.accuracy.push_back(Measured(values));
  return scores;
}

struct Measurement {
  Candidate candidate;
  Scores scores;

  double accuracy(size_t task) const { return *scores.accuracy[task].value; }
  double kib(size_t task) const { return scores.bytes[task] / kKibibyte; }
};

Table AccuracyTable(std::span<const Measurement> all, std::span<const Task> tasks, const std::string& note) {
  Table table{.id = "accuracy", .title = "Answer accuracy by pairs and tokens", .note = note, .row_title = "Method"};
  for (const Task& task : tasks) {
    const bool trained = task.length <= kMostTrained.length && task.pairs <= kMostTrained.pairs;
    table.columns.push_back({.title = task.Label(),
                             .group = trained ? "as in training, or easier" : "more than training had",
                             .better = Better::kHigher});
  }
  for (const Measurement& one : all) {
    table.rows.push_back({.label = one.candidate.Label(), .cells = one.scores.accuracy});
  }
  return table;
}

Table StateTable(std::span<const Measurement> all, std::span<const Task> tasks) {
  Table table{.id = "state",
              .title = "State of one sequence at its end",
              .note = "Keys, values and memories in float32, both layers.",
              .row_title = "Method"};
  std::vector<size_t> shown;
  for (size_t t = 0; t < tasks.size(); ++t) {
    if (t > 0 && tasks[t].length == tasks[t - 1].length) continue;
    shown.push_back(t);
    table.columns.push_back(
        {.title = fmt::format("{} tokens", tasks[t].length), .unit = "KiB", .digits = 0, .better = Better::kLower});
  }
  for (const Measurement& one : all) {
    Row row{.label = one.candidate.Label()};
    for (const size_t t : shown) row.cells.push_back(Measured(one.kib(t)));
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table TrainingTable(std::span<const Measurement> all) {
  Table table{.id = "training",
              .title = "Training",
              .note = "Loss and accuracy of the last validation on the training mixture; seconds of one thread.",
              .row_title = "Method",
              .columns = {{.title = "steps", .digits = 0},
                          {.title = "loss", .unit = "nats", .better = Better::kLower},
                          {.title = "accuracy", .better = Better::kHigher},
                          {.title = "time", .unit = "s", .digits = 0, .better = Better::kLower}}};
  for (const Measurement& one : all) {
    std::vector<double> steps, loss, accuracy, seconds;
    for (const TrainedRun& run : one.scores.runs) {
      steps.push_back(static_cast<double>(run.record.steps));
      loss.push_back(run.record.loss);
      accuracy.push_back(run.evaluations.empty() ? 0 : run.evaluations.back().accuracy);
      seconds.push_back(run.record.seconds);
    }
    table.rows.push_back({.label = one.candidate.Label(),
                          .cells = {Measured(steps), Measured(loss), Measured(accuracy), Measured(seconds)}});
  }
  return table;
}

// A curve per method, a point per window.
Figure StateFigure(std::span<const Measurement> all, std::span<const Task> tasks, const Task& task) {
  const size_t t = IndexOf(tasks, task);
  Figure figure{.id = fmt::format("accuracy_by_state_{}", task.length),
                .title = fmt::format("{} pairs in {} tokens: accuracy against state", task.pairs, task.length),
                .note = "The points of a curve are windows of 16 and 64 tokens. Full KV keeps every token.",
                .x = {.title = "state of one sequence", .unit = "KiB", .log = true},
                .y = {.title = "answer accuracy", .min = 0, .max = 1.05}};
  for (const Measurement& one : all) {
    const std::string name = one.candidate.arm.Title();
    if (figure.series.empty() || figure.series.back().name != name) {
      figure.series.push_back({.name = name, .method = std::string(NameOf(one.candidate.arm.method))});
    }
    const Cell& cell = one.scores.accuracy[t];
    figure.series.back().points.push_back({.x = one.kib(t), .y = *cell.value, .error = cell.std.value_or(0)});
  }
  return figure;
}

// Of the smallest window, a curve per method.
Figure PairsFigure(std::span<const Measurement> all, std::span<const Task> tasks) {
  Figure figure{.id = "accuracy_by_pairs",
                .title = "Accuracy against pairs",
                .note = "Four tokens for each pair from 16 pairs on, windows of 16 tokens.",
                .x = {.title = "pairs", .log = true},
                .y = {.title = "answer accuracy", .min = 0, .max = 1.05},
                .guides = {{.x = static_cast<double>(kMostTrained.pairs), .label = "the most of training"}}};
  for (const Measurement& one : all) {
    const std::string name = one.candidate.arm.Title();
    if (std::ranges::find(figure.series, name, &Series::name) != figure.series.end()) continue;
    Series series{.name = name, .method = std::string(NameOf(one.candidate.arm.method))};
    for (size_t t = 0; t < tasks.size(); ++t) {
      if (t > 0 && tasks[t].pairs == tasks[t - 1].pairs) continue;  // the same pairs over more tokens
      const Cell& cell = one.scores.accuracy[t];
      series.points.push_back(
          {.x = static_cast<double>(tasks[t].pairs), .y = *cell.value, .error = cell.std.value_or(0)});
    }
    figure.series.push_back(std::move(series));
  }
  return figure;
}

// "Full KV answers 87.1 % with 256 KiB"
std::string Share(const Measurement& one, size_t task) {
  return fmt::format("{} answers {:.1f} % with {:.0f} KiB", one.candidate.Label(), 100 * one.accuracy(task),
                     one.kib(task));
}

// The best of a method's models on a task.
const Measurement* BestOf(std::span<const Measurement> all, const Arm& arm, size_t task) {
  const Measurement* best = nullptr;
  for (const Measurement& one : all) {
    const bool same = one.candidate.arm.method == arm.method && one.candidate.arm.design == arm.design;
    if (same && (best == nullptr || one.accuracy(task) > best->accuracy(task))) best = &one;
  }
  return best;
}

std::string BestsOn(std::span<const Measurement> all, std::span<const Task> tasks, const Task& task) {
  const size_t t = IndexOf(tasks, task);
  std::string text = fmt::format("Of {} pairs in {} tokens ", task.pairs, task.length) + Share(all[0], t);
  for (const Arm& arm : kBoundedArms) {
    if (const Measurement* best = BestOf(all, arm, t)) text += "; " + Share(*best, t);
  }
  return text + fmt::format(". Guessing one of the values is right in {:.2f} % of the cases.", 100.0 / 4096);
}

// Up to where a model answers nearly everything.
std::string ReachText(std::span<const Measurement> all, std::span<const Task> tasks) {
  std::string text;
  for (const Measurement& one : all) {
    std::optional<size_t> last;
    for (size_t t = 0; t < tasks.size() && one.accuracy(t) >= kAnswered; ++t) last = t;
    text += fmt::format(
        "{}{} {}", text.empty() ? "" : "; ", one.candidate.Label(),
        last ? fmt::format("up to {} pairs in {} tokens", tasks[*last].pairs, tasks[*last].length) : "nowhere");
  }
  return fmt::format("{:.0f} % or more of the answers are right: {}.", 100 * kAnswered, text);
}

// The model with the least state that answers at least as much as the widest window.
std::string AgainstWindow(std::span<const Measurement> all, std::span<const Task> tasks) {
  const size_t t = IndexOf(tasks, kMostTrained);
  const Measurement* window = BestOf(all, CacheMethod::kWindow, t);
  const Measurement* ours = BestOf(all, kAssociative, t);
  return fmt::format(
      "Of {} pairs in {} tokens the associative memory answers {:.1f} % with {:.0f} KiB of state, the window "
      "{:.1f} % with {:.0f} KiB and Full KV {:.1f} % with {:.0f} KiB.",
      kMostTrained.pairs, kMostTrained.length, 100 * ours->accuracy(t), ours->kib(t), 100 * window->accuracy(t),
      window->kib(t), 100 * all[0].accuracy(t), all[0].kib(t));
}

Result<std::string> SetupText(const ExperimentOptions& options, const std::vector<uint64_t>& seeds) {
  TC_ASSIGN_OR_RETURN(const TrainJob job, MakeJob(options, CandidatesOf(options)[0], seeds[0]));
  const ModelConfig& model = job.config.model;
  const data::MqarConfig& task = job.config.data.mqar;
  std::string mixture;
  for (const int64_t pairs : task.PairChoices()) {
    mixture += fmt::format("{}{} of {}", mixture.empty() ? "" : ", ", pairs, task.TaskLength(pairs));
  }
  return fmt::format(
      "Zoology's task and mixture: {} tokens, half of them keys; pairs at the front, each asked for once, at distances "
      "of a "
      "power law ({}). Trained on (pairs of tokens) {}, in rows of {} tokens that hold one or several tasks; tested "
      "from "
      "an empty state on one task. {} layers, {} head{}, width {}, RoPE, AdamW at {} with a cosine, at most {}. {} "
      "Full KV "
      "beyond the trained length uses NTK-aware RoPE. {}",
      task.vocab, task.power_a, mixture, task.length, model.num_hidden_layers, model.num_attention_heads,
      model.num_attention_heads == 1 ? "" : "s", model.hidden_size, job.config.train.learning_rate, BudgetText(job),
      UntilSolvedNote(), SeedsNote(seeds));
}

}  // namespace

Plan PlanMqar(const ExperimentOptions& options) {
  std::vector<TrainJob> jobs;
  for (const Candidate& candidate : CandidatesOf(options)) {
    for (const uint64_t seed : OneSeed(options)) {
      TC_ASSIGN_OR_RETURN(TrainJob job, MakeJob(options, candidate, seed));
      jobs.push_back(std::move(job));
    }
  }
  return jobs;
}

Result<ExperimentResult> MeasureMqar(const MeasureContext& context) {
  const std::vector<uint64_t> seeds = OneSeed(context.options);
  const std::span<const Task> tasks = TasksOf(context.options);
  TC_ASSIGN_OR_RETURN(const std::string setup, SetupText(context.options, seeds));
  ExperimentResult result{.experiment = "mqar",
                          .title = "Multi-query associative recall",
                          .paper = "Not in the paper: Zoology (Arora et al. 2023), whose task and shapes these are",
                          .setup = setup};
  const std::vector<Candidate> candidates = CandidatesOf(context.options);
  std::vector<Measurement> all;
  for (const Candidate& candidate : candidates) {
    context.Tell(static_cast<double>(all.size()) / static_cast<double>(candidates.size()), candidate.Label());
    TC_ASSIGN_OR_RETURN(Scores scores, Measure(context, candidate, seeds));
    for (const TrainedRun& run : scores.runs) result.runs.push_back(run.record);
    all.push_back({.candidate = candidate, .scores = std::move(scores)});
  }
  result.findings = {BestsOn(all, tasks, kMostTrained), BestsOn(all, tasks, kBeyond), ReachText(all, tasks),
                     AgainstWindow(all, tasks)};
  result.tables = {AccuracyTable(all, tasks, "Pairs of tokens. " + SeedsNote(seeds)), StateTable(all, tasks),
                   TrainingTable(all)};
  result.figures = {StateFigure(all, tasks, kMostTrained), StateFigure(all, tasks, kBeyond), PairsFigure(all, tasks)};
  return result;
}

}  // namespace tensorcache::experiments
