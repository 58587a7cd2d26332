#include "experiments/experiments.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/config.h"
#include "core/text.h"

namespace tensorcache::experiments {
namespace {

constexpr Experiment kExperiments[] = {
    {"scaling", "State against context, 4K to 1M tokens", nullptr, MeasureScaling, 20},
    {"throughput", "Decoding speed against context", nullptr, MeasureThroughput, 10},
    {"capacity", "How many associations fit into one memory matrix", nullptr, MeasureCapacityTable},
    {"recall", "Matched-gap associative recall, five methods", PlanRecall, MeasureRecall},
    {"ood", "Recall at gaps that training did not show", PlanOod, MeasureOod},
    {"rules", "Write rules: outer, delta, wedge", PlanRules, MeasureRules},
    {"chunks", "Training chunk size: the paper's modes and the exact scan", PlanChunks, MeasureChunks},
    {"longgap", "Recall over gaps of 128 to 1024 tokens", PlanLongGap, MeasureLongGap, 10},
    {"fargap", "Recall over gaps of up to 65536 tokens, trained at 24 alone", PlanFarGap, MeasureFarGap, 15},
    {"multistore", "Two stored pairs, one asked for", PlanMultistore, MeasureMultistore},
    {"pairs", "Two pairs, and up to 32: accuracy against state", PlanPairs, MeasurePairs},
    {"mqar", "Many pairs, each asked for: accuracy against state", PlanMqar, MeasureMqar},
    {"needle", "A needle in a haystack, by depth and length", PlanNeedle, MeasureNeedle, 20},
    {"ablation", "The associative design without each of its parts", PlanAblation, MeasureAblation},
    {"efficiency", "Time and memory of training and inference", PlanEfficiency, MeasureEfficiency},
    {"slots", "Several memory slots a head", PlanSlots, MeasureSlots},
    {"timescales", "A fast and a slow memory", PlanTimescales, MeasureTimescales},
    {"gates", "How the memory joins the local output", PlanGates, MeasureGates},
    {"layers", "Which layers have a memory", PlanLayers, MeasureLayers},
    {"norms", "Normalisation and addressing of the memory", PlanNorms, MeasureNorms},
    {"shakespeare", "Long-context quality on Shakespeare, five methods", PlanShakespeare, MeasureShakespeare},
    {"novels", "Long-context quality on novels, and training with carried state", PlanNovels, MeasureNovels},
};

}  // namespace

std::span<const Experiment> Experiments() { return kExperiments; }

Result<const Experiment*> FindExperiment(const std::string& name) {
  std::vector<std::string_view> names = {"all"};
  for (const Experiment& experiment : kExperiments) {
    if (experiment.name == name) return &experiment;
    names.push_back(experiment.name);
  }
  return InvalidArgument(
      fmt::format("there is no experiment {}{}", Quoted(name), DidYouMeanOr(name, names, "there are")));
}

Status ApplyChanges(const std::vector<std::string>& usual, const std::vector<std::string>& own,
                    const std::vector<std::string>& users, TrainJob* job) {
  for (const std::string& change : users) {
    TC_ASSIGN_OR_RETURN(const std::string key, KeyOf(change, job->config));
    // A key may be a whole section, such as train={"seed": 3}.
    const auto sets = [&](const std::string& other) { return other == key || other.starts_with(key + "."); };
    if (sets("train.seed")) return InvalidArgument(fmt::format("--set {}: give seeds by --seeds", key));
    for (const std::string& mine : own) {
      TC_ASSIGN_OR_RETURN(const std::string own_key, KeyOf(mine, job->config));
      if (sets(own_key)) {
        return InvalidArgument(fmt::format("--set {}: the runs of this experiment differ in {}", key, own_key));
      }
    }
  }
  for (const auto* changes : {&usual, &own, &users}) {
    for (const std::string& change : *changes) {
      TC_RETURN_IF_ERROR(ApplyOverride(change, &job->config));
      job->changes += fmt::format("{}{}", job->changes.empty() ? "" : " ", change);
    }
  }
  return ValidateTrainConfig(job->config);
}

std::vector<uint64_t> PaperSeeds(const ExperimentOptions& options) {
  if (!options.seeds.empty()) return options.seeds;
  if (options.quick()) return {1337};
  return {1337, 2027, 3037};
}

std::vector<uint64_t> OneSeed(const ExperimentOptions& options) {
  return options.seeds.empty() ? std::vector<uint64_t>{1337} : options.seeds;
}

}  // namespace tensorcache::experiments
