// One table or figure of the paper: which models it trains, and what it measures of them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/lab.h"
#include "experiments/result.h"
#include "tensorcache/status.h"

namespace tensorcache::experiments {

enum class Budget {
  kQuick,  // all experiments within twenty minutes on two cores: shorter training, one seed
  kFull,   // the paper's, or as much of it as two cores do in hours
};
constexpr auto EnumNames(Budget) {
  return std::to_array<std::pair<Budget, std::string_view>>({{Budget::kQuick, "quick"}, {Budget::kFull, "full"}});
}

struct ExperimentOptions {
  Budget budget = Budget::kFull;
  std::vector<uint64_t> seeds;       // of training; empty: the experiment's own
  std::vector<std::string> changes;  // of every training run, on top of the experiment's own: "train.steps=5"
  std::string data;                  // the folder with shakespeare, novels and tokenizers
  std::string work;                  // where an experiment keeps what it makes besides runs: a tokenizer
  int threads = 0;                   // of what is measured; 0: one per core

  bool quick() const { return budget == Budget::kQuick; }
};

struct MeasureContext {
  const ExperimentOptions& options;
  const Lab& lab;
  // `done` of 1 of the measuring, and what comes next; may be empty.
  std::function<void(double done, const std::string& what)> progress;

  void Tell(double done, const std::string& what) const {
    if (progress) progress(done, what);
  }
};

struct Experiment {
  std::string_view name;     // on the command line
  std::string_view summary;  // one line of help
  // The training runs it needs; may be null: none.
  Result<std::vector<TrainJob>> (*plan)(const ExperimentOptions& options);
  // Figures, tables and findings, once those are complete; the caller adds how it was made.
  Result<ExperimentResult> (*measure)(const MeasureContext& context);
  int minutes = 0;  // that measuring takes of the full budget on two cores; 0: a few at most
};

// All of them, in the paper's order.
std::span<const Experiment> Experiments();
// By name; an unknown one gives the nearest.
Result<const Experiment*> FindExperiment(const std::string& name);

// Changes a run's config: by what is usual, by what tells the runs of the experiment apart, and by what the user changes in
// every run, which may be usual but not `own`.
Status ApplyChanges(const std::vector<std::string>& usual, const std::vector<std::string>& own,
                    const std::vector<std::string>& users, TrainJob* job);

// {1337, 2027, 3037} as in the paper, or the first of them, unless the options name others.
std::vector<uint64_t> PaperSeeds(const ExperimentOptions& options);
// A single seed, unless the options name others.
std::vector<uint64_t> OneSeed(const ExperimentOptions& options);

}  // namespace tensorcache::experiments
