// What the layers of a Transformer keep of the past, for one sequence; usable inside any engine, without our model.
//
//   auto cache = TwoLevelCache::Create({.layers = 12, .query_heads = 12, .kv_heads = 12, .head_dim = 64,
//                                       .cache = {.method = CacheMethod::kTensorCache, .window = 512}});
//   CacheWorkspace workspace;                                   // scratch; one per thread that calls
//   for each block of tokens, for each layer:
//     cache->Advance(layer, {.tokens = T, .q = q, .k = k, .v = v, .local = local, .reads = reads}, workspace);
//
// Advance appends the block's keys and values, attends to the window (L1) and reads the memory (L2) with every query of the
// block. A block has any length: any split of a sequence into blocks gives the same results, up to rounding. What the model
// makes of `local` and `reads` (Tensor Cache: W_o local + gate W_tc reads) is its own business.
//
// All five methods of CacheMethod are here, behind this one interface. But for method full, a cache has the same size after
// any number of tokens. A cache is one sequence; for many, make many (they are independent) and hand all of them to
// AdvanceAll. Different caches may be used by different threads at the same time, a single one by one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensorcache/config.h"
#include "tensorcache/executor.h"
#include "tensorcache/status.h"

namespace tensorcache {

// How the window's keys and values are kept. Sinks and memories are always fp32.
enum class RingType { kFp32, kBf16 };
constexpr auto EnumNames(RingType) {
  return std::to_array<std::pair<RingType, std::string_view>>({{RingType::kFp32, "fp32"}, {RingType::kBf16, "bf16"}});
}

// Rotary embedding, which the cache applies to the queries and keys it is given.
struct RopeConfig {
  bool enabled = true;  // false: keys and queries are used as they come, positioned in some other way or not at all
  double theta = 10000;
  double ntk_factor = 1;  // for contexts this many times the trained length
  RopeScaling scaling;
  RopePairing pairing = RopePairing::kHalfSplit;
};

struct TwoLevelCacheConfig {
  int64_t layers = 1;
  int64_t query_heads = 1;  // H, a multiple of kv_heads
  int64_t kv_heads = 1;     // G
  int64_t head_dim = 0;     // D, even, at most 256
  CacheConfig cache;
  RopeConfig rope;
  RingType ring = RingType::kFp32;
};

// What a layer has learned for its cache method, by the names of the checkpoint: "lambda_logit" for
// model.layers.0.self_attn.tensor_cache.lambda_logit. What is missing stands for the initial values of the config. Method
// tensor_cache (G key/value heads, one or two timescales):
//   lambda_logit, eta_logit  (G, timescales): lambda = sigmoid(.)
//   slot_keys                (G, slots, D); required if there are several slots
//   alpha                    (1), two timescales: the slow memory counts sigmoid(alpha)
//   conv_q, conv_k, conv_v   (H or G, taps, D), address.conv: the convolution's weights
//   read_norm.weight         (H, D), read.norm; read_norm.floor (H), if it is soft
// With write.decay or write.strength per_token, CacheBlock::gates has for each head the numbers that are added to its
// lambda_logit (one per timescale), if decay is per_token, and then those for its eta_logit, if strength is.
using LearnedNumbers = std::map<std::string, std::vector<float>, std::less<>>;

// One block of one layer. A token's heads lie one after the other; strides count floats from token to token, 0: dense.
struct CacheBlock {
  int64_t tokens = 0;
  const float* q = nullptr;  // (tokens, H, D), before rotary embedding
  int64_t q_stride = 0;
  const float* k = nullptr;  // (tokens, G, D), before rotary embedding
  int64_t k_stride = 0;
  const float* v = nullptr;  // (tokens, G, D)
  int64_t v_stride = 0;
  const float* gates = nullptr;  // (tokens, G, gates()): what the model computes of each token for its method
  int64_t gates_stride = 0;
  float* local = nullptr;  // (tokens, H, D): attention over the window (and sinks); null: nobody attends
  int64_t local_stride = 0;
  float* reads = nullptr;  // (tokens, H, D): of the memory; null: nobody reads; ignored in layers without one
  int64_t reads_stride = 0;
};

// Bytes of state, all layers.
struct StateBytes {
  int64_t window = 0;  // keys and values of the window (method full: of every token)
  int64_t sinks = 0;
  int64_t memory = 0;  // L2: matrices and normalisers
  int64_t total() const { return window + sinks + memory; }
};

// Scratch memory of Advance, which grows to what the largest block needs.
class CacheWorkspace {
 public:
  // Null: everything runs on the calling thread. An executor must outlive the workspace.
  explicit CacheWorkspace(Executor* executor = nullptr);
  ~CacheWorkspace();
  CacheWorkspace(CacheWorkspace&&) noexcept;
  CacheWorkspace& operator=(CacheWorkspace&&) noexcept;

  struct Impl;

 private:
  friend class TwoLevelCache;
  std::unique_ptr<Impl> impl_;
};

// A cache that was moved from is empty: its calls return kInvalidArgument, 0 or false.
class TwoLevelCache {
 public:
  // `memories` has one entry a layer, or none: initial values everywhere.
  static Result<TwoLevelCache> Create(const TwoLevelCacheConfig& config, std::vector<LearnedNumbers> memories = {});
  ~TwoLevelCache();
  TwoLevelCache(TwoLevelCache&&) noexcept;
  TwoLevelCache& operator=(TwoLevelCache&&) noexcept;

  // The next `block.tokens` tokens of layer `layer`. Layers count their tokens separately: each must see all of them, in any
  // order of layers. kDiverged if what is read of the memory leaves the finite numbers (a delta rule can), kIoError if there is
  // not enough memory: some heads may have moved on then, so the cache refuses to go on until it is cleared or loaded. Any
  // other error leaves it as it was.
  Status Advance(int64_t layer, const CacheBlock& block, CacheWorkspace& workspace);

  // The same for many different caches at once, which share the workspace's threads. The caches may differ in everything. After
  // kDiverged or kIoError none of them goes on.
  struct Step {
    TwoLevelCache* cache = nullptr;
    CacheBlock block;
  };
  static Status AdvanceAll(int64_t layer, std::span<const Step> steps, CacheWorkspace& workspace);

  const TwoLevelCacheConfig& config() const;
  // Numbers per token and key/value head that layer `layer` wants in CacheBlock::gates: 0 for most methods and options.
  int64_t gates(int64_t layer) const;
  // Whether layer `layer` has a second level; false for layers that are not there.
  bool HasMemory(int64_t layer) const;
  // Tokens that layer `layer` has seen; 0 for layers that are not there.
  int64_t position(int64_t layer = 0) const;
  StateBytes state_bytes() const;

  // Back to the start of a sequence.
  void Clear();
  // An independent copy. Costs next to nothing until one of the two goes on: then that one copies its layers.
  Result<TwoLevelCache> Fork() const;

  // To and from a checksummed file, always of the same size (but for method full). Layers must have seen the same
  // tokens. Loading refuses, with the reason, files that are damaged, of another version, or of a cache with another
  // config, and leaves the cache as it was. Without `durable` saving does not wait for the disk: a crash of the machine
  // may then cost the file.
  Status Save(const std::string& path, bool durable = true) const;
  Status Load(const std::string& path);

  // A of one memory, for those who want to look: matrix `slot` of timescale `timescale` of head `head`, (D, Dv) row by row.
  // Empty if there is no such memory. Valid until the next call.
  std::span<const float> MemoryOf(int64_t layer, int64_t head, int64_t timescale = 0, int64_t slot = 0) const;

  struct Impl;

 private:
  friend class Session;
  explicit TwoLevelCache(std::unique_ptr<Impl> impl);
  static Status CheckSteps(int64_t layer, std::span<const Step> steps);
  bool HasLayer(int64_t layer) const;

  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorcache
