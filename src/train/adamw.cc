#include "train/adamw.h"

#include <cmath>
#include <numbers>

namespace tensorcache::train {

double LearningRate(const TrainOptions& options, int64_t step) {
  if (step < options.warmup_steps) {
    return options.learning_rate * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  }
  const auto decay_steps = static_cast<double>(std::max<int64_t>(options.steps - 1 - options.warmup_steps, 1));
  const double done = std::min(1.0, static_cast<double>(step - options.warmup_steps) / decay_steps);
  const double range = options.learning_rate - options.min_learning_rate;
  return options.min_learning_rate + range * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

AdamW::AdamW(std::vector<NamedParameter> parameters, const TrainOptions& options) : options_(options) {
  for (NamedParameter& parameter : parameters) {
    if (!parameter.tensor.requires_grad()) continue;
    const Tensor& tensor = parameter.tensor;
    slots_.push_back({parameter, at::zeros_like(tensor), at::zeros_like(tensor)});
    slots_.back().m.requires_grad_(false);
    slots_.back().v.requires_grad_(false);
  }
}

std::vector<Tensor> AdamW::Gradients() const {
  std::vector<Tensor> gradients;
  for (const Slot& slot : slots_) {
    Tensor& gradient = slot.parameter.tensor.mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(slot.parameter.tensor);
    gradients.push_back(gradient);
  }
  return gradients;
}

void AdamW::ClearGradients() {
  for (Slot& slot : slots_) slot.parameter.tensor.mutable_grad().reset();
}

double AdamW::LearningRateMultiple(ParameterKind kind) const {
  switch (kind) {
    case ParameterKind::kMemory: return options_.memory_learning_rate_multiple;
    case ParameterKind::kMemoryOutput: return options_.memory_output_learning_rate_multiple;
    default: return 1;
  }
}

double AdamW::Decay(ParameterKind kind) const {
  const bool is_matrix = kind == ParameterKind::kMatrix || kind == ParameterKind::kMemoryOutput;
  return is_matrix ? options_.weight_decay : 0;
}

double AdamW::Step(double learning_rate) {
  const at::NoGradGuard no_grad;
  double squares = 0;
  for (const Tensor& gradient : Gradients()) {
    const double norm = at::linalg_vector_norm(gradient).item<double>();
    squares += norm * norm;
  }
  const double norm = std::sqrt(squares);
  if (!std::isfinite(norm)) return norm;
  ++updates_;

  // The fused update divides gradients by `grad_scale` as it reads them: clipping costs no pass of its own.
  std::optional<Tensor> grad_scale;
  const at::Device device = slots_.front().parameter.tensor.device();
  if (options_.clip_norm > 0 && norm > options_.clip_norm) {
    grad_scale = at::full({}, norm / options_.clip_norm, at::TensorOptions(device).dtype(at::kFloat));
  }
  for (const ParameterKind kind :
       {ParameterKind::kMatrix, ParameterKind::kVector, ParameterKind::kMemoryOutput, ParameterKind::kMemory}) {
    std::vector<Tensor> tensors, gradients, m, v, steps;
    for (const Slot& slot : slots_) {
      if (slot.parameter.kind != kind) continue;
      tensors.push_back(slot.parameter.tensor);
      gradients.push_back(slot.parameter.tensor.grad());
      m.push_back(slot.m);
      v.push_back(slot.v);
      steps.push_back(at::full({}, static_cast<double>(updates_), at::TensorOptions(device).dtype(at::kFloat)));
    }
    if (tensors.empty()) continue;
    at::_fused_adamw_(tensors, gradients, m, v, {}, steps, learning_rate * LearningRateMultiple(kind), options_.beta1,
                      options_.beta2, Decay(kind), options_.adam_epsilon, /*amsgrad=*/false, /*maximize=*/false,
                      grad_scale);
  }
  ClearGradients();
  return norm;
}

std::vector<StoredParameter> AdamW::State() const {
  std::vector<StoredParameter> state;
  for (const Slot& slot : slots_) {
    state.push_back({slot.parameter.name, slot.parameter.tensor.detach()});
    state.push_back({slot.parameter.name + ".m", slot.m});
    state.push_back({slot.parameter.name + ".v", slot.v});
  }
  return state;
}

}  // namespace tensorcache::train
