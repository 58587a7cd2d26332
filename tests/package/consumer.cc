// With nothing but the installed package: a memory kernel, a cache without a model, and a session.
#include <tensorcache/cache.h>
#include <tensorcache/kernels/memory_scan.h>
#include <tensorcache/sampling.h>
#include <tensorcache/session.h>
#include <tensorcache/status.h>
#include <tensorcache/version.h>

#include <cmath>
#include <cstdio>
#include <vector>

using namespace tensorcache;

namespace {

constexpr int kDim = 4;
constexpr float kKeys[2][kDim] = {{1, 0, 0, 0}, {0.6f, 0.8f, 0, 0}};
constexpr float kValues[2][kDim] = {{1, 2, 3, 4}, {10, 20, 30, 40}};

// Half of the first value is left, and the second key overlaps the first by 0.6.
bool IsExpected(const char* what, const float* read) {
  for (int d = 0; d < kDim; ++d) {
    const float expected = 0.5f * kValues[0][d] + 0.6f * kValues[1][d];
    if (std::abs(read[d] - expected) < 1e-5f * expected) continue;
    std::printf("%s: read[%d] = %g, expected %g\n", what, d, static_cast<double>(read[d]),
                static_cast<double>(expected));
    return false;
  }
  return true;
}

bool KernelWorks() {
  const float log_decay = std::log(0.5f);
  const float write_strength = 1;
  std::vector<float> memory(kDim * kDim, 0.0f);
  float read[kDim];
  for (int i = 0; i < 2; ++i) {
    const Status status = MemoryStep({.Dk = kDim,
                                      .Dv = kDim,
                                      .evicted = {.k = {.data = kKeys[i]},
                                                  .v = {.data = kValues[i]},
                                                  .log_decay = {.data = &log_decay},
                                                  .write_strength = {.data = &write_strength}},
                                      .q = {.data = kKeys[0]},
                                      .state = {.data = memory.data(), .token = kDim},
                                      .reads = {.data = read}},
                                     0, 1);
    if (!status.ok()) return false;
  }
  return !ValidateMemoryScan({.T = 1, .Dk = -1, .Dv = 4}).ok() && IsExpected("kernel", read);
}

// Threads of the consumer's own: here one, which takes the ranges from the last to the first.
class Backwards : public Executor {
 public:
  int workers() const override { return 1; }
  void Run(int64_t n, const Body& body) override {
    for (int64_t i = n; i-- > 0;) body(i, i + 1, 0);
  }
};

// The same two pairs, evicted from a window of one token by a third, without rotary embedding.
bool CacheWorks() {
  TwoLevelCacheConfig config{.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = kDim};
  config.cache = {.method = CacheMethod::kTensorCache, .window = 1};
  config.rope.enabled = false;
  constexpr float kLambdaLogit = 0, kEtaLogit = 100;  // sigmoid: 0.5 and 1
  Result<TwoLevelCache> cache =
      TwoLevelCache::Create(config, {{{"lambda_logit", {kLambdaLogit}}, {"eta_logit", {kEtaLogit}}}});
  if (!cache.ok()) return false;
  Backwards threads;
  CacheWorkspace workspace(&threads);
  float local[kDim], reads[kDim];
  for (int i = 0; i < 3; ++i) {
    const Status status = cache->Advance(
        0, {.tokens = 1, .q = kKeys[0], .k = kKeys[i % 2], .v = kValues[i % 2], .local = local, .reads = reads},
        workspace);
    if (!status.ok()) return false;
  }
  return IsExpected("cache", reads) && local[0] == kValues[0][0];
}

bool SessionWorks() {
  ModelConfig config;
  config.vocab_size = 20;
  config.cache.window = 4;
  Result<std::shared_ptr<const Model>> model = Model::Random(config);
  if (!model.ok()) return false;
  Result<Session> session = Session::Create(*model);
  Result<Sampler> sampler = Sampler::Create({.temperature = 0.8, .top_k = 5, .seed = 1});
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7};
  if (!session.ok() || !sampler.ok() || !session->Prefill(prompt).ok()) return false;
  const int64_t bytes = session->state_bytes().total();
  for (int i = 0; i < 20; ++i) {
    const Result<int32_t> token =
        sampler->Sample(session->logits(), session->recent(), static_cast<uint64_t>(session->position()));
    if (!token.ok() || !session->Decode(*token).ok()) return false;
  }
  return session->position() == 27 && session->state_bytes().total() == bytes;
}

}  // namespace

int main() {
  if (!KernelWorks() || !CacheWorks() || !SessionWorks()) return 1;
  std::printf("TensorCache %s: consumer works\n", TENSORCACHE_VERSION);
  return 0;
}
