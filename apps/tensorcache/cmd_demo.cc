// tensorcache demo: four models learn to remember, one of them reads a million tokens, and a page shows it all.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "apps/tensorcache/command.h"
#include "apps/tensorcache/options.h"
#include "apps/tensorcache/output.h"
#include "apps/tensorcache/program.h"
#include "apps/tensorcache/provenance.h"
#include "apps/tensorcache/result_text.h"
#include "apps/tensorcache/stop_signal.h"
#include "apps/tensorcache/terminal.h"
#include "core/config.h"
#include "core/rng.h"
#include "experiments/learned_table.h"
#include "experiments/methods.h"
#include "experiments/recall_runs.h"
#include "experiments/report/page.h"
#include "runtime/state_size.h"
#include "tensorcache/session.h"

namespace tensorcache::cli {
namespace {

using experiments::Arm;
using experiments::ExperimentOptions;
using experiments::ExperimentResult;
using experiments::Lab;
using experiments::MethodTitle;
using experiments::RecallRun;
using Clock = std::chrono::steady_clock;

constexpr std::array<Arm, 4> kArms = {CacheMethod::kFull, CacheMethod::kWindow, CacheMethod::kTensorCache,
                                      experiments::kAssociative};
constexpr size_t kOurs = 3;  // the one that plays on
constexpr std::array<int64_t, 3> kGaps = {24, 36, 48};
constexpr int64_t kTrainedGap = 24;
constexpr int64_t kWindow = 12;
constexpr uint64_t kSeed = 1337;

double Seconds(Clock::time_point since) { return std::chrono::duration<double>(Clock::now() - since).count(); }

struct DemoArguments {
  std::string folder = "demo";
  int64_t steps = 140;
  int64_t tokens = 1'000'000;
};

RecallRun DemoRun(const Arm& arm, int64_t steps) {
  RecallRun run = experiments::GapRun(arm, kTrainedGap);
  run.budget = {fmt::format("train.steps={}", steps), "train.batch_size=16"};
  return run;
}

// 1,000,000
std::string Grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (auto i = std::ssize(text) - 3; i > 0; i -= 3) text.insert(static_cast<size_t>(i), ",");
  return text;
}

class Demo {
 public:
  explicit Demo(const DemoArguments& arguments) : arguments_(arguments) {}
  Status Run();

 private:
  Status Train();
  Status Compare();
  Status StreamMillion();
  Status Ask();
  Status Report();

  const DemoArguments& arguments_;
  const ExperimentOptions options_;
  const Clock::time_point start_ = Clock::now();
  std::unique_ptr<Lab> lab_;
  std::shared_ptr<const Model> models_[kArms.size()];
  ExperimentResult result_;
};

Status Demo::Train() {
  Print(
      "A transformer's key-value cache grows with every token. A window of the last {} tokens does not, but forgets. "
      "Tensor\n"
      "Cache keeps the window, and adds every pair that leaves it to one small matrix per head: A <- lambda A + eta "
      "k^T v.\n\n"
      "1. Four models of less than a million parameters learn a game: remember that a key was stored with a value, "
      "read\n"
      "   {} tokens of noise, and say the value when asked. The window is half as long as the noise. Two of them have "
      "a\n"
      "   Tensor Cache: as the paper has it, and addressed by content.\n\n",
      kWindow, kTrainedGap);
  Progress progress;
  experiments::LabOptions lab_options{
      .folder = arguments_.folder,
      .program = TrainProgramPath(),
      .jobs = std::max(1, std::min(3, static_cast<int>(std::thread::hardware_concurrency()))),
      .threads = 1,
      .stop = StopOnSignals(),
      .progress = [&](const experiments::LabProgress& now) { progress.ShowPart(now.work, now.running); }};
  TC_ASSIGN_OR_RETURN(lab_, Lab::Open(lab_options));
  std::vector<experiments::TrainJob> jobs;
  for (const Arm& arm : kArms) {
    TC_RETURN_IF_ERROR(experiments::AddRecallJobs(options_, DemoRun(arm, arguments_.steps), {kSeed}, &jobs));
    jobs.back().name = arm.Title();
  }
  TC_RETURN_IF_ERROR(lab_->Train(jobs));
  EndOnSignals();
  progress.Clear();
  for (size_t m = 0; m < kArms.size(); ++m) {
    TC_ASSIGN_OR_RETURN(const experiments::TrainedRun run, lab_->Find(jobs[m]));
    Print("   {:<28} {} steps, {} of one thread, loss {:.3f}\n", kArms[m].Title(), run.record.steps,
          Duration(run.record.seconds), run.record.loss);
    TC_ASSIGN_OR_RETURN(models_[m], Model::Load(run.folder));
    result_.runs.push_back(run.record);
    if (m == kOurs) {
      result_.tables.push_back(experiments::LearnedTable("learned", "What Tensor Cache learned", {run}));
    }
  }
  return OkStatus();
}

Status Demo::Compare() {
  experiments::Table table{
      .id = "accuracy", .title = "Right answers, streaming token by token", .row_title = "Noise between"};
  experiments::Figure figure{.id = "accuracy_by_gap",
                             .title = "Recall against gap",
                             .note = "Trained with 24 tokens of noise, asked with up to twice as many.",
                             .x = {.title = "noise between store and query", .unit = "tokens", .log = true},
                             .y = {.title = "right answers", .min = 0, .max = 1.05},
                             .guides = {{.x = 24.0, .label = "trained"}, {.y = 1.0 / 16, .label = "chance"}}};
  for (const Arm& arm : kArms) {
    table.columns.push_back({.title = arm.Title()});
    figure.series.push_back({.name = arm.Title(), .method = std::string(NameOf(arm.method))});
  }
  for (const Arm& arm : kArms) {
    table.columns.push_back({.title = arm.Title(), .group = "state", .unit = "KiB", .digits = 0});
  }
  for (const int64_t gap : kGaps) {
    experiments::Row row{.label = fmt::format("{} tokens", gap)};
    std::vector<experiments::Cell> states;
    for (size_t m = 0; m < kArms.size(); ++m) {
      TC_ASSIGN_OR_RETURN(const experiments::TaskScore score,
                          experiments::StreamRecall(models_[m], {.task = {.gap = gap}, .rows = 64, .seed = kSeed + 1}));
      row.cells.push_back(experiments::Measured(score.accuracy));
      states.push_back(experiments::Measured(static_cast<double>(score.state_bytes) / experiments::kKibibyte));
      figure.series[m].points.push_back({.x = static_cast<double>(gap), .y = score.accuracy});
    }
    row.cells.insert(row.cells.end(), states.begin(), states.end());
    if (gap == kTrainedGap) {
      std::string answers;
      for (size_t m = 0; m < kArms.size(); ++m) {
        answers += fmt::format("{}{} {:.1f} % from {:.0f} KiB", m > 0 ? ", " : "", kArms[m].Title(),
                               100 * *row.cells[m].value, *row.cells[kArms.size() + m].value);
      }
      result_.findings = {fmt::format("Right answers after {} tokens of noise: {}; chance is 6.3 %.", gap, answers)};
    }
    table.rows.push_back(std::move(row));
  }
  table.note = fmt::format(
      "Trained with {} tokens of noise alone; other lengths are new to the models (reproduce ood).", kTrainedGap);
  Print("\n2. {}\n", TableText(table));
  result_.figures.push_back(std::move(figure));
  result_.tables.insert(result_.tables.begin(), std::move(table));
  return OkStatus();
}

// The game without end: episodes of the trained gap, one after the other, through one session.
Status Demo::StreamMillion() {
  Print("3. Tensor Cache plays on without a break, {} tokens in one session:\n\n", Grouped(arguments_.tokens));
  Print("       tokens read      tokens/s        state   right answers   Full KV would keep\n");
  const std::shared_ptr<const Model>& model = models_[kOurs];
  data::RecallConfig task{.gap = kTrainedGap, .lead = 0};
  TC_ASSIGN_OR_RETURN(const auto source, data::MakeRecallSource(task, kSeed + 2));
  TC_ASSIGN_OR_RETURN(Session session, Session::Create(model));
  const auto vocabulary = static_cast<size_t>(model->config().vocab_size);
  experiments::Figure figure{.id = "state_by_tokens",
                             .title = "State while tokens go by",
                             .note = "Full KV by formula, Tensor Cache as counted.",
                             .x = {.title = "tokens read", .log = true},
                             .y = {.title = "state of one sequence", .unit = "KiB", .log = true},
                             .series = {{.name = MethodTitle(CacheMethod::kFull), .method = "full"},
                                        {.name = MethodTitle(CacheMethod::kTensorCache), .method = "tensor_cache"}}};
  TwoLevelCacheConfig full = runtime::CacheConfigOf(model->config(), model->options().ring);
  full.cache.method = CacheMethod::kFull;
  data::Batch batch;
  std::vector<float> logits;
  int64_t answers = 0, right = 0, next_line = 1000, last_position = 0;
  auto last_time = Clock::now();
  for (int64_t step = 0; session.position() < arguments_.tokens; ++step) {
    TC_RETURN_IF_ERROR(source->Fill(data::Split::kValid, step, 0, 1, &batch));
    const int64_t tokens = std::min(batch.length, arguments_.tokens - session.position());
    logits.resize(static_cast<size_t>(tokens) * vocabulary);
    TC_RETURN_IF_ERROR(session.PrefillLogits(std::span(batch.inputs).first(static_cast<size_t>(tokens)), logits));
    for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
      if (batch.targets[t] < 0) continue;
      const auto row = std::span(logits).subspan(t * vocabulary, vocabulary);
      right += std::max_element(row.begin(), row.end()) - row.begin() == batch.targets[t];
      ++answers;
    }
    if (session.position() < next_line && session.position() < arguments_.tokens) continue;
    const double state = static_cast<double>(session.state_bytes().total()) / experiments::kKibibyte;
    const auto read = static_cast<double>(session.position());
    const double full_state =
        static_cast<double>(runtime::StateBytesAfter(full, session.position()).total()) / experiments::kKibibyte;
    Print("   {:>15} {:>13.0f} {:>9.0f} KiB {:>12.2f} % {:>16.0f} KiB\n", Grouped(session.position()),
          static_cast<double>(session.position() - last_position) / Seconds(last_time), state,
          100.0 * static_cast<double>(right) / static_cast<double>(std::max<int64_t>(1, answers)), full_state);
    figure.series[0].points.push_back({.x = read, .y = full_state});
    figure.series[1].points.push_back({.x = read, .y = state});
    last_position = session.position();
    last_time = Clock::now();
    next_line = next_line < 100'000 ? next_line * 10 : next_line + 300'000;
    answers = right = 0;
  }
  result_.figures.push_back(std::move(figure));
  return OkStatus();
}

struct Guess {
  int32_t token;
  double probability;
};

Guess BestGuess(std::span<const float> logits) {
  const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  return {best, std::exp(-experiments::NegativeLogProbability(logits, best))};
}

struct Question {
  std::vector<int32_t> prompt;
  int32_t value;
};

// STORE key = value, noise, QUERY key. The first is of key 7 and value 3; the others are drawn.
std::vector<Question> Questions(const data::RecallConfig& task, int count, int64_t noise) {
  Rng rng(kSeed);
  const auto draw = [&](int64_t first, int64_t of) {
    return static_cast<int32_t>(first) + static_cast<int32_t>(rng.Below(static_cast<uint64_t>(of)));
  };
  std::vector<Question> questions;
  for (int q = 0; q < count; ++q) {
    const int32_t key = q == 0 ? static_cast<int32_t>(task.FirstKey() + 7) : draw(task.FirstKey(), task.keys);
    const int32_t value = q == 0 ? static_cast<int32_t>(task.FirstValue() + 3) : draw(task.FirstValue(), task.values);
    std::vector<int32_t> prompt = {data::kStoreToken, key, value, data::kGapToken};
    for (int64_t i = 0; i < noise; ++i) prompt.push_back(draw(task.FirstFiller(), task.fillers));
    prompt.insert(prompt.end(), {data::kQueryToken, key, data::kAnswerToken});
    questions.push_back({.prompt = std::move(prompt), .value = value});
  }
  return questions;
}

// The share of right answers, and what is said to the first question.
struct Answers {
  int right = 0;
  std::string first;
};

Result<Answers> AnswersOf(const std::shared_ptr<const Model>& model, const std::vector<Question>& questions,
                          const data::RecallConfig& task) {
  Answers answers;
  for (const Question& question : questions) {
    TC_ASSIGN_OR_RETURN(Session session, Session::Create(model));
    TC_RETURN_IF_ERROR(session.Prefill(question.prompt));
    if (session.logits().empty()) return IoError("not enough memory for the logits");
    const Guess guess = BestGuess(session.logits());
    answers.right += guess.token == question.value ? 1 : 0;
    if (!answers.first.empty()) continue;
    const int64_t number = guess.token - task.FirstValue();
    answers.first = fmt::format("{} with {:.1f} %",
                                number >= 0 && number < task.values ? fmt::format("value{}", number) : "not a value",
                                100 * guess.probability);
  }
  return answers;
}

Status Demo::Ask() {
  constexpr int kCount = 200;
  const data::RecallConfig task{};
  Print(
      "\n4. One question: STORE key7 = value3, then noise for 5, 20 and 100 windows. QUERY key7 ? And {} more like "
      "it.\n\n",
      kCount - 1);
  experiments::Table table{.id = "questions",
                           .title = fmt::format("Right answers to {} questions from an empty state", kCount),
                           .row_title = "Noise between"};
  for (const Arm& arm : kArms) table.columns.push_back({.title = arm.Title()});
  for (const int64_t windows : {5, 20, 100}) {
    const int64_t noise = windows * kWindow;
    const std::vector<Question> questions = Questions(task, kCount, noise);
    experiments::Row row{.label = fmt::format("{} tokens", noise)};
    Print("   {} windows, {} tokens of noise\n", windows, Grouped(noise));
    for (size_t m = 0; m < kArms.size(); ++m) {
      TC_ASSIGN_OR_RETURN(const Answers answers, AnswersOf(models_[m], questions, task));
      Print("     {:<28} {:<22} {:>3} of {} right\n", kArms[m].Title(), answers.first, answers.right, kCount);
      row.cells.push_back(experiments::Measured(static_cast<double>(answers.right) / kCount));
    }
    table.rows.push_back(std::move(row));
  }
  result_.tables.insert(result_.tables.begin() + 1, std::move(table));
  return OkStatus();
}

Status Demo::Report() {
  result_.experiment = "demo";
  result_.title = "The demo";
  result_.paper = "Section 4.3, in small";
  result_.setup = fmt::format(
      "4 layers, 4 heads, width 128, window 12; {} steps of 16 sequences. Three methods, Tensor Cache in two designs, "
      "one seed.",
      arguments_.steps);
  std::string command = "tensorcache demo";
  const DemoArguments usual;
  if (arguments_.steps != usual.steps) command += fmt::format(" --steps {}", arguments_.steps);
  if (arguments_.tokens != usual.tokens) command += fmt::format(" --tokens {}", arguments_.tokens);
  result_.made = MadeHere(command);
  result_.made.budget = "quick";
  result_.made.seeds = {kSeed};
  result_.made.seconds = Seconds(start_);
  TC_RETURN_IF_ERROR(experiments::ValidateResult(result_));
  TC_RETURN_IF_ERROR(WriteOutput(arguments_.folder + "/demo.json", experiments::ResultToJson(result_)));
  const std::string page = arguments_.folder + "/report.html";
  TC_RETURN_IF_ERROR(WriteOutput(page, experiments::report::PageHtml({result_}, "Four models that learn to remember")));
  Print(
      "\n5. {} shows this with figures. It took {}.\n\n"
      "Next: `tensorcache reproduce recall --quick`, the paper's table in small; `tensorcache train --help`.\n",
      page, Duration(Seconds(start_)));
  return OkStatus();
}

Status Demo::Run() {
  TC_RETURN_IF_ERROR(Train());
  TC_RETURN_IF_ERROR(Compare());
  TC_RETURN_IF_ERROR(StreamMillion());
  TC_RETURN_IF_ERROR(Ask());
  return Report();
}

}  // namespace

Status RunDemo(const CommandLine& line) {
  DemoArguments arguments;
  Options app(
      "Trains four small models to remember, streams a million tokens, draws a page. About four minutes on two "
      "cores.");
  app.add_option("--out", arguments.folder, "Folder for models and page; models that are there are not trained again")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--steps", arguments.steps, "Of training")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  app.add_option("--tokens", arguments.tokens, "To stream")->check(CLI::Range(1, 1'000'000'000))->capture_default_str();
  TC_ASSIGN_OR_RETURN(const bool go, ParseOptions(app, line));
  if (!go) return OkStatus();
  return Demo(arguments).Run();
}

}  // namespace tensorcache::cli
