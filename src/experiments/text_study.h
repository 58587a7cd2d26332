// Language models that differ in their cache alone, compared on held-out text by context length.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experiments/experiment.h"
#include "tensorcache/config.h"

namespace tensorcache::experiments {

// One model of the comparison.
struct TextArm {
  std::string label;  // "Tensor Cache"
  CacheMethod method = CacheMethod::kTensorCache;
  std::vector<std::string> changes;  // of the study's config, besides the method
};

struct TextStudy {
  std::string name;  // of its runs
  train::TrainConfig config;
  std::vector<TextArm> arms;
  std::vector<std::string> changes;     // of every arm, last
  size_t ours = 0;                      // the arm that the others are compared with
  size_t rivals = 0;                    // so many arms, the first, are other methods; what is left are variants of ours
  std::vector<int64_t> contexts;        // ascending
  int64_t starts = 4;                   // positions of the held-out text a context
  int64_t least_context_for_claim = 0;  // from here on the findings compare
  // Published NLL, deviation: arm by context; may be empty.
  std::vector<std::vector<std::pair<double, double>>> published;
};

// The five methods, set up for text, and what that means in a sentence.
std::vector<TextArm> FiveTextArms();
std::string TextMemoryNote();

// One run an arm and seed.
Result<std::vector<TrainJob>> PlanTextStudy(const TextStudy& study, const std::vector<uint64_t>& seeds);

// Adds figure and tables: NLL by context, paired differences to the study's own arm, NLL by distance, state, what was
// learned; and findings.
Status MeasureTextStudy(const MeasureContext& context, const TextStudy& study, uint64_t seed, ExperimentResult* result);

}  // namespace tensorcache::experiments
