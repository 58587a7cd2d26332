// The models of the experiment on needles in haystacks: their training runs, and what they answer.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experiments/experiment.h"
#include "experiments/methods.h"
#include "experiments/needle_streaming.h"

namespace tensorcache::experiments {

// Full KV first, the associative design last.
inline constexpr std::array<Arm, 4> kNeedleArms = {CacheMethod::kFull, CacheMethod::kWindow, CacheMethod::kTensorCache,
                                                   kAssociative};

// Tokens of the texts that models are asked about, ascending; fewer of the methods that are there to compare with.
std::vector<int64_t> NeedleLengths(const ExperimentOptions& options, const Arm& arm);
// Of needles, ascending from 0 to 1.
std::vector<double> NeedleDepths(const ExperimentOptions& options);

// One model a method, which learns all tasks. kNotFound, with what to give, if the novels are not there.
Result<TrainJob> MakeNeedleJob(const ExperimentOptions& options, const Arm& arm, uint64_t seed);

// Answers, counted.
struct NeedleTally {
  int64_t questions = 0, whole = 0;  // answers, and those that are right as a whole
  int64_t tokens = 0, right = 0;     // of answers

  void Add(const NeedleAnswer& answer);
  void Add(const NeedleTally& other);
  double Whole() const { return static_cast<double>(whole) / static_cast<double>(questions); }
  double Tokens() const { return static_cast<double>(right) / static_cast<double>(tokens); }
};

// What the models of a method answer, one a seed.
struct NeedleScores {
  Arm arm;
  std::vector<TrainedRun> runs;
  std::vector<int64_t> lengths;
  std::vector<int64_t> state_bytes;                            // by length: at its end
  std::vector<std::vector<std::vector<NeedleTally>>> tallies;  // by task, length and depth

  // Of one task or all, at one depth or all.
  NeedleTally At(size_t length, std::optional<size_t> task = {}, std::optional<size_t> depth = {}) const;
  bool IsAssociative() const { return arm.design == MemoryDesign::kAssociative; }
};

Result<NeedleScores> ScoreNeedles(const MeasureContext& context, const Arm& arm, const std::vector<uint64_t>& seeds);

}  // namespace tensorcache::experiments
