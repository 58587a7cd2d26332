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
  std::vector<size_t> against;       // of a variant: the arms that it is compared with
};

struct TextStudy {
  std::string name;  // of its runs
  train::TrainConfig config;
  std::vector<TextArm> arms;            // Full KV and Window KV among them
  std::vector<std::string> changes;     // of every arm, last
  std::string data;                     // what tells its texts from others: DataChecksum
  int64_t vocabulary = 0;               // tokens of these texts
  size_t ours = 0;                      // the arm that the other methods are compared with
  size_t methods = 0;                   // so many arms, the first, are methods; what is left are variants
  std::vector<int64_t> contexts;        // ascending
  int64_t starts = 4;                   // positions of the held-out text a context
  int64_t least_context_for_claim = 0;  // from here on the findings compare
  // Published NLL, deviation: arm by context; may be empty. Of other texts, only the differences are shown beside ours.
  std::vector<std::vector<std::pair<double, double>>> published;
  bool published_same_text = true;
};

// The five methods, set up for text, and what that means in a sentence.
std::vector<TextArm> FiveTextArms();
std::string TextMemoryNote();

// The folder with the novels: --data names the one it is in, or the folder itself.
std::string NovelFolder(const ExperimentOptions& options);

// Of the names and contents of all files of these folders or files.
Result<std::string> DataChecksum(const std::vector<std::string>& paths);

// One run an arm.
Result<std::vector<TrainJob>> PlanTextStudy(const TextStudy& study, uint64_t seed);

// Adds figures and tables: NLL by context, what is added to the window, paired differences to the study's own arm and of the variants, NLL by distance,
// state, what was learned; and findings.
Status MeasureTextStudy(const MeasureContext& context, const TextStudy& study, uint64_t seed, ExperimentResult* result);

}  // namespace tensorcache::experiments
