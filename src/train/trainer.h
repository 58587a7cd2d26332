// One training run in memory: model, optimiser, data. A step is a pure function of what Save stores, so a run that is
// restored goes on with the same bits (on the same machine and number of threads).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/batch.h"
#include "train/adamw.h"
#include "train/checkpoint.h"
#include "train/distributed.h"
#include "train/model.h"
#include "train/train_config.h"

namespace tensorcache::train {

struct StepMetrics {
  int64_t step = 0;  // counted from 1: this many updates are done
  double loss = 0;   // mean over the supervised tokens of the global batch
  double learning_rate = 0;
  double gradient_norm = 0;
  int64_t tokens = 0;                // in the global batch
  std::vector<LayerMetrics> layers;  // if asked for
};

struct EvalMetrics {
  double loss = 0;
  double accuracy = 0;  // of the most likely token
  int64_t tokens = 0;   // supervised ones
};

class Trainer {
 public:
  // `config` is complete (vocab_size known) and valid. `world` outlives the trainer. One that will be restored reads
  // train.init for its teacher alone.
  enum class Start { kFresh, kRestored };
  static Result<std::unique_ptr<Trainer>> Create(const TrainConfig& config,
                                                 std::shared_ptr<const data::BatchSource> source, World* world,
                                                 Start start = Start::kFresh);

  // One optimiser step. kDiverged if the loss or a gradient is not finite; the parameters are then unchanged.
  Result<StepMetrics> Step(bool with_layers);
  // The streaming model on the first batches of the validation split. Changes nothing.
  Result<EvalMetrics> Evaluate() const;

  int64_t step() const { return optimizer_.updates(); }
  const Model& model() const { return model_; }
  int64_t block() const { return source_->length(); }  // tokens of a sequence

  // Everything a later run needs to go on, of all processes: each must call it. Any number of processes can restore it.
  Result<TrainState> Save();
  Status Restore(const TrainState& state);

 private:
  Trainer(const TrainConfig& config, Model model, std::optional<Model> teacher,
          std::shared_ptr<const data::BatchSource> source, World* world);

  struct Rows {
    int64_t first, count;
  };
  // The rows of the global batch that are this process's.
  Rows LocalRows() const;
  ForwardOptions TrainingOptions() const;
  // The sum over the rows' tokens, with what the teacher adds.
  Tensor SummedLoss(const Tensor& hidden, const Tensor& tokens, const Tensor& targets) const;
  Tensor RowsLoss(const data::Batch& batch, Rows rows, std::vector<LayerMetrics>* layers);
  Tensor CarriedLoss(const data::Batch& batch, Rows rows, std::vector<LayerMetrics>* layers);
  // The sum of the losses of this process's rows; their gradients, divided by `supervised`, are added up.
  double LossAndGradients(const data::Batch& batch, double supervised, std::vector<LayerMetrics>* layers);
  std::vector<StoredParameter> Parameters() const;
  Status SaveCarried(TrainState* state);
  Status RestoreCarried(const TrainState& state, const std::map<std::string_view, Tensor>& stored);
  Result<StepMetrics> TryStep(bool with_layers);

  TrainConfig config_;
  Model model_;
  std::optional<Model> teacher_;  // train.distill: the model at train.init with full attention
  std::shared_ptr<const data::BatchSource> source_;
  World* world_;
  AdamW optimizer_;
  std::vector<ModelState> carried_;  // one a local row; empty: nothing carried yet
};

}  // namespace tensorcache::train
