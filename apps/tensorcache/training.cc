#include "apps/tensorcache/training.h"

#include <unistd.h>

#include "apps/tensorcache/output.h"
#include "apps/tensorcache/stop_signal.h"
#include "apps/tensorcache/terminal.h"
#include "core/config.h"
#include "train/run.h"

namespace tensorcache::cli {
namespace {

using train::TrainConfig;

// Progress on stderr, results on stdout.
class Reporter {
 public:
  Reporter(const TrainConfig& config, const TrainingCommand& command)
      : total_(config.train.steps), method_(config.model.cache.method), command_(command) {}

  train::RunEvents Events() {
    return {.on_tokenize = [this](int64_t done, int64_t total) { Tokenizing(done, total); },
            .on_start = [this](const train::Trainer& trainer, int64_t tokens) { Starting(trainer, tokens); },
            .on_step = [this](const train::StepMetrics& metrics, double rate) { Stepped(metrics, rate); },
            .on_evaluation = [this](int64_t step, const train::EvalMetrics& metrics,
                                    bool best) { Evaluated(step, metrics, best); }};
  }

  void Finish(const train::RunResult& result) {
    progress_.reset();
    const std::string& folder = command_.out;
    if (result.stopped) {
      Say("stopped after step {} of {}; saved in {}. Go on with: tensorcache {} --resume --out {}\n", result.step,
          total_, folder, command_.command, folder);
    } else {
      Say("done: {} steps; the model is in {}, the best one in {}/best\n", result.step, folder, folder);
    }
  }

 private:
  // On standard output. If nobody takes it, training goes on: what it is for is in the folder.
  template <class... T>
  static void Say(fmt::format_string<T...> format, T&&... values) {
    WriteAll(STDOUT_FILENO, fmt::format(format, std::forward<T>(values)...));
  }

  void Tokenizing(int64_t done, int64_t total) {
    if (!tokenizing_) tokenizing_.emplace(static_cast<int>(total / 1024 + 1));
    tokenizing_->Show(static_cast<int>(done / 1024), "kB of text read");
  }

  void Starting(const train::Trainer& trainer, int64_t tokens) {
    tokenizing_.reset();
    first_ = trainer.step();
    const int64_t all = train::CountParameters(trainer.model().parameters());
    const int64_t trained = train::CountTrained(trainer.model().parameters());
    Say("{} parameters{}, method {}, {} tokens a step, {} steps{}\n", all,
        trained < all ? fmt::format(", {} of them trained", trained) : "", NameOf(method_), tokens, total_,
        first_ > 0 ? fmt::format(", going on after step {}", first_) : "");
    progress_.emplace(static_cast<int>(total_), static_cast<int>(first_));
  }

  void Stepped(const train::StepMetrics& metrics, double rate) {
    // Rates and losses of single steps jump; the average of the last ones is what one wants to see.
    rate_ = rate_ == 0 ? rate : 0.9 * rate_ + 0.1 * rate;
    loss_ = metrics.step == first_ + 1 ? metrics.loss : 0.9 * loss_ + 0.1 * metrics.loss;
    progress_->Show(static_cast<int>(metrics.step), fmt::format("loss {:.4f}, {:.0f} tokens/s", loss_, rate_));
  }

  void Evaluated(int64_t step, const train::EvalMetrics& metrics, bool best) {
    progress_->Clear();
    Say("step {:>6}  loss {:.4f}  validation loss {:.4f}  accuracy {:.4f}  {:.0f} tokens/s{}\n", step, loss_,
        metrics.loss, metrics.accuracy, rate_, best ? "  best" : "");
  }

  int64_t total_;
  CacheMethod method_;
  const TrainingCommand& command_;
  int64_t first_ = 0;
  double rate_ = 0;
  double loss_ = 0;
  std::optional<Progress> tokenizing_;
  std::optional<Progress> progress_;
};

}  // namespace

Status TrainInFolder(const TrainConfig& config, const TrainingCommand& command) {
  if (command.threads < 0 || command.threads > 1023) {
    return InvalidArgument(fmt::format("--threads is {}; give 0 (one per core) to 1023", command.threads));
  }
  TC_ASSIGN_OR_RETURN(train::WorldOptions world, train::WorldFromEnvironment());
  world.timeout_seconds = 120;  // the others wait while the first writes a checkpoint
  if (command.threads > 0) at::set_num_threads(command.threads);

  Reporter reporter(config, command);
  const train::RunOptions options{
      .folder = command.out, .resume = command.resume, .world = world, .stop = StopOnSignals()};
  Result<train::RunResult> result = train::RunTraining(config, options, reporter.Events());
  if (!result.ok()) {
    const Status& status = result.status();
    if (status.code() != StatusCode::kDiverged) return status;
    return Diverged(fmt::format("{}; what was saved in {} is unharmed. Try a lower train.learning_rate (now {})",
                                status.message(), command.out, config.train.learning_rate));
  }
  if (world.rank == 0) reporter.Finish(*result);
  return OkStatus();
}

}  // namespace tensorcache::cli
