#include "train/state.h"

#include "core/check.h"

namespace tensorcache::train {

std::vector<std::pair<std::string, Tensor>> LayerState::Parts() const {
  std::vector<std::pair<std::string, Tensor>> parts = {{"k", k}, {"v", v}};
  parts.insert(parts.end(), of_method.begin(), of_method.end());
  std::erase_if(parts, [](const auto& part) { return !part.second.defined(); });
  return parts;
}

void ModelState::Detach() {
  for (LayerState& layer : layers) {
    for (const auto& [name, tensor] : layer.Parts()) layer.Part(name) = tensor.detach();
  }
}

ModelState ModelState::Row(int64_t row) const {
  ModelState selected = *this;
  for (LayerState& layer : selected.layers) {
    for (const auto& [name, tensor] : layer.Parts()) layer.Part(name) = tensor.narrow(0, row, 1);
  }
  return selected;
}

ModelState ModelState::Stack(std::vector<ModelState> states) {
  TC_CHECK(!states.empty());
  ModelState stacked = states.front();
  for (size_t i = 0; i < stacked.layers.size(); ++i) {
    for (const auto& [name, tensor] : stacked.layers[i].Parts()) {
      std::vector<Tensor> rows;
      for (ModelState& state : states) rows.push_back(state.layers[i].Part(name));
      stacked.layers[i].Part(name) = at::cat(rows);
    }
  }
  return stacked;
}

int64_t ModelState::Bytes() const {
  int64_t bytes = 0;
  for (const LayerState& layer : layers) {
    for (const auto& [name, tensor] : layer.Parts()) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

}  // namespace tensorcache::train
