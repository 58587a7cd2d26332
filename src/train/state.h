// What a model remembers between two blocks of a sequence.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "train/torch.h"

namespace tensorcache::train {

// What a cache method keeps besides the window, by the names of methods::Method::Arrays. Undefined tensors: nothing yet.
using MethodState = std::map<std::string, Tensor>;

struct LayerState {
  Tensor k, v;  // (B, G, P, D): the last min(W, position) tokens, oldest first (method full: all); keys rotated
  MethodState of_method;

  // All parts that are there, by the names they are stored under: "k", "v", and those of the method. Shares storage.
  std::vector<std::pair<std::string, Tensor>> Parts() const;
  Tensor& Part(const std::string& name) { return name == "k" ? k : name == "v" ? v : of_method[name]; }
};

// Rotary embedding sees only differences of positions, so a sequence may start anywhere: token t of it is rotated as token
// origin + t. Rows of a batch that started at different times can then go on together, if their method is relative
// (methods::Method::IsRelative).
struct ModelState {
  std::vector<LayerState> layers;
  int64_t position = 0;  // tokens seen
  int64_t origin = 0;

  // Cuts the graph behind the state.
  void Detach();
  // Row `row` of the batch, as a batch of one; shares storage.
  ModelState Row(int64_t row) const;
  // The batch of all rows of `states`, which must be alike in everything but their numbers.
  static ModelState Stack(std::vector<ModelState> states);
  // Bytes of all tensors.
  int64_t Bytes() const;
};

}  // namespace tensorcache::train
