// The forward pass of the run half: rows of tokens, of one sequence or of many, through all layers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "core/thread_pool.h"
#include "runtime/weights.h"
#include "tensorcache/cache.h"
#include "tensorcache/config.h"

namespace tensorcache::runtime {

// The next tokens of one sequence.
struct SequenceTokens {
  TwoLevelCache* cache = nullptr;
  std::span<const int32_t> tokens;
};

// Activations and scratch of one pass at a time; grows to what is asked for.
class Workspace {
 public:
  explicit Workspace(ThreadPool& pool);

  // [n, width] floats that stay until the same array is asked for again.
  enum Array {
    kResidual,
    kNormed,
    kQueries,
    kKeys,
    kValues,
    kCacheInput,
    kFusionInput,
    kAttended,
    kInner,
    kGate,
    kLogits,
    kArrays
  };
  float* Get(Array array, int64_t n, int64_t width);
  float* LinearScratch(int worker, int64_t floats);
  CacheWorkspace& cache() { return cache_; }

 private:
  CacheWorkspace cache_;
  Buffer arrays_[kArrays];
  std::vector<Buffer> scratch_;  // one a worker
};

class ForwardPass {
 public:
  ForwardPass(const ModelConfig& config, const Weights& weights, ThreadPool& pool, Workspace& workspace)
      : config_(config), weights_(weights), pool_(pool), workspace_(workspace) {}

  // All rows through all layers: [n, E] before the last norm, in the order of the sequences. The caches move on. Learned
  // positions must reach that far.
  Status Run(std::span<const SequenceTokens> sequences);
  int64_t rows() const { return n_; }
  // Rows [first, first + count) after the last norm: [count, E].
  void Hidden(int64_t first, int64_t count, float* hidden);
  // The logits of such rows: [count, V], `stride` floats apart. Needs no Run before.
  void Head(const float* hidden, int64_t count, float* logits, int64_t stride);
  // Both in one.
  void Logits(int64_t first, int64_t count, float* logits, int64_t stride);

 private:
  void Embed(std::span<const SequenceTokens> sequences);
  void Norm(const NormWeights& norm, const float* x, int64_t first, int64_t count, float* y);
  Status Attention(size_t layer, std::span<const SequenceTokens> sequences);
  struct Heads {
    float *q, *k, *v;  // [n, H D], [n, G D], [n, G D]
  };
  void ProjectHeads(const LayerWeights& layer, const float* normed, const Heads& heads);
  // What the method wants of the input, [n, linear.matrix.out()]; null if it wants nothing.
  const float* ProjectInput(const LinearWeights& linear, const float* normed, Workspace::Array array);
  void FeedForward(const LayerWeights& layer);
  // y = W x + b for n_ rows; with `add`, y += W x + b.
  void Product(const LinearWeights& linear, const float* x, int64_t x_stride, float* y, bool add);
  void MultiplyRows(const Matrix& matrix, LinearArgs args, int worker);

  const ModelConfig& config_;
  const Weights& weights_;
  ThreadPool& pool_;
  Workspace& workspace_;
  int64_t n_ = 0;
};

}  // namespace tensorcache::runtime
