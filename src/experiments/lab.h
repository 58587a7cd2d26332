// Training runs that experiments share. A run is known by its configuration: one that has been made is not made again,
// one that was interrupted goes on.
//
//   FOLDER/runs/<data>-<method>-<checksum of the config>/
//     request.json   the configuration
//     log.txt        what the training program said
//     done.json      written last: the run is complete
//     diverged.json  the same of one that diverged, and may
//     ...            the run's own files: train/run.h
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "experiments/result.h"
#include "tensorcache/status.h"
#include "train/train_config.h"

namespace tensorcache::experiments {

struct TrainJob {
  std::string name;     // "recall-gap24-window-1337": for people
  std::string changes;  // what the config changes in its preset, for people: "cache.method=window train.seed=2027"
  train::TrainConfig config;
  std::string data;                      // what tells its texts from others, wherever they are; empty: there are none
  int64_t vocabulary = 0;                // tokens of these texts, for an estimate of the work
  std::shared_ptr<const TrainJob> from;  // the run whose model it starts from; null: random parameters
  bool may_diverge = false;              // that it does is a result, not a failure
};

// What a layer's memory has learned, means over its heads.
struct LearnedLayer {
  int64_t layer = 0;
  double gate = 0;
  double lambda = 0;
  double eta = 0;

  template <class V>
  void Fields(V& v) {
    v("layer", layer, "counted from the input");
    v("gate", gate, "sigmoid(g)");
    v("lambda", lambda, "decay per write");
    v("eta", eta, "write rate");
  }
};

struct Evaluation {
  int64_t step = 0;
  double loss = 0;
  double accuracy = 0;

  template <class V>
  void Fields(V& v) {
    v("step", step, "");
    v("loss", loss, "");
    v("accuracy", accuracy, "");
  }
};

// A run that is complete.
struct TrainedRun {
  std::string folder;  // a checkpoint: Model::Load reads it
  RunRecord record;
  double seconds_per_step = 0;  // CPU time by threads, the median
  int64_t threads = 0;          // it was trained with
  int64_t peak_bytes = 0;       // resident memory of the training process; 0: it trained in an earlier one
  std::vector<Evaluation> evaluations;
  std::vector<LearnedLayer> layers;  // empty for methods without a gated memory
  std::string diverged;              // why training ended early, without a model; empty: it did not

  template <class V>
  void Fields(V& v) {
    v("record", record, "");
    v("seconds_per_step", seconds_per_step, "the median");
    v("threads", threads, "");
    v("peak_bytes", peak_bytes, "resident memory of the training process");
    v("evaluations", evaluations, "in training");
    v("layers", layers, "at the end");
    v("diverged", diverged, "why training ended early, without a model");
  }
};

struct LabProgress {
  int64_t runs = 0;  // complete, of those that were missing
  int64_t total_runs = 0;
  double work = 0;      // part of their work that is done, 0 to 1
  std::string running;  // "recall-gap24-full-1337 120/300 loss 0.512; ..."
};

struct LabOptions {
  std::string folder;
  std::string program;                               // that trains: tensorcache-train
  int jobs = 1;                                      // processes at a time
  int threads = 1;                                   // of each process
  std::string commit;                                // that the program was built from; may be empty
  const std::atomic<bool>* stop = nullptr;           // set it from a signal handler: running jobs save and end
  std::function<void(const LabProgress&)> progress;  // once a second; may be empty
};

class Lab {
 public:
  // Makes the folder. Another program that works in it is an error.
  static Result<std::unique_ptr<Lab>> Open(const LabOptions& options);
  ~Lab();

  // Makes those of the runs that are not there yet, and those they start from; equal ones once. If one fails, the others
  // are stopped (they go on the next time), and the error quotes the training program.
  Status Train(std::span<const TrainJob> jobs);
  // A run that Train has made, or that has diverged and may. kNotFound otherwise.
  Result<TrainedRun> Find(const TrainJob& job) const;
  // Those that are not complete yet, each once, behind those they start from.
  std::vector<TrainJob> Missing(std::span<const TrainJob> jobs) const;
  // The work of these runs that is not done: of an interrupted one, its last steps.
  double WorkLeft(std::span<const TrainJob> jobs) const;

  const LabOptions& options() const { return options_; }

 private:
  explicit Lab(const LabOptions& options, int lock) : options_(options), lock_(lock) {}
  std::string FolderOf(const TrainJob& job) const;
  void AddMissing(const TrainJob& job, std::set<std::string>* seen, std::vector<TrainJob>* missing) const;

  struct Order;
  struct Running;
  Result<Running> Start(const Order& order) const;
  Status Finish(const Running& running, int64_t peak_bytes) const;
  // Whether the training that has just failed diverged, as it may; if so, this is written down.
  Result<bool> FinishDiverged(const Running& running) const;
  void Report(std::span<const Order> orders, std::span<const Running> running) const;
  void StopAll(std::vector<Running>& running) const;
  // Starts as many of the waiting jobs as may run now.
  Status StartSome(std::vector<Order>& waiting, std::vector<Running>& running) const;
  // Takes those that have ended out of `running`.
  Status FinishSome(std::vector<Running>& running) const;

  LabOptions options_;
  int lock_;
};

// Arithmetic of a run, forward and backward: what its time is in proportion to.
double TrainingWork(const TrainJob& job);

}  // namespace tensorcache::experiments
