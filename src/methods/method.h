// A cache method: what a layer keeps of the past, and what it makes of it.
//
// All that tells one method from another stands in its folder, src/methods/<name>/, behind the interface below: the arrays it
// keeps, the tensors it learns, what it refuses, its decode step, its block, how its reads join the layer's output. The rest of
// the program (caches, models, training, import and export, info, FLOP counts) asks here and has no branches of its own.
// src/train/methods/<name>.cc is the same method with gradients. A method is added by its folder, that file, and a line in each
// of the two tables (method.cc, train/methods/methods.cc); CONTRIBUTING.md goes through it with an example.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/ranges.h"
#include "tensorcache/cache.h"
#include "tensorcache/config.h"
#include "tensorcache/status.h"

namespace tensorcache::methods {

class Layer;
class Fusion;

// One layer of a model, as far as its method has to know it.
struct LayerPlace {
  const CacheConfig& cache;
  int64_t layer = 0;
  int64_t layers = 1;
  int64_t query_heads = 1;  // H
  int64_t kv_heads = 1;     // G
  int64_t head_dim = 0;     // D
  int64_t hidden_size = 0;  // E; 0: not known, in a cache without a model
};
LayerPlace PlaceOf(const ModelConfig& config, int64_t layer);
LayerPlace PlaceOf(const TwoLevelCacheConfig& config, int64_t layer);

// ----- what a method keeps -------------------------------------------------------------------------------------------

// A float32 array that a layer keeps per key/value head, besides the window's keys and values.
struct StateArray {
  enum class Kind { kSinks, kMemory };
  std::string name;
  Kind kind = Kind::kMemory;
  std::vector<int64_t> shape;  // a head's part. Matrices for people to look at: (timescales, slots, rows, columns)

  int64_t size() const;  // numbers of one head
};

// ----- what a method learns ------------------------------------------------------------------------------------------

struct LearnedTensor {
  enum class Role {
    kOutput,   // a matrix (E, H D) that takes the reads to the residual stream
    kNumbers,  // few numbers: gates, decays, strengths, slot keys
    // Matrices that take a token's input, what q, k and v are projected from, to further numbers; one of each at most.
    kCacheInput,  // (G n, E): to those that the cache gets with the token, n for each key/value head (CacheBlock::gates)
    kFusionInput,  // (any, E): to those that the Fusion gets (FusionRows::input)
  };
  std::string name;  // "lambda_logit", as in model.layers.0.self_attn.tensor_cache.lambda_logit
  std::vector<int64_t> shape;
  Role role = Role::kNumbers;
  bool learned = true;  // false: stays as it starts

  // How it starts: random numbers if `values` is empty, else these again and again.
  std::vector<double> values = {};
  enum class Random {
    kUnit,      // normal, of deviation 1
    kResidual,  // as the model's other matrices that add to the residual stream
  };
  Random random = Random::kUnit;
  double random_scale = 1;

  int64_t size() const;
};

// A figure of what a layer has learned, for people: "half-life", for each head, and for each timescale.
struct LearnedFigure {
  std::string name;
  int digits = 3;                         // behind the point
  bool by_timescale = false;              // whether there is a row per timescale, or just one
  std::vector<std::vector<double>> rows;  // over heads
};

// ----- the method ----------------------------------------------------------------------------------------------------

class Method {
 public:
  virtual ~Method() = default;

  virtual std::string_view name() const = 0;     // in configs: "tensor_cache"
  virtual std::string_view title() const = 0;    // to people: "Tensor Cache"
  virtual std::string_view summary() const = 0;  // what it keeps, in a line

  // Refuses options that make no sense, with the reason. `layers` is the model's number of layers.
  virtual Status Validate(const CacheConfig& cache, int64_t layers) const;
  // Refuses a model whose positions are learned vectors, if the method has to turn keys by their distance.
  virtual Status ValidateLearnedPositions() const;
  // Refuses training on states that go on from block to block of `block` tokens.
  virtual Status ValidateCarriedState(const CacheConfig& cache, int64_t block) const;

  // The last tokens, and sinks, that are kept exactly.
  virtual int64_t TokensKept(const CacheConfig& cache) const { return cache.window; }
  // Whether the state grows with the text: there is no window.
  virtual bool KeepsEverything() const { return false; }
  // Whether only differences of positions matter, so that a sequence may be taken to start anywhere.
  virtual bool IsRelative(const CacheConfig& /*cache*/) const { return true; }
  // Whether the layer has a second level, which queries read.
  virtual bool HasMemory(const LayerPlace& /*place*/) const { return false; }
  // Whether the memory merely adds to what the window gives, so that a model without it is one with a window.
  virtual bool MemoryCanBeDropped() const { return false; }
  // Exact pairs of one query and one key in a sequence of `tokens` tokens.
  virtual double VisiblePairs(const CacheConfig& cache, double tokens) const;
  // n: numbers for each key/value head that the cache gets with a token, besides q, k and v.
  virtual int64_t TokenGates(const LayerPlace& /*place*/) const { return 0; }
  // Arithmetic of the memory's reads and writes, per token; products with learned matrices not counted.
  virtual double MemoryFlops(const LayerPlace& /*place*/) const { return 0; }

  // In the order of state files.
  virtual std::vector<StateArray> Arrays(const LayerPlace& /*place*/) const { return {}; }
  // In the order in which initial random numbers are drawn.
  virtual std::vector<LearnedTensor> Tensors(const LayerPlace& /*place*/) const { return {}; }
  // What to tell people about the numbers, and a sentence that explains it.
  virtual std::vector<LearnedFigure> Figures(const LayerPlace& place, const LearnedNumbers& numbers) const;
  virtual std::string FiguresNote(const CacheConfig& /*cache*/) const { return ""; }

  // Layer `layer` at work in the run half. Checks the sizes of `numbers`.
  virtual Result<std::unique_ptr<const Layer>> MakeLayer(const TwoLevelCacheConfig& config, int64_t layer,
                                                         const LearnedNumbers& numbers) const;
  // How a model joins local attention and reads.
  virtual Result<std::unique_ptr<const Fusion>> MakeFusion(const LayerPlace& place,
                                                           const LearnedNumbers& numbers) const;
};

// ----- the table -----------------------------------------------------------------------------------------------------

// The method of that number; null if there is none.
const Method* FindMethod(CacheMethod method);
// The method of a valid config.
const Method& MethodOf(const CacheConfig& cache);
// Adds a method that is not in the table, for a program of its own, and returns its number. Before configs are read: not to be
// called while other threads use the library.
CacheMethod AddMethod(const Method& method);

// "model.layers.0.self_attn.tensor_cache.lambda_logit"
std::string TensorName(const Method& method, int64_t layer, const LearnedTensor& tensor);
// Whether a tensor of this name is one that some method learns.
bool IsOfMethod(std::string_view tensor_name);
// The numbers of one tensor: those given, or the initial values. kInvalidArgument if their count is wrong, or if none are given
// and the tensor starts at random.
Result<std::vector<double>> NumbersOf(const LearnedTensor& tensor, const LearnedNumbers& numbers);
// The tensor of that name among those of the layer, which has it.
LearnedTensor TensorOf(const Method& method, const LayerPlace& place, std::string_view name);

// A size in a config, and what it is called there.
struct NamedSize {
  std::string_view name;
  int64_t size;
};
// Refuse layers and heads that no cache has, with the reason.
Status CheckHeads(const NamedSize& layers, const NamedSize& query_heads, const NamedSize& kv_heads);
Status CheckHeadDim(int64_t head_dim);

}  // namespace tensorcache::methods
