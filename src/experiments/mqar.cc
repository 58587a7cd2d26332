// Multi-query associative recall, the task by which the field compares states of bounded size: accuracy against state
// bytes, also of more pairs and longer sequences than training had.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/config.h"
#include "experiments/experiments.h"
#include "experiments/mqar_runs.h"
#include "experiments/recall_runs.h"

namespace tensorcache::experiments {
namespace {

constexpr double kAnswered = 0.99;

size_t IndexOf(std::span<const MqarTest> tests, const MqarTest& test) {
  return static_cast<size_t>(std::ranges::find(tests, test) - tests.begin());
}

Table AccuracyTable(std::span<const MqarScores> all, std::span<const MqarTest> tests, const std::string& note) {
  Table table{.id = "accuracy", .title = "Answer accuracy by pairs and tokens", .note = note, .row_title = "Method"};
  for (const MqarTest& test : tests) {
    const bool trained = test.length <= kMostTrained.length && test.pairs <= kMostTrained.pairs;
    table.columns.push_back({.title = test.Label(),
                             .group = trained ? "as in training, or easier" : "more than training had",
                             .better = Better::kHigher});
  }
  for (const MqarScores& one : all) {
    table.rows.push_back({.label = one.model.Label(), .cells = one.accuracy});
  }
  return table;
}

Table StateTable(std::span<const MqarScores> all, std::span<const MqarTest> tests) {
  Table table{.id = "state",
              .title = "State of one sequence at its end",
              .note = "Keys, values and memories in float32, both layers.",
              .row_title = "Method"};
  std::vector<size_t> shown;
  for (size_t t = 0; t < tests.size(); ++t) {
    if (t > 0 && tests[t].length == tests[t - 1].length) continue;
    shown.push_back(t);
    table.columns.push_back(
        {.title = fmt::format("{} tokens", tests[t].length), .unit = "KiB", .digits = 0, .better = Better::kLower});
  }
  for (const MqarScores& one : all) {
    Row row{.label = one.model.Label()};
    for (const size_t t : shown) row.cells.push_back(Measured(one.Kib(t)));
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table TrainingTable(std::span<const MqarScores> all) {
  Table table{.id = "training",
              .title = "Training, at the rate that was best",
              .note = "Loss and accuracy of the last validation on the training mixture; seconds of one thread.",
              .row_title = "Method",
              .columns = {{.title = "rate"},
                          {.title = "steps", .digits = 0},
                          {.title = "loss", .unit = "nats", .better = Better::kLower},
                          {.title = "accuracy", .better = Better::kHigher},
                          {.title = "time", .unit = "s", .digits = 0, .better = Better::kLower}}};
  for (const MqarScores& one : all) {
    std::vector<double> rate, steps, loss, accuracy, seconds;
    for (const MqarRun& run : one.runs) {
      rate.push_back(run.rate);
      steps.push_back(static_cast<double>(run.trained.record.steps));
      loss.push_back(run.trained.record.loss);
      accuracy.push_back(run.trained.evaluations.empty() ? 0 : run.trained.evaluations.back().accuracy);
      seconds.push_back(run.trained.record.seconds);
    }
    table.rows.push_back(
        {.label = one.model.Label(),
         .cells = {Measured(rate), Measured(steps), Measured(loss), Measured(accuracy), Measured(seconds)}});
  }
  return table;
}

// A curve per method, a point per window.
Figure StateFigure(std::span<const MqarScores> all, std::span<const MqarTest> tests, const MqarTest& test) {
  const size_t t = IndexOf(tests, test);
  Figure figure{.id = fmt::format("accuracy_by_state_{}", test.length),
                .title = fmt::format("{} pairs in {} tokens: accuracy against state", test.pairs, test.length),
                .note = "The points of a curve are windows of 16 and 64 tokens. Full KV keeps every token.",
                .x = {.title = "state of one sequence", .unit = "KiB", .log = true},
                .y = {.title = "answer accuracy", .min = 0, .max = 1.05}};
  for (const MqarScores& one : all) {
    const std::string name = one.model.arm.Title();
    if (figure.series.empty() || figure.series.back().name != name) {
      figure.series.push_back({.name = name, .method = std::string(NameOf(one.model.arm.method))});
    }
    const Cell& cell = one.accuracy[t];
    figure.series.back().points.push_back({.x = one.Kib(t), .y = *cell.value, .error = cell.std.value_or(0)});
  }
  return figure;
}

// Of the smallest window, a curve per method.
Figure PairsFigure(std::span<const MqarScores> all, std::span<const MqarTest> tests) {
  Figure figure{.id = "accuracy_by_pairs",
                .title = "Accuracy against pairs",
                .note = "Four tokens for each pair from 16 pairs on, windows of 16 tokens.",
                .x = {.title = "pairs", .log = true},
                .y = {.title = "answer accuracy", .min = 0, .max = 1.05},
                .guides = {{.x = static_cast<double>(kMostTrained.pairs), .label = "the most of training"}}};
  for (const MqarScores& one : all) {
    const std::string name = one.model.arm.Title();
    if (std::ranges::find(figure.series, name, &Series::name) != figure.series.end()) continue;
    Series series{.name = name, .method = std::string(NameOf(one.model.arm.method))};
    for (size_t t = 0; t < tests.size(); ++t) {
      if (t > 0 && tests[t].pairs == tests[t - 1].pairs) continue;  // the same pairs over more tokens
      const Cell& cell = one.accuracy[t];
      series.points.push_back(
          {.x = static_cast<double>(tests[t].pairs), .y = *cell.value, .error = cell.std.value_or(0)});
    }
    figure.series.push_back(std::move(series));
  }
  return figure;
}

// "Full KV answers 87.1 % with 256 KiB"
std::string Share(const MqarScores& one, size_t test) {
  return fmt::format("{} answers {:.1f} % with {:.0f} KiB", one.model.Label(), 100 * one.Accuracy(test), one.Kib(test));
}

// The best of a method's models on a test; null: there is none.
const MqarScores* BestOf(std::span<const MqarScores> all, const Arm& arm, size_t test) {
  const MqarScores* best = nullptr;
  for (const MqarScores& one : all) {
    if (one.IsOf(arm) && (best == nullptr || one.Accuracy(test) > best->Accuracy(test))) best = &one;
  }
  return best;
}

std::string BestsOn(std::span<const MqarScores> all, std::span<const MqarTest> tests, const MqarTest& test) {
  const size_t t = IndexOf(tests, test);
  std::string text = fmt::format("Of {} pairs in {} tokens ", test.pairs, test.length) + Share(all[0], t);
  for (const Arm& arm : kBoundedArms) {
    if (const MqarScores* best = BestOf(all, arm, t)) text += "; " + Share(*best, t);
  }
  const int64_t values = all[0].runs[0].job.config.data.mqar.vocab / 2;
  return text + fmt::format(". Guessing one of the values is right in {:.2f} % of the cases.", 100.0 / values);
}

// Up to where a model answers nearly everything.
std::string ReachText(std::span<const MqarScores> all, std::span<const MqarTest> tests) {
  std::string text;
  for (const MqarScores& one : all) {
    std::optional<size_t> last;
    for (size_t t = 0; t < tests.size() && one.Accuracy(t) >= kAnswered; ++t) last = t;
    text += fmt::format(
        "{}{} {}", text.empty() ? "" : "; ", one.model.Label(),
        last ? fmt::format("up to {} pairs in {} tokens", tests[*last].pairs, tests[*last].length) : "nowhere");
  }
  return fmt::format("{:.0f} % or more of the answers are right: {}.", 100 * kAnswered, text);
}

// The memory behind the narrowest window beside the widest window alone.
std::string AgainstWindow(std::span<const MqarScores> all, std::span<const MqarTest> tests) {
  const size_t t = IndexOf(tests, kMostTrained);
  const MqarScores *memory = nullptr, *window = nullptr;
  for (const MqarScores& one : all) {
    if (one.IsOf(kAssociative) && (memory == nullptr || one.Kib(t) < memory->Kib(t))) memory = &one;
    if (one.IsOf(CacheMethod::kWindow) && (window == nullptr || one.Kib(t) > window->Kib(t))) window = &one;
  }
  return fmt::format("Where the state is to be small: {}, {}.", Share(*memory, t), Share(*window, t));
}

// What the same pairs cost over more tokens.
std::string LongerText(std::span<const MqarScores> all, std::span<const MqarTest> tests) {
  const size_t near = IndexOf(tests, kBeyond), far = IndexOf(tests, kFarBeyond);
  std::string text;
  for (const MqarScores& one : all) {
    text += fmt::format("{}{} {:.1f} instead of {:.1f} %", text.empty() ? "" : "; ", one.model.Label(),
                        100 * one.Accuracy(far), 100 * one.Accuracy(near));
  }
  return fmt::format("With the same {} pairs in {} tokens instead of {}, the answers that are right: {}.",
                     kBeyond.pairs, kFarBeyond.length, kBeyond.length, text);
}

// "4 of 64, 8 of 128"
std::string TasksText(const data::MqarConfig& task) {
  std::string text;
  for (const int64_t pairs : task.PairChoices()) {
    text += fmt::format("{}{} of {}", text.empty() ? "" : ", ", pairs, task.TaskLength(pairs));
  }
  return text;
}

Result<std::string> SetupText(const ExperimentOptions& options, const std::vector<uint64_t>& seeds) {
  const std::vector<double> rates = MqarRates(options);
  TC_ASSIGN_OR_RETURN(const TrainJob job, MakeMqarJob(options, MqarModels(options)[0], rates[0], seeds[0]));
  const ModelConfig& model = job.config.model;
  const data::MqarConfig& task = job.config.data.mqar;
  return fmt::format(
      "Zoology's task: {} tokens, half of them keys and half values; pairs at the front, each asked for once behind "
      "them, at distances of a power law ({}). {} layers, {} head{}, width {}, RoPE, AdamW. All models start from one "
      "of "
      "Window KV that has learned (pairs of tokens) {} in at most {}, and then train on Zoology's mixture, {}, in rows "
      "of "
      "{} tokens that hold one task or several: at most {}, at a rate of {}{}. {} Tested from an empty state on one "
      "task. Full KV beyond the trained length uses NTK-aware RoPE. {}",
      task.vocab, task.power_a, model.num_hidden_layers, model.num_attention_heads,
      model.num_attention_heads == 1 ? "" : "s", model.hidden_size, TasksText(job.from->config.data.mqar),
      BudgetText(*job.from), TasksText(task), task.length, BudgetText(job), fmt::join(rates, " or "),
      rates.size() == 1 ? "" : ", whichever has the lower validation loss", UntilSolvedNote(), SeedsNote(seeds));
}

}  // namespace

Plan PlanMqar(const ExperimentOptions& options) {
  std::vector<TrainJob> jobs;
  for (const MqarModel& model : MqarModels(options)) {
    for (const double rate : MqarRates(options)) {
      for (const uint64_t seed : OneSeed(options)) {
        TC_ASSIGN_OR_RETURN(TrainJob job, MakeMqarJob(options, model, rate, seed));
        jobs.push_back(std::move(job));
      }
    }
  }
  return jobs;
}

Result<ExperimentResult> MeasureMqar(const MeasureContext& context) {
  const std::vector<uint64_t> seeds = OneSeed(context.options);
  const std::span<const MqarTest> tests = MqarTests(context.options);
  TC_ASSIGN_OR_RETURN(const std::string setup, SetupText(context.options, seeds));
  ExperimentResult result{.experiment = "mqar",
                          .title = "Multi-query associative recall",
                          .paper = "Not in the paper: Zoology (Arora et al. 2023), whose task and shapes these are",
                          .setup = setup};
  for (const uint64_t seed : seeds) {
    TC_ASSIGN_OR_RETURN(const TrainJob job, MakeMqarNearJob(context.options, seed));
    TC_ASSIGN_OR_RETURN(const TrainedRun run, context.lab.Find(job));
    result.runs.push_back(run.record);
  }
  const std::vector<MqarModel> models = MqarModels(context.options);
  std::vector<MqarScores> all;
  for (const MqarModel& model : models) {
    context.Tell(static_cast<double>(all.size()) / static_cast<double>(models.size()), model.Label());
    TC_ASSIGN_OR_RETURN(MqarScores scores, ScoreMqar(context, model, seeds, &result.runs));
    all.push_back(std::move(scores));
  }
  result.findings = {BestsOn(all, tests, kMostTrained), BestsOn(all, tests, kBeyond), ReachText(all, tests),
                     AgainstWindow(all, tests)};
  if (!context.options.quick()) result.findings.push_back(LongerText(all, tests));
  result.tables = {AccuracyTable(all, tests, "Pairs of tokens. " + SeedsNote(seeds)), StateTable(all, tests),
                   TrainingTable(all)};
  result.figures = {StateFigure(all, tests, kMostTrained), StateFigure(all, tests, kBeyond), PairsFigure(all, tests)};
  return result;
}

}  // namespace tensorcache::experiments
