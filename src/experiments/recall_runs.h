// What the experiments on associative recall have in common: their training runs, and the streaming scores of those.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "experiments/experiment.h"
#include "experiments/methods.h"
#include "experiments/recall_streaming.h"
#include "tensorcache/config.h"

namespace tensorcache::experiments {

// A validation loss at which a task counts as solved. What is solved need not be trained on.
constexpr double kSolvedLoss = 0.01;
std::string UntilSolved();  // of a budget
std::string UntilSolvedNote();

// The step of the first evaluation in training that answers 99 %, over runs; a text if one has none.
constexpr double kNearlyAllAnswered = 0.99;
Cell SolvedAt(const std::vector<TrainedRun>& runs);

// A training run of preset recall with some keys changed. Its name is `name` and the seed.
struct RecallRun {
  std::string name;
  std::vector<std::string> changes;       // what it is: "cache.method=window"
  std::vector<std::string> budget;        // how long it trains: "train.steps=400"
  std::shared_ptr<const RecallRun> from;  // the run whose model it starts from; null: random parameters
  bool may_diverge = false;               // that it does is a result, not a failure
};
Result<TrainJob> MakeRecallJob(const ExperimentOptions& options, const RecallRun& run, uint64_t seed);
// The main table's: six episodes, one pair each.
RecallRun GapRun(const Arm& arm, int64_t gap);
// Two stored pairs an episode; 8 values, as the published chance level says.
std::vector<std::string> MultistoreChanges(const Arm& arm);
RecallRun MultistoreRun(const Arm& arm);
// The long-gap table's task: one episode, one pair, 16 sequences a step.
RecallRun LongGapRun(const Arm& arm, int64_t gap);
// Appends one job a seed.
Status AddRecallJobs(const ExperimentOptions& options, const RecallRun& run, const std::vector<uint64_t>& seeds,
                     std::vector<TrainJob>* jobs);

// A run's scores, one number a seed.
struct RecallScores {
  std::vector<double> accuracy;
  std::vector<double> nll;
  std::vector<TrainedRun> runs;

  std::vector<double> Steps() const;                   // of training
  std::vector<double> Seconds() const;                 // of training
  std::vector<double> SecondsOf(int64_t steps) const;  // of as many steps, those of runs that ended early included
  void AddRecords(std::vector<RunRecord>* records) const;
};

// The run of each seed streams the task it was trained on, at that gap or another.
Result<RecallScores> ScoreRecallRun(const MeasureContext& context, const RecallRun& run,
                                    const std::vector<uint64_t>& seeds, std::optional<int64_t> gap = {});

// State of one sequence of that task. The memory is float32 with any window.
Result<double> StateBytesOf(const MeasureContext& context, const RecallRun& run, uint64_t seed, RingType window,
                            std::optional<int64_t> gap = {});

// The model and its training, in some sentences: those of the run, by default the recall table's.
Result<std::string> RecallSetup(const ExperimentOptions& options, const std::vector<uint64_t>& seeds,
                                const RecallRun& run = {});
// "300 steps of 32 sequences"
std::string BudgetText(const TrainJob& job);
// "± is the standard deviation over 3 seeds of training."
std::string SeedsNote(const std::vector<uint64_t>& seeds);

// Sequences of a streaming evaluation.
int64_t RecallRows(const ExperimentOptions& options, const data::RecallConfig& task);

// "0.994 / 1.000 / 0.999"
std::string PerSeed(const std::vector<double>& values, int digits);
}  // namespace tensorcache::experiments
