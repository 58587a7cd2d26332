// A needle in a haystack: what a model finds of one sentence in a text, by the length of the text and the depth of the sentence.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/config.h"
#include "experiments/experiments.h"
#include "experiments/needle_runs.h"
#include "experiments/recall_runs.h"

namespace tensorcache::experiments {
namespace {

std::string DepthLabel(double depth) { return fmt::format("{:.0f} %", 100 * depth); }

Cell ShareCell(const NeedleTally& tally) {
  Cell cell = Measured(tally.Whole());
  cell.n = tally.questions;
  return cell;
}

// A row for each method and task, a column for each length; empty where nothing was asked.
Table LengthTable(std::span<const NeedleScores> all, const std::string& note) {
  Table table{.id = "length",
              .title = "Whole answers by task and length, all depths",
              .note = note,
              .row_title = "Method, task"};
  const std::vector<int64_t>& lengths = all.back().lengths;
  for (const int64_t length : lengths) {
    table.columns.push_back({.title = ContextLabel(length), .digits = 2, .better = Better::kHigher});
  }
  for (const NeedleScores& one : all) {
    for (size_t task = 0; task < data::kNeedleTasks.size(); ++task) {
      Row row{.label = fmt::format("{}, {}", one.arm.Title(), NameOf(data::kNeedleTasks[task]))};
      for (size_t l = 0; l < one.lengths.size(); ++l) row.cells.push_back(ShareCell(one.At(l, task)));
      row.cells.resize(lengths.size());
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

Table DepthTable(const NeedleScores& ours, std::span<const double> depths) {
  Table table{.id = "depth",
              .title = fmt::format("{}: whole answers by length and depth, all tasks", ours.arm.Title()),
              .note = "Depth 0 %: the needle stands before the haystack; 100 %: behind it, just before the question.",
              .row_title = "Length"};
  for (const double depth : depths) {
    table.columns.push_back({.title = DepthLabel(depth), .group = "depth", .digits = 2, .better = Better::kHigher});
  }
  table.columns.push_back({.title = "questions", .digits = 0});
  table.columns.push_back({.title = "right tokens", .better = Better::kHigher});
  for (size_t l = 0; l < ours.lengths.size(); ++l) {
    Row row{.label = ContextLabel(ours.lengths[l])};
    for (size_t d = 0; d < depths.size(); ++d) row.cells.push_back(ShareCell(ours.At(l, {}, d)));
    const NeedleTally sum = ours.At(l);
    row.cells.push_back(Measured(static_cast<double>(sum.questions)));
    row.cells.push_back(Measured(sum.Tokens()));
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table StateTable(std::span<const NeedleScores> all) {
  Table table{.id = "state",
              .title = "State of one sequence at its end",
              .note = "Keys, values and memories in float32, all layers.",
              .row_title = "Method"};
  const std::vector<int64_t>& lengths = all.back().lengths;
  for (const int64_t length : lengths) {
    table.columns.push_back({.title = ContextLabel(length), .unit = "KiB", .digits = 0, .better = Better::kLower});
  }
  for (const NeedleScores& one : all) {
    Row row{.label = one.arm.Title()};
    for (const int64_t bytes : one.state_bytes) row.cells.push_back(Measured(static_cast<double>(bytes) / kKibibyte));
    row.cells.resize(lengths.size());
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table TrainingTable(std::span<const NeedleScores> all) {
  Table table{
      .id = "training",
      .title = "Training",
      .note = "Loss and accuracy of tokens at the last validation, on texts as in training; seconds of one thread.",
      .row_title = "Method",
      .columns = {{.title = "steps", .digits = 0},
                  {.title = "loss", .unit = "nats", .better = Better::kLower},
                  {.title = "accuracy", .better = Better::kHigher},
                  {.title = "time", .unit = "s", .digits = 0, .better = Better::kLower}}};
  for (const NeedleScores& one : all) {
    std::vector<double> steps, loss, accuracy, seconds;
    for (const TrainedRun& run : one.runs) {
      steps.push_back(static_cast<double>(run.record.steps));
      loss.push_back(run.record.loss);
      accuracy.push_back(run.evaluations.empty() ? 0 : run.evaluations.back().accuracy);
      seconds.push_back(run.record.seconds);
    }
    table.rows.push_back(
        {.label = one.arm.Title(), .cells = {Measured(steps), Measured(loss), Measured(accuracy), Measured(seconds)}});
  }
  return table;
}

// A curve a method, over all tasks.
Figure MethodFigure(std::span<const NeedleScores> all, int64_t trained) {
  Figure figure{.id = "answers_by_length",
                .title = "Whole answers against length, all tasks and depths",
                .x = {.title = "length of the text", .unit = "tokens", .log = true},
                .y = {.title = "whole answers", .min = 0, .max = 1.05},
                .guides = {{.x = static_cast<double>(trained), .label = "longest text of training"}}};
  for (const NeedleScores& one : all) {
    Series series{.name = one.arm.Title(), .method = std::string(NameOf(one.arm.method))};
    for (size_t l = 0; l < one.lengths.size(); ++l) {
      series.points.push_back({.x = static_cast<double>(one.lengths[l]), .y = one.At(l).Whole()});
    }
    figure.series.push_back(std::move(series));
  }
  return figure;
}

Figure TaskFigure(const NeedleScores& ours, int64_t trained) {
  Figure figure{.id = "answers_by_task",
                .title = fmt::format("{}: whole answers against length", ours.arm.Title()),
                .x = {.title = "length of the text", .unit = "tokens", .log = true},
                .y = {.title = "whole answers", .min = 0, .max = 1.05},
                .guides = {{.x = static_cast<double>(trained), .label = "longest text of training"}}};
  for (size_t task = 0; task < data::kNeedleTasks.size(); ++task) {
    Series series{.name = std::string(NameOf(data::kNeedleTasks[task]))};
    for (size_t l = 0; l < ours.lengths.size(); ++l) {
      series.points.push_back({.x = static_cast<double>(ours.lengths[l]), .y = ours.At(l, task).Whole()});
    }
    figure.series.push_back(std::move(series));
  }
  return figure;
}

// "83 of 96"
std::string Count(const NeedleTally& tally) { return fmt::format("{} of {}", tally.whole, tally.questions); }

// What is asked of each method at the length that all have in common and is the longest such.
std::string AgainstOthers(std::span<const NeedleScores> all) {
  size_t last = all[0].lengths.size() - 1;
  for (const NeedleScores& one : all) last = std::min(last, one.lengths.size() - 1);
  std::string text;
  for (const NeedleScores& one : all) {
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ", one.arm.Title(), Count(one.At(last)));
  }
  return fmt::format("Whole answers in texts of {} tokens: {}.", ContextLabel(all[0].lengths[last]), text);
}

std::string LongestText(const NeedleScores& ours, int64_t trained) {
  const size_t last = ours.lengths.size() - 1;
  std::string text;
  for (size_t task = 0; task < data::kNeedleTasks.size(); ++task) {
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : ", ", NameOf(data::kNeedleTasks[task]), Count(ours.At(last, task)));
  }
  return fmt::format(
      "{} was trained on texts of up to {} tokens. After {} tokens, {:.0f} times as many, in one session, its answers "
      "are "
      "right as a whole in {} cases ({}), and {:.1f} % of their tokens are.",
      ours.arm.Title(), trained, ContextLabel(ours.lengths[last]),
      static_cast<double>(ours.lengths[last]) / static_cast<double>(trained), Count(ours.At(last)), text,
      100 * ours.At(last).Tokens());
}

// The depths at which most and fewest answers are right, over texts longer than those of training.
std::string DepthText(const NeedleScores& ours, std::span<const double> depths, int64_t trained) {
  std::vector<NeedleTally> by_depth(depths.size());
  for (size_t l = 0; l < ours.lengths.size(); ++l) {
    if (ours.lengths[l] <= trained) continue;
    for (size_t d = 0; d < depths.size(); ++d) by_depth[d].Add(ours.At(l, {}, d));
  }
  const auto [worst, best] = std::ranges::minmax_element(by_depth, {}, &NeedleTally::Whole);
  const auto name = [&](const auto& at) { return DepthLabel(depths[static_cast<size_t>(at - by_depth.begin())]); };
  return fmt::format(
      "In texts longer than those of training, most answers are right with the needle at {} of the text ({}), fewest "
      "at {} "
      "({}).",
      name(best), Count(*best), name(worst), Count(*worst));
}

std::string StateText(std::span<const NeedleScores> all) {
  const NeedleScores &full = all.front(), &ours = all.back();
  const double a_token = static_cast<double>(full.state_bytes.back()) / static_cast<double>(full.lengths.back());
  const auto [least, most] = std::ranges::minmax_element(ours.state_bytes);
  const std::string size = *least == *most
                               ? fmt::format("{:.0f} KiB at every length", static_cast<double>(*most) / kKibibyte)
                               : fmt::format("{:.0f} to {:.0f} KiB", static_cast<double>(*least) / kKibibyte,
                                             static_cast<double>(*most) / kKibibyte);
  return fmt::format("{} keeps {}; Full KV would keep {:.0f} MiB after {} tokens.", ours.arm.Title(), size,
                     a_token * static_cast<double>(ours.lengths.back()) / (kKibibyte * kKibibyte),
                     ContextLabel(ours.lengths.back()));
}

std::string SetupText(const TrainJob& job, const std::vector<uint64_t>& seeds) {
  const ModelConfig& model = job.config.model;
  const data::NeedleConfig& task = job.config.data.needle;
  return fmt::format(
      "Passkey retrieval, and the single needles of RULER (niah_single_1: a number in lines that repeat; 2: a number "
      "in essays; "
      "3: a UUID in essays), with their sentences. Essays are novels, other ones than in training. A token is a byte: "
      "a digit is a token then, "
      "a value is generated in as many steps as it has characters, and any text can be read without a vocabulary; a "
      "million of them are "
      "about 200,000 words. {} layers, {} heads, width {}, window {}. One model a method learns all tasks: {}, of {} "
      "tokens each, with texts of {} "
      "to {} tokens; the first {} steps have short passkeys alone, from which a model learns to bind. Asked from an "
      "empty session: a text is read as a stream, and the "
      "whole answer must be right. Full KV beyond the trained length uses NTK-aware RoPE. {}",
      model.num_hidden_layers, model.num_attention_heads, model.hidden_size, model.cache.window, BudgetText(job),
      task.length, task.min_length, task.length, task.passkey_steps, SeedsNote(seeds));
}

}  // namespace

Plan PlanNeedle(const ExperimentOptions& options) {
  std::vector<TrainJob> jobs;
  for (const Arm& arm : kNeedleArms) {
    for (const uint64_t seed : OneSeed(options)) {
      TC_ASSIGN_OR_RETURN(TrainJob job, MakeNeedleJob(options, arm, seed));
      jobs.push_back(std::move(job));
    }
  }
  return jobs;
}

Result<ExperimentResult> MeasureNeedle(const MeasureContext& context) {
  const std::vector<uint64_t> seeds = OneSeed(context.options);
  const std::vector<double> depths = NeedleDepths(context.options);
  TC_ASSIGN_OR_RETURN(const TrainJob job, MakeNeedleJob(context.options, kNeedleArms.back(), seeds[0]));
  ExperimentResult result{
      .experiment = "needle",
      .title = "A needle in a haystack, by depth and length",
      .paper =
          "Not in the paper: passkey retrieval (Mohtashami and Jaggi 2023) and RULER's single needles "
          "(Hsieh et al. 2024)",
      .setup = SetupText(job, seeds)};
  std::vector<NeedleScores> all;
  for (const Arm& arm : kNeedleArms) {
    TC_ASSIGN_OR_RETURN(NeedleScores scores, ScoreNeedles(context, arm, seeds));
    for (const TrainedRun& run : scores.runs) result.runs.push_back(run.record);
    all.push_back(std::move(scores));
  }
  const int64_t trained = job.config.data.needle.length;
  const NeedleScores& ours = all.back();
  result.findings = {LongestText(ours, trained), AgainstOthers(all), DepthText(ours, depths, trained), StateText(all)};
  result.tables = {DepthTable(ours, depths), LengthTable(all, SeedsNote(seeds)), StateTable(all), TrainingTable(all)};
  result.figures = {MethodFigure(all, trained), TaskFigure(ours, trained)};
  return result;
}

}  // namespace tensorcache::experiments
