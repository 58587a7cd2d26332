// StreamingLLM: the first S tokens (sinks) and the last W. Keys of sinks are rotated at their index in the cache, and the
// queries that look at them as the cache's last index: distances never grow beyond S + W. A sink that is still inside the window
// is seen there, and only there.
#include "methods/streaming_llm/streaming_llm.h"

#include <algorithm>

#include "methods/head.h"
#include "methods/rows_math.h"

namespace tensorcache::methods {

std::vector<int64_t> SinkQueryIndices(const CacheConfig& cache, int64_t position, int64_t tokens) {
  std::vector<int64_t> indices(static_cast<size_t>(tokens));
  for (int64_t t = 0; t < tokens; ++t) {
    indices[static_cast<size_t>(t)] = std::min(position + t, cache.sinks + cache.window - 1);
  }
  return indices;
}

namespace {

constexpr size_t kSinkKeys = 0, kSinkValues = 1;  // of the arrays

class StreamingLlmLayer : public Layer {
 public:
  explicit StreamingLlmLayer(const TwoLevelCacheConfig& config) : cache_(config.cache), pairing_(config.rope.pairing) {}

  std::vector<int64_t> ExtraRope(int64_t position, int64_t tokens) const override {
    return SinkQueryIndices(cache_, position, tokens);
  }

  SinkRows Sinks(const HeadBlock& block, Arena& arena) const override {
    AddSinks(block);
    return {.S = cache_.sinks,
            .k = block.arrays[kSinkKeys],
            .v = block.arrays[kSinkValues],
            .q = Rotated({.rows = block.plain_q,
                          .heads = block.R,
                          .T = block.T,
                          .D = block.D,
                          .rope = block.extra_rope,
                          .pairing = pairing_},
                         arena)};
  }

 private:
  // A sink's index in the cache is its position: it is rotated already.
  void AddSinks(const HeadBlock& block) const {
    const int64_t added = std::min(cache_.sinks - block.position, block.T), D = block.D;
    for (int64_t t = 0; t < added; ++t) {
      CopyRow(block.k + t * D, D, block.arrays[kSinkKeys] + (block.position + t) * D);
      CopyRow(block.v.At(0, 0, t), D, block.arrays[kSinkValues] + (block.position + t) * D);
    }
  }

  CacheConfig cache_;
  RopePairing pairing_;
};

class StreamingLlm : public Method {
 public:
  std::string_view name() const override { return "streaming_llm"; }
  std::string_view title() const override { return "StreamingLLM"; }
  std::string_view summary() const override {
    return "the first `sinks` and the last `window` keys and values, at their places inside the cache";
  }

  Status Validate(const CacheConfig& cache, int64_t layers) const override {
    TC_RETURN_IF_ERROR(Method::Validate(cache, layers));
    return CheckPositive("cache.sinks", cache.sinks, 65536);
  }
  Status ValidateLearnedPositions() const override {
    return InvalidArgument(
        "cache.method streaming_llm places tokens by their index in the cache, which learned positions cannot: they "
        "are part of each token; use window, or a model with rotary embedding");
  }
  int64_t TokensKept(const CacheConfig& cache) const override { return cache.window + cache.sinks; }
  double VisiblePairs(const CacheConfig& cache, double tokens) const override {
    const double W = std::min<double>(static_cast<double>(cache.window), tokens);
    return Method::VisiblePairs(cache, tokens) + (tokens - W) * static_cast<double>(cache.sinks);
  }
  std::vector<StateArray> Arrays(const LayerPlace& place) const override {
    const std::vector<int64_t> shape = {place.cache.sinks, place.head_dim};
    return {{.name = "sink_k", .kind = StateArray::Kind::kSinks, .shape = shape},
            {.name = "sink_v", .kind = StateArray::Kind::kSinks, .shape = shape}};
  }
  Result<std::unique_ptr<const Layer>> MakeLayer(const TwoLevelCacheConfig& config, int64_t /*layer*/,
                                                 const LearnedNumbers& /*numbers*/) const override {
    return std::unique_ptr<const Layer>(std::make_unique<StreamingLlmLayer>(config));
  }
};

}  // namespace

const Method& StreamingLlmMethod() {
  static const StreamingLlm method;
  return method;
}

}  // namespace tensorcache::methods
