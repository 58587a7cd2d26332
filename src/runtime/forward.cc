#include "runtime/forward.h"

#include <algorithm>
#include <cmath>

#include "core/tensor_floats.h"
#include "kernels/norm/activation.h"
#include "tensorcache/kernels/norm.h"

namespace tensorcache::runtime {
namespace {

// Work is cut at multiples of this many output features, whatever the number of threads: so are the products of BLAS, and
// results do not depend on threads.
constexpr int64_t kBlock = kLinearRowBlock;

int64_t Blocks(int64_t features) { return (features + kBlock - 1) / kBlock; }

// Calls f(begin, end, worker) on ranges of whole blocks that cover [0, features).
template <class F>
void ForEachBlock(ThreadPool& pool, int64_t features, F f) {
  pool.ParallelFor(Blocks(features), 1, [&](int64_t begin, int64_t end, int worker) {
    f(begin * kBlock, std::min(end * kBlock, features), worker);
  });
}

// y[:, begin..end) += bias
void AddBias(const std::vector<float>& bias, int64_t n, int64_t begin, int64_t end, float* y, int64_t stride) {
  if (bias.empty()) return;
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t o = begin; o < end; ++o) y[t * stride + o] += bias[static_cast<size_t>(o)];
  }
}

}  // namespace

Workspace::Workspace(ThreadPool& pool) : cache_(&pool), scratch_(static_cast<size_t>(pool.threads())) {}

float* Workspace::Get(Array array, int64_t n, int64_t width) {
  const int64_t bytes = n * width * static_cast<int64_t>(sizeof(float));
  if (arrays_[array].bytes() < bytes) arrays_[array] = Buffer(bytes);
  return arrays_[array].As<float>();
}

float* Workspace::LinearScratch(int worker, int64_t floats) {
  Buffer& buffer = scratch_[static_cast<size_t>(worker)];
  const int64_t bytes = floats * static_cast<int64_t>(sizeof(float));
  if (buffer.bytes() < bytes) buffer = Buffer(bytes);
  return buffer.As<float>();
}

Status ForwardPass::Run(std::span<const SequenceTokens> sequences) {
  n_ = 0;
  for (const SequenceTokens& sequence : sequences) n_ += static_cast<int64_t>(sequence.tokens.size());
  Embed(sequences);
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    TC_RETURN_IF_ERROR(Attention(i, sequences));
    FeedForward(weights_.layers[i]);
  }
  return OkStatus();
}

void ForwardPass::Embed(std::span<const SequenceTokens> sequences) {
  const int64_t E = config_.hidden_size;
  const bool learned = config_.position_embedding == PositionKind::kLearned;
  std::vector<float> place(static_cast<size_t>(learned ? E : 0));
  float* x = workspace_.Get(Workspace::kResidual, n_, E);
  for (const SequenceTokens& sequence : sequences) {
    int64_t position = sequence.cache->position();
    for (const int32_t token : sequence.tokens) {
      ReadFloats(weights_.embedding, token * E, E, x);
      if (learned) {
        ReadFloats(weights_.positions, position++ * E, E, place.data());
        for (int64_t i = 0; i < E; ++i) x[i] += place[static_cast<size_t>(i)];
      }
      x += E;
    }
  }
}

void ForwardPass::Norm(const NormWeights& norm, const float* x, int64_t first, int64_t count, float* y) {
  const int64_t E = config_.hidden_size;
  constexpr int64_t kRows = 8;  // a range worth another thread
  pool_.ParallelFor(count, kRows, [&](int64_t begin, int64_t end, int) {
    const NormArgs args{.rows = end - begin,
                        .width = E,
                        .x = x + (first + begin) * E,
                        .x_stride = E,
                        .weight = norm.weight.data(),
                        .bias = norm.bias.empty() ? nullptr : norm.bias.data(),
                        .eps = static_cast<float>(config_.norm_eps),
                        .y = y + begin * E,
                        .y_stride = E};
    config_.norm == NormKind::kLayerNorm ? LayerNorm(args) : RmsNorm(args);
  });
}

void ForwardPass::MultiplyRows(const Matrix& matrix, LinearArgs args, int worker) {
  args.in = matrix.in();
  float* scratch = nullptr;
  if (args.n > kSmallBatch) scratch = workspace_.LinearScratch(worker, LinearScratchSize(args.n, args.in));
  matrix.Multiply(args, scratch);
}

void ForwardPass::Product(const LinearWeights& linear, const float* x, int64_t x_stride, float* y, bool add) {
  const int64_t out = linear.matrix.out();
  float* product = add ? workspace_.Get(Workspace::kNormed, n_, out) : y;
  ForEachBlock(pool_, out, [&](int64_t begin, int64_t end, int worker) {
    MultiplyRows(linear.matrix,
                 {.x = x, .x_stride = x_stride, .y = product, .y_stride = out, .n = n_, .begin = begin, .end = end},
                 worker);
    AddBias(linear.bias, n_, begin, end, product, out);
    if (!add) return;
    for (int64_t t = 0; t < n_; ++t) {
      for (int64_t o = begin; o < end; ++o) y[t * out + o] += product[t * out + o];
    }
  });
}

// q, k and v in one go over the threads: blocks of q, then of k, then of v.
void ForwardPass::ProjectHeads(const LayerWeights& layer, const float* normed, const Heads& heads) {
  struct Part {
    const LinearWeights* linear;
    float* y;
    int64_t first, features;  // in blocks, in features
  };
  const int64_t queries = layer.q.matrix.out(), keys = layer.k.matrix.out(), E = config_.hidden_size;
  const Part parts[] = {{&layer.q, heads.q, 0, queries},
                        {&layer.k, heads.k, Blocks(queries), keys},
                        {&layer.v, heads.v, Blocks(queries) + Blocks(keys), keys}};
  pool_.ParallelFor(Blocks(queries) + 2 * Blocks(keys), 1, [&](int64_t begin, int64_t end, int worker) {
    for (const Part& part : parts) {
      const int64_t from = std::max(begin - part.first, int64_t{0}) * kBlock;
      const int64_t to = std::min((end - part.first) * kBlock, part.features);
      if (from >= to) continue;
      MultiplyRows(
          part.linear->matrix,
          {.x = normed, .x_stride = E, .y = part.y, .y_stride = part.features, .n = n_, .begin = from, .end = to},
          worker);
      AddBias(part.linear->bias, n_, from, to, part.y, part.features);
    }
  });
}

const float* ForwardPass::ProjectInput(const LinearWeights& linear, const float* normed, Workspace::Array array) {
  if (linear.matrix.out() == 0) return nullptr;
  float* y = workspace_.Get(array, n_, linear.matrix.out());
  Product(linear, normed, config_.hidden_size, y, /*add=*/false);
  return y;
}

Status ForwardPass::Attention(size_t index, std::span<const SequenceTokens> sequences) {
  const LayerWeights& layer = weights_.layers[index];
  const int64_t E = config_.hidden_size, queries = layer.q.matrix.out(), keys = layer.k.matrix.out();
  float* x = workspace_.Get(Workspace::kResidual, n_, E);
  float* normed = workspace_.Get(Workspace::kNormed, n_, E);
  Norm(layer.attention_norm, x, 0, n_, normed);
  const Heads heads = {.q = workspace_.Get(Workspace::kQueries, n_, queries),
                       .k = workspace_.Get(Workspace::kKeys, n_, keys),
                       .v = workspace_.Get(Workspace::kValues, n_, keys)};
  ProjectHeads(layer, normed, heads);
  const float* gates = ProjectInput(layer.cache_input, normed, Workspace::kCacheInput);
  const float* fusion_input = ProjectInput(layer.fusion_input, normed, Workspace::kFusionInput);

  // Attention and reads side by side, as the out projection wants them.
  const bool has_reads = layer.fusion->has_reads();
  const int64_t width = has_reads ? 2 * queries : queries;
  float* attended = workspace_.Get(Workspace::kAttended, n_, width);
  std::vector<TwoLevelCache::Step> steps;
  int64_t row = 0;
  for (const SequenceTokens& sequence : sequences) {
    const auto tokens = static_cast<int64_t>(sequence.tokens.size());
    steps.push_back({.cache = sequence.cache,
                     .block = {.tokens = tokens,
                               .q = heads.q + row * queries,
                               .k = heads.k + row * keys,
                               .v = heads.v + row * keys,
                               .gates = gates == nullptr ? nullptr : gates + row * layer.cache_input.matrix.out(),
                               .local = attended + row * width,
                               .local_stride = width,
                               .reads = has_reads ? attended + row * width + queries : nullptr,
                               .reads_stride = width}});
    row += tokens;
  }
  TC_RETURN_IF_ERROR(TwoLevelCache::AdvanceAll(static_cast<int64_t>(index), steps, workspace_.cache()));
  layer.fusion->Apply({.rows = n_,
                       .x = normed,
                       .E = E,
                       .input = fusion_input,
                       .local = attended,
                       .width = queries,
                       .stride = width,
                       .D = config_.HeadDim()});
  Product(layer.out, attended, width, x, /*add=*/true);
  return OkStatus();
}

void ForwardPass::FeedForward(const LayerWeights& layer) {
  const int64_t E = config_.hidden_size, F = config_.intermediate_size;
  float* x = workspace_.Get(Workspace::kResidual, n_, E);
  float* normed = workspace_.Get(Workspace::kNormed, n_, E);
  Norm(layer.mlp_norm, x, 0, n_, normed);
  float* inner = workspace_.Get(Workspace::kInner, n_, F);
  float* gate = config_.gated_mlp ? workspace_.Get(Workspace::kGate, n_, F) : nullptr;
  ForEachBlock(pool_, F, [&](int64_t begin, int64_t end, int worker) {
    LinearArgs args{.x = normed, .x_stride = E, .y = inner, .y_stride = F, .n = n_, .begin = begin, .end = end};
    MultiplyRows(layer.up.matrix, args, worker);
    AddBias(layer.up.bias, n_, begin, end, inner, F);
    if (gate != nullptr) {
      args.y = gate;
      MultiplyRows(layer.gate.matrix, args, worker);
      AddBias(layer.gate.bias, n_, begin, end, gate, F);
    }
    Gate({.activation = config_.hidden_act,
          .rows = n_,
          .width = end - begin,
          .a = (gate != nullptr ? gate : inner) + begin,
          .a_stride = F,
          .b = gate != nullptr ? inner + begin : nullptr,
          .b_stride = F,
          .y = inner + begin,
          .y_stride = F});
  });
  Product(layer.down, inner, F, x, /*add=*/true);
}

void ForwardPass::Hidden(int64_t first, int64_t count, float* hidden) {
  Norm(weights_.final_norm, workspace_.Get(Workspace::kResidual, n_, config_.hidden_size), first, count, hidden);
}

void ForwardPass::Head(const float* hidden, int64_t count, float* logits, int64_t stride) {
  ForEachBlock(pool_, config_.vocab_size, [&](int64_t begin, int64_t end, int worker) {
    MultiplyRows(weights_.head,
                 {.x = hidden,
                  .x_stride = config_.hidden_size,
                  .y = logits,
                  .y_stride = stride,
                  .n = count,
                  .begin = begin,
                  .end = end},
                 worker);
  });
}

void ForwardPass::Logits(int64_t first, int64_t count, float* logits, int64_t stride) {
  float* hidden = workspace_.Get(Workspace::kNormed, count, config_.hidden_size);
  Hidden(first, count, hidden);
  Head(hidden, count, logits, stride);
}

}  // namespace tensorcache::runtime
