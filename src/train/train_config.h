// What a training run is: the model's keys, and how it is trained. The content of configs/*.json.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "data/data.h"
#include "tensorcache/config.h"
#include "tensorcache/status.h"

namespace tensorcache::train {

enum class ComputeDtype { kFloat32, kBfloat16 };
constexpr auto EnumNames(ComputeDtype) {
  return std::to_array<std::pair<ComputeDtype, std::string_view>>(
      {{ComputeDtype::kFloat32, "float32"}, {ComputeDtype::kBfloat16, "bfloat16"}});
}

// Which parameters training changes; the others stay as `init` has them.
enum class TrainedParameters {
  kAll,
  kMemory,              // what the cache method learns: W_tc, gates, lambda, eta, alpha, slot keys
  kMemoryAndAttention,  // and the attention's projections
  kLora,                // the memory, and a low-rank addition to each of the attention's projections
};
constexpr auto EnumNames(TrainedParameters) {
  return std::to_array<std::pair<TrainedParameters, std::string_view>>(
      {{TrainedParameters::kAll, "all"},
       {TrainedParameters::kMemory, "memory"},
       {TrainedParameters::kMemoryAndAttention, "memory+attention"},
       {TrainedParameters::kLora, "lora"}});
}

struct TrainOptions {
  int64_t steps = 1000;
  int64_t batch_size = 32;
  int64_t block = 0;
  int64_t accumulate = 1;
  double learning_rate = 1e-3;
  double min_learning_rate = 0;
  int64_t warmup_steps = 0;
  double memory_learning_rate_multiple = 1;
  double memory_output_learning_rate_multiple = 1;
  double weight_decay = 0.01;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double clip_norm = 1;
  double dropout = 0;
  double write_cost = 0;
  bool carry_state = false;
  std::string init;
  double initializer_range = 0.02;
  TrainedParameters parameters = TrainedParameters::kAll;
  int64_t lora_rank = 8;
  double lora_alpha = 16;
  double distill = 0;
  double distill_temperature = 1;
  uint64_t seed = 1337;
  int64_t log_every = 10;
  int64_t eval_every = 100;
  int64_t eval_batches = 10;
  int64_t save_every = 100;
  double target_loss = 0;
  std::string device = "cpu";
  ComputeDtype dtype = ComputeDtype::kFloat32;

  template <class V>
  void Fields(V& v) {
    v("steps", steps, "optimiser steps");
    v("batch_size", batch_size, "sequences a step, over all processes");
    v("block", block, "tokens of a sequence of text; 0: max_position_embeddings");
    v("accumulate", accumulate, "parts in which a step's sequences go through the model, to save memory");
    v("learning_rate", learning_rate, "AdamW's, after the warm-up");
    v("min_learning_rate", min_learning_rate, "at the last step: cosine decay; equal to learning_rate: constant");
    v("warmup_steps", warmup_steps, "linear warm-up");
    v("memory_learning_rate_multiple", memory_learning_rate_multiple, "for gates, lambda, eta, alpha and slot keys");
    v("memory_output_learning_rate_multiple", memory_output_learning_rate_multiple, "for W_tc");
    v("weight_decay", weight_decay, "of matrices; norms, biases, gates, lambda and eta have none");
    v("beta1", beta1, "AdamW's");
    v("beta2", beta2, "AdamW's");
    v("adam_epsilon", adam_epsilon, "AdamW's");
    v("clip_norm", clip_norm, "largest norm of all gradients together; 0: no limit");
    v("dropout", dropout, "of embeddings and of what each sub-layer adds");
    v("write_cost", write_cost,
      "c: gradients also see c times the mean write strength, so that only what is worth it is written; the losses "
      "that "
      "are reported do not have it");
    v("carry_state", carry_state, "blocks of a document follow each other and start from the state of the one before");
    v("init", init,
      "a checkpoint folder of the same shape to start from; memories that it lacks start as configured. Empty: random "
      "parameters");
    v("initializer_range", initializer_range,
      "standard deviation of random matrices; larger ones may learn to bind sooner");
    v("parameters", parameters,
      "which ones are trained; lora: the memory, and low-rank additions to the attention's projections");
    v("lora_rank", lora_rank, "r, of parameters lora: W + alpha / r B A");
    v("lora_alpha", lora_alpha, "alpha, of parameters lora");
    v("distill", distill,
      "w: the loss is (1 - w) cross entropy + w divergence from what the model at init predicts with full attention");
    v("distill_temperature", distill_temperature, "of both predictions in that divergence");
    v("seed", seed, "of parameters, data order, dropout and routing");
    v("log_every", log_every, "steps between two lines of metrics.jsonl");
    v("eval_every", eval_every, "steps between two evaluations; 0: none but the last");
    v("eval_batches", eval_batches, "batches of an evaluation");
    v("save_every", save_every, "steps between two checkpoints; 0: none but the last");
    v("target_loss", target_loss, "end before the last step, once an evaluation's loss is this low; 0: never");
    v("device", device, "cpu, cuda or cuda:N");
    v("dtype", dtype, "of activations and matrix products; parameters and states are float32");
  }
};

// The model's keys are at the top, as in a checkpoint's config.json.
struct TrainConfig {
  ModelConfig model;
  data::DataConfig data;
  TrainOptions train;

  // Tokens of a sequence.
  int64_t Block() const { return train.block > 0 ? train.block : model.max_position_embeddings; }

  template <class V>
  void Fields(V& v) {
    model.Fields(v);
    v("data", data, "what it is trained on");
    v("train", train, "how");
  }
};

// Everything that can be checked before data are read; a vocab_size of 0 stands for that of the data.
Status ValidateTrainConfig(const TrainConfig& config);

}  // namespace tensorcache::train
