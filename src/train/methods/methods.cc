#include <algorithm>
#include <cmath>
#include <map>

#include "core/check.h"
#include "train/methods/train_method.h"

namespace tensorcache::train {

// The table of train halves, by the names of the methods. X(name, Name): a file here defines `const TrainMethod&
// NameTrainMethod()`. Without a limit to its window, full is a window like any other.
#define TENSORCACHE_TRAIN_METHODS(X) \
  X(full, Window)                    \
  X(window, Window)                  \
  X(streaming_llm, StreamingLlm)     \
  X(infini, Infini)                  \
  X(tensor_cache, TensorCache)

#define TENSORCACHE_DECLARE(name, Name) const TrainMethod& Name##TrainMethod();
TENSORCACHE_TRAIN_METHODS(TENSORCACHE_DECLARE)
#undef TENSORCACHE_DECLARE

// It is what every default of TrainMethod describes.
const TrainMethod& WindowTrainMethod() {
  static const TrainMethod method;
  return method;
}

namespace {

std::map<std::string_view, const TrainMethod*>& Table() {
#define TENSORCACHE_ENTRY(name, Name) {#name, &Name##TrainMethod()},
  static std::map<std::string_view, const TrainMethod*> table = {TENSORCACHE_TRAIN_METHODS(TENSORCACHE_ENTRY)};
#undef TENSORCACHE_ENTRY
  return table;
}

}  // namespace

const TrainMethod* FindTrainMethod(const methods::Method& method) {
  const auto found = Table().find(method.name());
  return found == Table().end() ? nullptr : found->second;
}

const TrainMethod& TrainMethodOf(const CacheConfig& cache) {
  const TrainMethod* method = FindTrainMethod(methods::MethodOf(cache));
  TC_CHECK(method != nullptr);
  return *method;
}

void AddTrainMethod(const methods::Method& method, const TrainMethod& train_half) {
  TC_CHECK(Table().emplace(method.name(), &train_half).second);
}

// ----- defaults: a plain window --------------------------------------------------------------------------------------

void TrainMethod::AddSinks(const LayerBlock& /*block*/, MethodState& /*state*/,
                           WindowAttentionInputs& /*window*/) const {}

Tensor TrainMethod::Remember(const LayerBlock& /*block*/, MethodState& /*state*/) const { return {}; }

Tensor TrainMethod::Output(const LayerBlock& block, const Tensor& local, const Tensor& /*reads*/) const {
  return OutProjection(block.parameters, local);
}

LayerMetrics TrainMethod::Metrics(const LayerBlock& /*block*/, const MethodState& /*state*/) const { return {}; }

// ----- what methods share --------------------------------------------------------------------------------------------

Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return at::linear(x, As(weight, x.scalar_type()), As(bias, x.scalar_type()));
}

Tensor OutProjection(const AttentionParameters& parameters, const Tensor& heads) {
  return Linear(heads.flatten(2), parameters.OutWeight(), parameters.out_bias);
}

std::vector<double> Values(const Tensor& tensor) {
  const Tensor flat = tensor.detach().to(at::kCPU, at::kDouble).flatten().contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

double RootMeanSquareNorm(const Tensor& memory) {
  const at::NoGradGuard no_grad;
  return std::sqrt(memory.square().sum().item<double>() / static_cast<double>(std::max<int64_t>(memory.size(0), 1)));
}

}  // namespace tensorcache::train
