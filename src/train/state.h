// What a model remembers between two blocks of a sequence.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tensorcache/config.h"
#include "train/torch.h"

namespace tensorcache::train {

// Undefined tensors: nothing yet.
struct LayerState {
  Tensor k, v;  // (B, G, P, D): the last min(W, position) tokens, oldest first (method full: all); keys rotated
  Tensor sink_k, sink_v;  // (B, G, <= S, D): the first tokens, keys rotated at their index in the cache
  Tensor memory;          // (B, M, D, Dv) float32: A of each memory, M = G x timescales x slots
  Tensor normalizer;      // (B, G, D) float32: z of Infini-attention

  // All of them, for what treats them alike, and the names they are stored under.
  static constexpr std::array kParts = {&LayerState::k,      &LayerState::v,      &LayerState::sink_k,
                                        &LayerState::sink_v, &LayerState::memory, &LayerState::normalizer};
  static constexpr std::array kPartNames = {"k", "v", "sink_k", "sink_v", "memory", "normalizer"};
};

// Rotary embedding sees only differences of positions, so a sequence may start anywhere: token t of it is rotated as token
// origin + t. Rows of a batch that started at different times can then go on together. (Not with Infini-attention on
// rotated keys: its feature map sees the angles themselves.)
struct ModelState {
  std::vector<LayerState> layers;
  int64_t position = 0;  // tokens seen
  int64_t origin = 0;

  // Cuts the graph behind the state.
  void Detach();
  // Row `row` of the batch, as a batch of one; shares storage.
  ModelState Row(int64_t row) const;
  // The batch of all rows of `states`, which must be alike in everything but their numbers.
  static ModelState Stack(const std::vector<ModelState>& states);
  // Bytes of all tensors.
  int64_t Bytes() const;
};

}  // namespace tensorcache::train
