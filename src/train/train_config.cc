#include "train/train_config.h"

#include <fmt/format.h>

#include "core/config.h"
#include "core/ranges.h"
#include "core/text.h"
#include "methods/method.h"

namespace tensorcache::train {
namespace {

Status CheckAtLeast(std::string_view name, int64_t value, int64_t least) {
  if (value >= least) return OkStatus();
  return InvalidArgument(fmt::format("train.{} is {}; it must be at least {}", name, value, least));
}

Status ValidateCarry(const TrainConfig& config) {
  if (config.model.position_embedding == PositionKind::kLearned) {
    return InvalidArgument(
        "train.carry_state goes on beyond max_position_embeddings, where position_embedding learned ends");
  }
  const CacheConfig& cache = config.model.cache;
  return methods::MethodOf(cache).ValidateCarriedState(cache, config.Block());
}

bool HasMemory(const ModelConfig& model) {
  for (int64_t layer = 0; layer < model.num_hidden_layers; ++layer) {
    if (methods::MethodOf(model.cache).HasMemory(methods::PlaceOf(model, layer))) return true;
  }
  return false;
}

// Training that starts from a model that is there.
Status ValidateAdaptation(const TrainConfig& config) {
  const TrainOptions& train = config.train;
  if (train.parameters != TrainedParameters::kAll && train.init.empty()) {
    return InvalidArgument(
        fmt::format("train.parameters {} leaves the rest of the model as it is, which would be random; give train.init",
                    NameOf(train.parameters)));
  }
  if (train.parameters == TrainedParameters::kMemory && !HasMemory(config.model)) {
    return InvalidArgument("train.parameters memory trains nothing: the model has no memory in any layer");
  }
  if (train.parameters == TrainedParameters::kLora) {
    TC_RETURN_IF_ERROR(CheckAtLeast("lora_rank", train.lora_rank, 1));
    TC_RETURN_IF_ERROR(CheckRange("train.lora_alpha", train.lora_alpha, 1e-6, 1e6));
  }
  if (train.distill == 0) return OkStatus();
  TC_RETURN_IF_ERROR(CheckRange("train.distill", train.distill, 0, 1));
  TC_RETURN_IF_ERROR(CheckRange("train.distill_temperature", train.distill_temperature, 1e-3, 1e3));
  if (train.init.empty()) return InvalidArgument("train.distill needs a model to learn from; give train.init");
  if (train.carry_state) {
    return InvalidArgument(
        "train.distill compares with a teacher that sees one block; train.carry_state has more. Use one");
  }
  if (config.Block() <= config.model.max_position_embeddings) return OkStatus();
  return InvalidArgument(
      fmt::format("train.distill learns from full attention, which the model knows for {} tokens; train.block is {}",
                  config.model.max_position_embeddings, config.Block()));
}

// A run writes its config down as JSON, and has to read it again.
Status CheckUtf8(std::string_view name, const std::string& value) {
  if (IsValidUtf8(value)) return OkStatus();
  return InvalidArgument(fmt::format("{} is {}, which is not UTF-8; rename it", name, Quoted(value)));
}

Status CheckPaths(const TrainConfig& config) {
  TC_RETURN_IF_ERROR(CheckUtf8("train.init", config.train.init));
  TC_RETURN_IF_ERROR(CheckUtf8("data.text.path", config.data.text.path));
  TC_RETURN_IF_ERROR(CheckUtf8("data.text.valid_path", config.data.text.valid_path));
  return CheckUtf8("data.text.tokenizer", config.data.text.tokenizer);
}

}  // namespace

Status ValidateTrainConfig(const TrainConfig& config) {
  TC_RETURN_IF_ERROR(CheckPaths(config));
  ModelConfig model = config.model;
  if (model.vocab_size == 0) model.vocab_size = 1;
  TC_RETURN_IF_ERROR(ValidateModelConfig(model));
  const TrainOptions& train = config.train;
  TC_RETURN_IF_ERROR(CheckAtLeast("steps", train.steps, 1));
  TC_RETURN_IF_ERROR(CheckAtLeast("batch_size", train.batch_size, 1));
  TC_RETURN_IF_ERROR(CheckAtLeast("accumulate", train.accumulate, 1));
  TC_RETURN_IF_ERROR(CheckAtLeast("warmup_steps", train.warmup_steps, 0));
  TC_RETURN_IF_ERROR(CheckAtLeast("log_every", train.log_every, 1));
  TC_RETURN_IF_ERROR(CheckAtLeast("eval_every", train.eval_every, 0));
  TC_RETURN_IF_ERROR(CheckAtLeast("eval_batches", train.eval_batches, 1));
  TC_RETURN_IF_ERROR(CheckAtLeast("save_every", train.save_every, 0));
  TC_RETURN_IF_ERROR(CheckRange("train.learning_rate", train.learning_rate, 0, 100));
  TC_RETURN_IF_ERROR(CheckRange("train.min_learning_rate", train.min_learning_rate, 0, train.learning_rate));
  TC_RETURN_IF_ERROR(CheckRange("train.memory_learning_rate_multiple", train.memory_learning_rate_multiple, 0, 1e6));
  TC_RETURN_IF_ERROR(
      CheckRange("train.memory_output_learning_rate_multiple", train.memory_output_learning_rate_multiple, 0, 1e6));
  TC_RETURN_IF_ERROR(CheckRange("train.weight_decay", train.weight_decay, 0, 100));
  TC_RETURN_IF_ERROR(CheckRange("train.beta1", train.beta1, 0, 1 - 1e-9));
  TC_RETURN_IF_ERROR(CheckRange("train.beta2", train.beta2, 0, 1 - 1e-9));
  TC_RETURN_IF_ERROR(CheckRange("train.adam_epsilon", train.adam_epsilon, 1e-30, 1));
  TC_RETURN_IF_ERROR(CheckRange("train.clip_norm", train.clip_norm, 0, 1e30));
  TC_RETURN_IF_ERROR(CheckRange("train.dropout", train.dropout, 0, 0.99));
  TC_RETURN_IF_ERROR(CheckRange("train.write_cost", train.write_cost, 0, 1e6));
  TC_RETURN_IF_ERROR(CheckRange("train.initializer_range", train.initializer_range, 0, 10));
  TC_RETURN_IF_ERROR(CheckRange("train.target_loss", train.target_loss, 0, 1e30));
  if (train.batch_size % train.accumulate != 0) {
    return InvalidArgument(
        fmt::format("train.batch_size is {} and train.accumulate {}; the first must be a multiple of "
                    "the second",
                    train.batch_size, train.accumulate));
  }
  TC_RETURN_IF_ERROR(CheckAtLeast("block", train.block, 0));
  if (config.model.position_embedding == PositionKind::kLearned && config.Block() > model.max_position_embeddings) {
    return InvalidArgument(fmt::format("train.block is {}; the model has learned positions for {} tokens",
                                       config.Block(), model.max_position_embeddings));
  }
  TC_RETURN_IF_ERROR(data::ValidateTask(config.data));
  TC_RETURN_IF_ERROR(ValidateAdaptation(config));
  if (train.carry_state) TC_RETURN_IF_ERROR(ValidateCarry(config));
  return OkStatus();
}

}  // namespace tensorcache::train
