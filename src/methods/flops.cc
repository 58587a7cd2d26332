#include "methods/flops.h"

#include "methods/method.h"

namespace tensorcache {
double ForwardFlops(const ModelConfig& config, const StepSize& size) {
  const auto E = static_cast<double>(config.hidden_size), F = static_cast<double>(config.intermediate_size);
  const auto H = static_cast<double>(config.num_attention_heads), G = static_cast<double>(config.num_key_value_heads);
  const auto D = static_cast<double>(config.HeadDim()), T = static_cast<double>(size.tokens);
  const double tokens = T * static_cast<double>(size.rows);
  const auto past = static_cast<double>(size.past);
  const methods::Method& method = methods::MethodOf(config.cache);
  const double pairs = method.VisiblePairs(config.cache, past + T) - method.VisiblePairs(config.cache, past);
  double forward = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const methods::LayerPlace place = methods::PlaceOf(config, layer);
    double weights = E * (H + 2 * G) * D + E * H * D + E * F * (config.gated_mlp ? 3 : 2);
    for (const methods::LearnedTensor& tensor : method.Tensors(place)) {
      if (tensor.role != methods::LearnedTensor::Role::kNumbers) weights += static_cast<double>(tensor.size());
    }
    forward += 2 * weights * tokens;
    forward += 4 * D * H * pairs * static_cast<double>(size.rows);
    forward += method.MemoryFlops(place) * tokens;
  }
  forward += 2 * E * static_cast<double>(config.vocab_size) * static_cast<double>(size.supervised);
  return forward;
}

double TrainingFlops(const ModelConfig& config, const StepSize& size) { return 3 * ForwardFlops(config, size); }

}  // namespace tensorcache
