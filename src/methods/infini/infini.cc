// Infini-attention: the last W tokens, and a normalised memory of every token, with s(x) = elu(x) + 1:
//
//   z_i = z_{i-1} + s(k_i)                                          read: s(q_t) M_t / (s(q_t) z_t)
//   linear  M_i = M_{i-1} + s(k_i)^T v_i
//   delta   M_i = M_{i-1} + s(k_i)^T (v_i - s(k_i) M_{i-1} / c_i),  c_i = s(k_i) z_{i-1}
//
// The delta rule is memory_scan's with the key s(k)/sqrt(c) and the value sqrt(c) v:
// (s(k)/sqrt(c))^T (sqrt(c) v - (s(k)/sqrt(c)) M) = s(k)^T (v - s(k) M / c).
//
// A gate per head mixes the levels: sigmoid(beta) read + (1 - sigmoid(beta)) local.
#include <cmath>

#include "core/scalar_math.h"
#include "methods/head.h"
#include "methods/rows_math.h"
#include "tensorcache/kernels/memory_scan.h"

namespace tensorcache::methods {
namespace {

constexpr size_t kMemory = 0, kNormalizer = 1;  // of the arrays
constexpr float kNoDecay = 0, kFullStrength = 1;

float Feature(float x) { return x > 0 ? x + 1 : std::exp(x); }  // elu(x) + 1

class InfiniLayer : public Layer {
 public:
  explicit InfiniLayer(const InfiniConfig& config) : config_(config) {}

  bool has_memory() const override { return true; }
  Status Step(const HeadBlock& block, const EvictedPair& /*evicted*/, Arena& arena) const override {
    return Advance(block, arena);
  }
  Status Scan(const HeadBlock& block, const PastWindow& /*past*/, Arena& arena) const override {
    return Advance(block, arena);
  }

 private:
  struct FeatureRows {
    float* q;     // (R, T, D): s(q)
    float* k;     // (T, D): s(k), by the delta rule s(k) / sqrt(c)
    float* v;     // (T, D): v, by the delta rule v sqrt(c)
    float* norm;  // (R, T): s(q_t) z_t
  };

  // Moves the normaliser z on.
  FeatureRows MakeRows(const HeadBlock& in, Arena& arena) const {
    const int64_t T = in.T, R = in.R, D = in.D;
    const Rows<const float> q =
        config_.memory_rope ? Rows<const float>{.data = in.q, .head = T * D, .token = D} : in.plain_q;
    const Rows<const float> k = config_.memory_rope ? Rows<const float>{.data = in.k, .token = D} : in.plain_k;
    float* z = in.arrays[kNormalizer];
    FeatureRows out = {
        .q = arena.Take(R * T * D), .k = arena.Take(T * D), .v = arena.Take(T * D), .norm = arena.Take(R * T)};
    for (int64_t t = 0; t < T; ++t) {
      float* key = out.k + t * D;
      for (int64_t i = 0; i < D; ++i) key[i] = Feature(k.At(0, 0, t)[i]);
      const float known = config_.delta ? Dot(key, z, D) : 0;  // 0 only for the first token: nothing is known then
      for (int64_t i = 0; i < D; ++i) z[i] += key[i];
      const float root = known > 0 ? std::sqrt(known) : 1;
      for (int64_t i = 0; i < D; ++i) {
        key[i] /= root;
        out.v[t * D + i] = in.v.At(0, 0, t)[i] * root;
      }
      for (int64_t r = 0; r < R; ++r) {
        float* query = out.q + (r * T + t) * D;
        for (int64_t i = 0; i < D; ++i) query[i] = Feature(q.At(0, r, t)[i]);
        out.norm[r * T + t] = Dot(query, z, D);
      }
    }
    return out;
  }

  // A block of any length, one token too.
  Status Advance(const HeadBlock& in, Arena& arena) const {
    const int64_t T = in.T, R = in.R, D = in.D;
    const FeatureRows rows = MakeRows(in, arena);
    const WriteRule rule = config_.delta ? WriteRule::kDelta : WriteRule::kOuter;
    const Rows<float> state = {.data = in.arrays[kMemory], .token = D};
    const MemoryWrites<const float> writes = {.k = {.data = rows.k, .token = D},
                                              .v = {.data = rows.v, .token = D},
                                              .log_decay = {.data = &kNoDecay},
                                              .write_strength = {.data = &kFullStrength}};
    const Rows<const float> q = {.data = rows.q, .head = T * D, .token = D};
    Status status;
    if (T == 1) {
      status = MemoryStep(
          {.H = R, .Dk = D, .Dv = D, .rule = rule, .evicted = writes, .q = q, .state = state, .reads = in.reads}, 0, 1);
    } else {
      const MemoryScanShape shape = {.H = R, .T = T, .Dk = D, .Dv = D, .rule = rule};
      MemoryScanForwardArgs<float> args{.shape = shape, .q = q, .writes = writes};
      args.initial = {.data = state.data, .token = D};
      args.reads = in.reads;
      args.final_state = state;
      status = MemoryScanForward(args, 0, 1, arena.Take(MemoryScanScratchFloats(shape)));
    }
    for (int64_t r = 0; r < R; ++r) {
      for (int64_t t = 0; t < T; ++t) {
        float* read = in.reads.At(0, r, t);
        for (int64_t i = 0; i < D; ++i) read[i] /= rows.norm[r * T + t];
      }
    }
    return status;
  }

  InfiniConfig config_;
};

class InfiniFusion : public Fusion {
 public:
  explicit InfiniFusion(std::vector<float> gates) : gates_(std::move(gates)) {}

  bool has_reads() const override { return true; }
  void Apply(const FusionRows& rows) const override {
    for (int64_t t = 0; t < rows.rows; ++t) {
      float* local = rows.local + t * rows.stride;
      for (int64_t i = 0; i < rows.width; ++i) {
        local[i] += gates_[static_cast<size_t>(i / rows.D)] * (local[rows.width + i] - local[i]);
      }
    }
  }

 private:
  std::vector<float> gates_;  // (H): sigmoid(beta)
};

class Infini : public Method {
 public:
  std::string_view name() const override { return "infini"; }
  std::string_view title() const override { return "Infini-attention"; }
  std::string_view summary() const override {
    return "the last `window`, and Infini-attention's normalised memory of every token";
  }

  Status Validate(const CacheConfig& cache, int64_t layers) const override {
    TC_RETURN_IF_ERROR(Method::Validate(cache, layers));
    return CheckInside("cache.infini.gate_init", cache.infini.gate_init, -100, 100);
  }
  // The feature map sees the angles of rotated keys, not their differences.
  bool IsRelative(const CacheConfig& cache) const override { return !cache.infini.memory_rope; }
  bool HasMemory(const LayerPlace& /*place*/) const override { return true; }
  double MemoryFlops(const LayerPlace& place) const override {
    const auto H = static_cast<double>(place.query_heads), G = static_cast<double>(place.kv_heads);
    const auto D = static_cast<double>(place.head_dim);
    return D * D * (2 * H + 2 * G * (place.cache.infini.delta ? 2 : 1));
  }
  std::vector<StateArray> Arrays(const LayerPlace& place) const override {
    return {{.name = "memory", .shape = {1, 1, place.head_dim, place.head_dim}},
            {.name = "normalizer", .shape = {place.head_dim}}};
  }
  std::vector<LearnedTensor> Tensors(const LayerPlace& place) const override {
    return {{.name = "gate", .shape = {place.query_heads}, .values = {place.cache.infini.gate_init}}};
  }
  std::vector<LearnedFigure> Figures(const LayerPlace& place, const LearnedNumbers& numbers) const override {
    const auto gates = Gates(place, numbers);
    if (!gates.ok()) return {};
    return {{.name = "gate", .rows = {*gates}}};
  }
  Result<std::unique_ptr<const Layer>> MakeLayer(const TwoLevelCacheConfig& config, int64_t /*layer*/,
                                                 const LearnedNumbers& /*numbers*/) const override {
    return std::unique_ptr<const Layer>(std::make_unique<InfiniLayer>(config.cache.infini));
  }
  Result<std::unique_ptr<const Fusion>> MakeFusion(const LayerPlace& place,
                                                   const LearnedNumbers& numbers) const override {
    TC_ASSIGN_OR_RETURN(const std::vector<double> gates, Gates(place, numbers));
    return std::unique_ptr<const Fusion>(
        std::make_unique<InfiniFusion>(std::vector<float>(gates.begin(), gates.end())));
  }

 private:
  // sigmoid(beta) of each head.
  Result<std::vector<double>> Gates(const LayerPlace& place, const LearnedNumbers& numbers) const {
    TC_ASSIGN_OR_RETURN(std::vector<double> gates, NumbersOf(Tensors(place)[0], numbers));
    for (double& gate : gates) gate = static_cast<double>(Sigmoid(static_cast<float>(gate)));
    return gates;
  }
};

}  // namespace

const Method& InfiniMethod() {
  static const Infini method;
  return method;
}

}  // namespace tensorcache::methods
