#include "train/state.h"

#include "core/check.h"

namespace tensorcache::train {
namespace {

template <class Layer, class Visit>
void ForEachTensor(Layer& layer, const Visit& visit) {
  for (const auto part : LayerState::kParts) visit(layer.*part);
}

}  // namespace

void ModelState::Detach() {
  for (LayerState& layer : layers) {
    ForEachTensor(layer, [](Tensor& tensor) {
      if (tensor.defined()) tensor = tensor.detach();
    });
  }
}

ModelState ModelState::Row(int64_t row) const {
  ModelState selected = *this;
  for (LayerState& layer : selected.layers) {
    ForEachTensor(layer, [&](Tensor& tensor) {
      if (tensor.defined()) tensor = tensor.narrow(0, row, 1);
    });
  }
  return selected;
}

ModelState ModelState::Stack(const std::vector<ModelState>& states) {
  TC_CHECK(!states.empty());
  ModelState stacked = states.front();
  for (size_t i = 0; i < stacked.layers.size(); ++i) {
    for (const auto part : LayerState::kParts) {
      if (!(stacked.layers[i].*part).defined()) continue;
      std::vector<Tensor> rows;
      for (const ModelState& state : states) rows.push_back(state.layers[i].*part);
      stacked.layers[i].*part = at::cat(rows);
    }
  }
  return stacked;
}

int64_t ModelState::Bytes() const {
  int64_t bytes = 0;
  for (const LayerState& layer : layers) {
    ForEachTensor(layer, [&](const Tensor& tensor) {
      if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
    });
  }
  return bytes;
}

}  // namespace tensorcache::train
