// The train half of a cache method: what src/methods/<name>/ computes, as differentiable tensor operations on whole batches. What
// a method keeps, learns and refuses stands there and is not said again; here is only what needs gradients. A method's file is
// src/train/methods/<name>.cc, and methods.cc has the table.
#pragma once

#include "methods/method.h"
#include "train/forward.h"
#include "train/ops/window_attention.h"
#include "train/parameters.h"
#include "train/state.h"

namespace tensorcache::train {

// Queries, keys and values of a block; `plain_*` before rotary embedding, for methods that need them (values have none: they
// are the same twice).
struct Heads {
  Tensor q;  // (B, T, H, D)
  Tensor k;  // (B, T, G, D)
  Tensor v;  // (B, T, G, D)
  Tensor plain_q{}, plain_k{}, plain_v{};
};

// A block of tokens as one layer sees it.
struct LayerBlock {
  const methods::LayerPlace& place;
  const AttentionParameters& parameters;
  const ForwardContext& context;
  Tensor x;  // (B, T, E): what the heads were projected from
  Heads heads;
  Tensor past_k{}, past_v{};  // (B, G, P, D): the window before the block, oldest first, keys rotated; undefined: none
};

// Stateless; what a layer keeps is in a MethodState. The first level, attention over the window, is the caller's; a method adds
// to it or has a second level of its own. The defaults are those of a plain window.
class TrainMethod {
 public:
  virtual ~TrainMethod() = default;

  // Whether the method wants heads before rotary embedding, too.
  virtual bool NeedsPlainHeads(const methods::LayerPlace& /*place*/) const { return false; }
  // Keeps those of the block's tokens that are sinks, and adds what its queries see besides the window.
  virtual void AddSinks(const LayerBlock& block, MethodState& state, WindowAttentionInputs& window) const;

  // The calls below are for layers that have a memory (methods::Method::HasMemory).
  // Writes the block, or what it evicts, into the state, and returns what its queries read: (B, T, H, D).
  virtual Tensor Remember(const LayerBlock& block, MethodState& state) const;
  // From what the window gave, `local`, and the memory, both (B, T, H, D), to the layer's output (B, T, E).
  virtual Tensor Output(const LayerBlock& block, const Tensor& local, const Tensor& reads) const;
  // `state` is that after the block.
  virtual LayerMetrics Metrics(const LayerBlock& block, const MethodState& state) const;
};

// The train half of that method; null if it has none.
const TrainMethod* FindTrainMethod(const methods::Method& method);
// Of a model that was created.
const TrainMethod& TrainMethodOf(const CacheConfig& cache);
// Adds that of a method which is not in the table, as methods::AddMethod does. Not to be called while other threads use the library.
void AddTrainMethod(const methods::Method& method, const TrainMethod& train_half);

// ----- what methods share --------------------------------------------------------------------------------------------

// x (..., in) times weight (out, in), in the dtype of x.
Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});
// W_o on heads (B, T, H, D): the whole output of a layer without a memory.
Tensor OutProjection(const AttentionParameters& parameters, const Tensor& heads);

// For metrics: the numbers of a tensor, and the root mean square over the batch of the norm of (B, ...).
std::vector<double> Values(const Tensor& tensor);
double RootMeanSquareNorm(const Tensor& memory);

}  // namespace tensorcache::train
