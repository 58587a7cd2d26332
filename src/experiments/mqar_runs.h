// The models of the experiment on multi-query associative recall: their training runs, and how they score.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "experiments/experiment.h"
#include "experiments/methods.h"
#include "experiments/task_streaming.h"

namespace tensorcache::experiments {

// A test: so many tokens, so many pairs.
struct MqarTest {
  int64_t length, pairs;

  bool operator==(const MqarTest&) const = default;
  std::string Label() const;  // "64 of 256"
};
// The most of training; more than training had, and over more tokens.
inline constexpr MqarTest kMostTrained = {256, 64}, kBeyond = {1024, 256}, kFarBeyond = {4096, 256};
// Zoology's, and one that is far longer. From few pairs to many.
std::span<const MqarTest> MqarTests(const ExperimentOptions& options);

// A method with a window. Full KV has none.
struct MqarModel {
  Arm arm;
  int64_t window = 0;
  std::string variant = {};               // a part of the run's name; empty: the method as it is
  std::vector<std::string> changes = {};  // what that variant changes

  std::string Label() const;  // "Window KV, W = 16"
};
inline constexpr std::array<Arm, 5> kBoundedArms = {CacheMethod::kWindow, CacheMethod::kStreamingLlm,
                                                    CacheMethod::kInfini, CacheMethod::kTensorCache, kAssociative};
// Full KV first; a method's windows follow each other.
std::vector<MqarModel> MqarModels(const ExperimentOptions& options);

// Methods learn best at different rates: a model is trained at each of them, and the one with the least validation loss
// counts.
std::vector<double> MqarRates(const ExperimentOptions& options);
Result<TrainJob> MakeMqarJob(const ExperimentOptions& options, const MqarModel& model, double rate, uint64_t seed);
// The run that all others start from.
Result<TrainJob> MakeMqarNearJob(const ExperimentOptions& options, uint64_t seed);

// The run at the best rate.
struct MqarRun {
  TrainJob job;
  TrainedRun trained;
  double rate = 0;
};

// How a model scores, over seeds.
struct MqarScores {
  MqarModel model;
  std::vector<Cell> accuracy;  // by test
  std::vector<double> bytes;   // by test: the state at its end
  std::vector<MqarRun> runs;   // by seed

  double Accuracy(size_t test) const { return *accuracy[test].value; }
  double Kib(size_t test) const { return bytes[test] / kKibibyte; }
  bool IsOf(const Arm& arm) const { return model.arm.method == arm.method && model.arm.design == arm.design; }
};

// A run on a test.
Result<TaskScore> ScoreMqarTest(const MeasureContext& context, const TrainJob& job, const TrainedRun& trained,
                                const MqarTest& test);
// Appends the records of the runs at all rates.
Result<MqarScores> ScoreMqar(const MeasureContext& context, const MqarModel& model, const std::vector<uint64_t>& seeds,
                             std::vector<RunRecord>* records);

}  // namespace tensorcache::experiments
