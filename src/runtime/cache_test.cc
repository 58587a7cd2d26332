// The cache as another engine would use it: against the formulas, written down plainly in double.
#include "tensorcache/cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <stdexcept>
#include <thread>

#include "runtime/cache_testing.h"
#include "runtime/state_size.h"

namespace tensorcache {
namespace {

using namespace cache_testing;  // NOLINT(google-build-using-namespace)

Outputs RunLayer(const TwoLevelCacheConfig& config, const Sequence& s, const std::vector<int64_t>& blocks) {
  TwoLevelCache cache = Make(config);
  Outputs out;
  int64_t first = 0;
  for (const int64_t count : blocks) {
    Advance(cache, 0, s, first, count, &out);
    first += count;
  }
  return out;
}

// ----- the formulas --------------------------------------------------------------------------------------------------

using Vector = std::vector<double>;

Vector RowOf(const Rows& rows, int64_t heads, int64_t t, int64_t h) {
  const auto first = rows.begin() + (t * heads + h) * kDim;
  return Vector(first, first + kDim);
}

Vector Rotated(Vector x, int64_t position) {
  for (int64_t i = 0; i < kDim / 2; ++i) {
    const double angle = static_cast<double>(position) * std::pow(10000.0, -2.0 * static_cast<double>(i) / kDim);
    const double a = x[static_cast<size_t>(i)], b = x[static_cast<size_t>(i + kDim / 2)];
    x[static_cast<size_t>(i)] = a * std::cos(angle) - b * std::sin(angle);
    x[static_cast<size_t>(i + kDim / 2)] = b * std::cos(angle) + a * std::sin(angle);
  }
  return x;
}

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

struct Reference {
  explicit Reference(const TwoLevelCacheConfig& c, const Sequence& s) : config(c), sequence(s) {}

  Vector Key(int64_t i, int64_t g) const { return Turn(RowOf(sequence.k, kKvHeads, i, g), i); }
  Vector Query(int64_t t, int64_t h) const { return Turn(RowOf(sequence.q, kHeads, t, h), t); }
  Vector Value(int64_t i, int64_t g) const { return RowOf(sequence.v, kKvHeads, i, g); }
  Vector Turn(const Vector& x, int64_t position) const { return config.rope.enabled ? Rotated(x, position) : x; }

  Vector Local(int64_t t, int64_t h) const {
    const int64_t g = h / kGroup, W = config.cache.window;
    const int64_t first = config.cache.method == CacheMethod::kFull ? 0 : std::max<int64_t>(0, t - W + 1);
    double sum = 0;
    Vector out(kDim);
    for (int64_t i = first; i <= t; ++i) {
      const double weight = std::exp(Dot(Query(t, h), Key(i, g)) / std::sqrt(static_cast<double>(kDim)));
      sum += weight;
      for (size_t j = 0; j < out.size(); ++j) out[j] += weight * Value(i, g)[j];
    }
    for (double& x : out) x /= sum;
    return out;
  }

  // r = q A after the writes of tokens 0 .. t - W.
  Vector Read(int64_t t, int64_t h) const {
    const int64_t g = h / kGroup;
    std::vector<Vector> A(kDim, Vector(kDim));
    for (int64_t i = 0; i <= t - config.cache.window; ++i) {
      const Vector k = Key(i, g);
      Vector u = Value(i, g);
      if (const WriteRule rule = config.cache.tensor_cache.write.rule; IsDelta(rule)) {
        const double decay = rule == WriteRule::kGatedDelta ? kLambda : 1;
        for (size_t j = 0; j < u.size(); ++j) {
          for (size_t a = 0; a < k.size(); ++a) u[j] -= decay * k[a] * A[a][j];
        }
      }
      for (size_t a = 0; a < k.size(); ++a) {
        for (size_t j = 0; j < u.size(); ++j) A[a][j] = kLambda * A[a][j] + kEta * k[a] * u[j];
      }
    }
    Vector read(kDim);
    for (size_t j = 0; j < read.size(); ++j) {
      for (size_t a = 0; a < read.size(); ++a) read[j] += Query(t, h)[a] * A[a][j];
    }
    return read;
  }

  const TwoLevelCacheConfig& config;
  const Sequence& sequence;
};

void ExpectFormulas(const TwoLevelCacheConfig& config, bool has_reads) {
  const Sequence s(23);
  const Reference reference(config, s);
  for (const std::vector<int64_t>& blocks :
       {std::vector<int64_t>{23}, std::vector<int64_t>(23, 1), std::vector<int64_t>{3, 1, 9, 2, 8}}) {
    const Outputs out = RunLayer(config, s, blocks);
    for (int64_t t = 0; t < s.tokens; ++t) {
      for (int64_t h = 0; h < kHeads; ++h) {
        const Vector local = reference.Local(t, h), read = reference.Read(t, h);
        for (int64_t j = 0; j < kDim; ++j) {
          const auto at = static_cast<size_t>((t * kHeads + h) * kDim + j), i = static_cast<size_t>(j);
          ASSERT_NEAR(out.local[at], local[i], 2e-6) << "token " << t << ", head " << h;
          if (has_reads) {
            ASSERT_NEAR(out.reads[at], read[i], 1e-5) << "token " << t << ", head " << h;
          } else {
            ASSERT_TRUE(std::isnan(out.reads[at])) << "touched what it has no business with";
          }
        }
      }
    }
  }
}

TEST(TwoLevelCache, AttendsToTheWindowAndReadsTheMemory) {
  for (const bool rope : {true, false}) {
    for (const WriteRule rule : {WriteRule::kOuter, WriteRule::kDelta, WriteRule::kGatedDelta}) {
      TwoLevelCacheConfig config = Config(CacheMethod::kTensorCache);
      config.rope.enabled = rope;
      config.cache.tensor_cache.write.rule = rule;
      ExpectFormulas(config, /*has_reads=*/true);
    }
  }
}

TEST(TwoLevelCache, OtherMethodsHaveNoReads) {
  ExpectFormulas(Config(CacheMethod::kWindow), /*has_reads=*/false);
  ExpectFormulas(Config(CacheMethod::kFull), /*has_reads=*/false);
}

// ----- the interface -------------------------------------------------------------------------------------------------

TEST(TwoLevelCache, TellsWhatItKeeps) {
  const Sequence s(40);
  for (const CacheMethod method : AllMethods()) {
    TwoLevelCache cache = Make(Config(method));
    const int64_t at_start = cache.state_bytes().total();
    Outputs out;
    Feed(cache, s, 0, 40, &out);
    EXPECT_EQ(cache.position(0), 40);
    const StateBytes bytes = cache.state_bytes();
    const int64_t row = kLayers * 2 * kKvHeads * kDim * 4;
    EXPECT_EQ(bytes.window, row * (method == CacheMethod::kFull ? 40 : 5));
    EXPECT_EQ(bytes.sinks, method == CacheMethod::kStreamingLlm ? 2 * row : 0);
    const int64_t matrix = kLayers * kKvHeads * kDim * kDim * 4, z = kLayers * kKvHeads * kDim * 4;
    EXPECT_EQ(bytes.memory, method == CacheMethod::kTensorCache ? matrix
                            : method == CacheMethod::kInfini    ? matrix + z
                                                                : 0);
    if (method != CacheMethod::kFull) {
      EXPECT_EQ(bytes.total(), at_start);
    }
    const StateBytes formula = runtime::StateBytesAfter(cache.config(), 40);
    EXPECT_EQ(formula.window, bytes.window);
    EXPECT_EQ(formula.sinks, bytes.sinks);
    EXPECT_EQ(formula.memory, bytes.memory);
  }
  TwoLevelCacheConfig bf16 = Config(CacheMethod::kWindow);
  bf16.ring = RingType::kBf16;
  EXPECT_EQ(Make(bf16).state_bytes().window * 2, Make(Config(CacheMethod::kWindow)).state_bytes().window);
}

TEST(TwoLevelCache, AppendsWithoutAttendingOrReading) {
  const Sequence s(30);
  for (const CacheMethod method : AllMethods()) {
    TwoLevelCache attends = Make(Config(method)), appends = Make(Config(method));
    Outputs expected, actual;
    CacheWorkspace workspace;
    for (const auto& [first, count] : {std::pair(0, 17), std::pair(17, 1)}) {
      Feed(attends, s, first, count, &expected);
      const auto keys = static_cast<size_t>(first * kKvHeads * kDim);
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        const CacheBlock block = {
            .tokens = count, .q = &s.q[static_cast<size_t>(first * kHeads * kDim)], .k = &s.k[keys], .v = &s.v[keys]};
        ASSERT_TRUE(appends.Advance(layer, block, workspace).ok());
      }
    }
    actual = expected;
    Feed(attends, s, 18, 12, &expected);
    Feed(appends, s, 18, 12, &actual);
    EXPECT_EQ(actual.local, expected.local);
    if (attends.HasMemory(0)) {
      EXPECT_EQ(actual.reads, expected.reads);
    }
  }
}

TEST(TwoLevelCache, ForksAndClearsAreIndependent) {
  const Sequence s(40), other(40, 2);
  for (const CacheMethod method : AllMethods()) {
    TwoLevelCache cache = Make(Config(method));
    Outputs out;
    Feed(cache, s, 0, 20, &out);
    TwoLevelCache fork = *cache.Fork(), second = *fork.Fork();
    Outputs expected = out, ignored = out, forked = out, again = out;
    Feed(fork, other, 20, 20, &ignored);  // must not be seen by the others
    Feed(cache, s, 20, 20, &expected);
    Feed(second, s, 20, 20, &forked);
    EXPECT_EQ(forked.local, expected.local);

    cache.Clear();
    EXPECT_EQ(cache.position(), 0);
    Outputs fresh;
    Feed(cache, s, 0, 20, &fresh);
    EXPECT_EQ(fresh.local, out.local);
  }
}

// A thread for each range, and the ranges in no order.
class ManyThreads : public Executor {
 public:
  int workers() const override { return 3; }
  void Run(int64_t n, const Body& body) override {
    std::vector<std::thread> threads;
    for (int worker = 0; worker < workers(); ++worker) {
      threads.emplace_back([=, this, &body] {
        for (int64_t i = worker; i < n; i += workers()) body(i, i + 1, worker);
      });
    }
    for (std::thread& thread : threads) thread.join();
    ++runs;
  }
  int runs = 0;
};

// One that gives up after some of the work.
class Throwing : public Executor {
 public:
  int workers() const override { return 1; }
  void Run(int64_t /*n*/, const Body& body) override {
    body(0, 1, 0);
    throw std::runtime_error("no more threads");
  }
};

TEST(TwoLevelCache, ThreadsThatThrowLeaveItUnusableUntilItIsCleared) {
  const Sequence s(4);
  TwoLevelCache cache = Make(Config(CacheMethod::kTensorCache));
  Throwing threads;
  CacheWorkspace thrown(&threads), workspace;
  const CacheBlock block = {.tokens = 4, .q = s.q.data(), .k = s.k.data(), .v = s.v.data()};
  EXPECT_EQ(cache.Advance(0, block, thrown).code(), StatusCode::kIoError);
  EXPECT_EQ(cache.Advance(0, block, workspace).code(), StatusCode::kIoError) << "some of its heads are ahead";
  cache.Clear();
  EXPECT_TRUE(cache.Advance(0, block, workspace).ok());
}

TEST(TwoLevelCache, ThreadsAreLentAndChangeNothing) {
  const Sequence s(30);
  const TwoLevelCacheConfig config = Config(CacheMethod::kTensorCache);
  const Outputs expected = RunLayer(config, s, {30});
  TwoLevelCache cache = Make(config);
  ManyThreads threads;
  CacheWorkspace workspace(&threads);
  Outputs out{.local = Rows(expected.local.size()), .reads = Rows(expected.reads.size())};
  const CacheBlock block = {.tokens = 30,
                            .q = s.q.data(),
                            .k = s.k.data(),
                            .v = s.v.data(),
                            .local = out.local.data(),
                            .reads = out.reads.data()};
  ASSERT_TRUE(cache.Advance(0, block, workspace).ok());
  EXPECT_EQ(out.local, expected.local);
  EXPECT_EQ(out.reads, expected.reads);
  EXPECT_EQ(threads.runs, 1);
}

TEST(TwoLevelCache, ManyAdvanceAtOnceAsEachAlone) {
  const Sequence a(30), b(30, 2);
  TwoLevelCache x = Make(Config(CacheMethod::kTensorCache)), y = Make(Config(CacheMethod::kStreamingLlm));
  TwoLevelCache x_alone = *x.Fork(), y_alone = *y.Fork();
  Outputs ax, by;
  Advance(x_alone, 0, a, 0, 11, &ax);
  Advance(y_alone, 0, b, 0, 7, &by);
  Rows local_x(ax.local.size()), local_y(by.local.size()), reads_x(ax.reads.size());
  CacheWorkspace workspace;
  const TwoLevelCache::Step steps[] = {
      {&x,
       {.tokens = 11,
        .q = a.q.data(),
        .k = a.k.data(),
        .v = a.v.data(),
        .local = local_x.data(),
        .reads = reads_x.data()}},
      {&y, {.tokens = 7, .q = b.q.data(), .k = b.k.data(), .v = b.v.data(), .local = local_y.data()}}};
  ASSERT_TRUE(TwoLevelCache::AdvanceAll(0, steps, workspace).ok());
  EXPECT_EQ(local_x, ax.local);
  EXPECT_EQ(reads_x, ax.reads);
  EXPECT_EQ(local_y, by.local);
}

// A workspace keeps the last rotations. Caches come and go, some at the same place in memory.
TEST(TwoLevelCache, AWorkspaceTakesNoCacheForAnother) {
  const Sequence s(8);
  const auto run = [&](double theta, CacheWorkspace& workspace) {
    TwoLevelCacheConfig config = Config(CacheMethod::kWindow);
    config.rope.theta = theta;
    TwoLevelCache cache = Make(config);
    Rows local(s.q.size());
    EXPECT_TRUE(cache
                    .Advance(0, {.tokens = 8, .q = s.q.data(), .k = s.k.data(), .v = s.v.data(), .local = local.data()},
                             workspace)
                    .ok());
    return local;
  };
  CacheWorkspace shared;
  for (const double theta : {10000.0, 50.0, 10000.0, 3.0}) {
    CacheWorkspace fresh;
    const Rows expected = run(theta, fresh);
    EXPECT_EQ(run(theta, shared), expected) << theta;
  }
}

TEST(TwoLevelCache, ShowsItsMatrices) {
  const Sequence s(6);
  TwoLevelCache cache = Make(Config(CacheMethod::kTensorCache));
  Outputs out;
  Advance(cache, 0, s, 0, 6, &out);  // evicts tokens 0; W = 5
  const std::span<const float> A = cache.MemoryOf(0, 1);
  ASSERT_EQ(A.size(), static_cast<size_t>(kDim * kDim));
  for (int64_t i = 0; i < kDim; ++i) {
    for (int64_t j = 0; j < kDim; ++j) {
      const double expected = kEta * RowOf(s.k, kKvHeads, 0, 1)[static_cast<size_t>(i)] *
                              RowOf(s.v, kKvHeads, 0, 1)[static_cast<size_t>(j)];
      EXPECT_NEAR(A[static_cast<size_t>(i * kDim + j)], expected, 1e-6);
    }
  }
  EXPECT_TRUE(cache.MemoryOf(0, 2).empty());
  EXPECT_TRUE(cache.MemoryOf(2, 0).empty());
  EXPECT_TRUE(Make(Config(CacheMethod::kWindow)).MemoryOf(0, 0).empty());
}

// ----- bad input -----------------------------------------------------------------------------------------------------

void ExpectRefused(const TwoLevelCacheConfig& config, const std::string& word) {
  const Result<TwoLevelCache> cache = TwoLevelCache::Create(config);
  ASSERT_FALSE(cache.ok()) << word;
  EXPECT_NE(cache.status().message().find(word), std::string::npos) << cache.status().message();
}

TEST(TwoLevelCache, RefusesImpossibleConfigs) {
  const TwoLevelCacheConfig good = Config(CacheMethod::kTensorCache);
  const auto with = [&](auto change) {
    TwoLevelCacheConfig config = good;
    change(config);
    return config;
  };
  ExpectRefused(with([](auto& c) { c.layers = 0; }), "layers");
  ExpectRefused(with([](auto& c) { c.query_heads = 3; }), "kv_heads");
  ExpectRefused(with([](auto& c) { c.head_dim = 7; }), "head_dim");
  ExpectRefused(with([](auto& c) { c.cache.window = 0; }), "window");
  ExpectRefused(with([](auto& c) { c.cache.window = int64_t{1} << 40; }), "window");
  ExpectRefused(with([](auto& c) { c.rope.theta = 0.5; }), "base");
  ExpectRefused(with([](auto& c) { c.cache.tensor_cache.router.slots = 4; }), "slot_keys");
  // Numbers that no C++ compiler checks.
  ExpectRefused(with([](auto& c) { c.cache.method = static_cast<CacheMethod>(77); }), "method");
  ExpectRefused(with([](auto& c) { c.cache.method = static_cast<CacheMethod>(-1); }), "method");
  ExpectRefused(with([](auto& c) { c.ring = static_cast<RingType>(9); }), "ring");
  ExpectRefused(with([](auto& c) { c.rope.pairing = static_cast<RopePairing>(9); }), "pairing");
  ExpectRefused(with([](auto& c) { c.cache.tensor_cache.write.rule = static_cast<WriteRule>(9); }), "write.rule");
  ExpectRefused(with([](auto& c) {
                  c.cache.method = CacheMethod::kWindow;  // which has no use for it
                  c.cache.tensor_cache.write.rule = static_cast<WriteRule>(9);
                }),
                "write.rule");
  ExpectRefused(with([](auto& c) { c.rope.scaling.rope_type = static_cast<RopeScalingKind>(9); }), "rope_type");
  ExpectRefused(with([](auto& c) { c.rope.scaling = {.rope_type = RopeScalingKind::kLinear, .factor = NAN}; }),
                "factor");
  ExpectRefused(with([](auto& c) { c.rope.scaling = {.rope_type = RopeScalingKind::kLinear, .factor = -3}; }),
                "factor");
  ExpectRefused(with([](auto& c) { c.cache.tensor_cache.write.lambda_init = NAN; }), "lambda_init");
  ExpectRefused(with([](auto& c) { c.rope.theta = NAN; }), "base");
  ExpectRefused(with([](auto& c) { c.rope.ntk_factor = NAN; }), "ntk_factor");
  EXPECT_FALSE(TwoLevelCache::Create(good, std::vector<LearnedNumbers>(3)).ok());
  std::vector<LearnedNumbers> wrong(kLayers);
  wrong[1]["eta_logit"] = {1};
  EXPECT_FALSE(TwoLevelCache::Create(good, wrong).ok());
  for (const float number : {NAN, INFINITY}) {
    wrong[1] = {{"lambda_logit", {0, number}}};
    const Status status = TwoLevelCache::Create(good, wrong).status();
    EXPECT_NE(status.message().find("lambda_logit"), std::string::npos) << status.message();
  }
}

TEST(TwoLevelCache, RefusesImpossibleBlocks) {
  const Sequence s(4);
  TwoLevelCache cache = Make(Config(CacheMethod::kTensorCache));
  CacheWorkspace workspace;
  const CacheBlock good = {.tokens = 4, .q = s.q.data(), .k = s.k.data(), .v = s.v.data()};
  EXPECT_FALSE(cache.Advance(-1, good, workspace).ok());
  EXPECT_FALSE(cache.Advance(kLayers, good, workspace).ok());
  for (const auto change : {+[](CacheBlock& b) { b.tokens = 0; }, +[](CacheBlock& b) { b.k = nullptr; },
                            +[](CacheBlock& b) { b.q_stride = kHeads * kDim - 1; }}) {
    CacheBlock block = good;
    change(block);
    EXPECT_FALSE(cache.Advance(0, block, workspace).ok());
  }
  EXPECT_EQ(cache.position(0), 0);
  TwoLevelCache other = Make(Config(CacheMethod::kWindow));
  const std::vector<TwoLevelCache::Step> twice = {{&cache, good}, {&other, good}, {&cache, good}};
  EXPECT_EQ(TwoLevelCache::AdvanceAll(0, twice, workspace).code(), StatusCode::kInvalidArgument);
  const std::vector<TwoLevelCache::Step> null = {{&cache, good}, {nullptr, good}};
  EXPECT_EQ(TwoLevelCache::AdvanceAll(0, null, workspace).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cache.position(0), 0);
  EXPECT_EQ(other.position(0), 0);
}

// The delta rule with keys far too long doubles its error with every write.
TEST(TwoLevelCache, SaysThatItDivergedInBlocksOfAnyLength) {
  Sequence s(400);
  for (float& k : s.k) k *= 30;
  for (const CacheMethod method : {CacheMethod::kTensorCache, CacheMethod::kInfini}) {
    for (const int64_t block : {1, 50}) {
      TwoLevelCacheConfig config = Config(method);
      config.cache.tensor_cache.write.rule = WriteRule::kDelta;
      TwoLevelCache cache = Make(config);
      Sequence numbers = s;
      if (method == CacheMethod::kInfini) numbers.v[static_cast<size_t>(300 * kKvHeads * kDim)] = INFINITY;
      CacheWorkspace workspace;
      Status status;
      int64_t t = 0;
      Rows local(static_cast<size_t>(block * kHeads * kDim)), reads = local;
      const auto block_at = [&](int64_t first) {
        return CacheBlock{.tokens = block,
                          .q = &numbers.q[static_cast<size_t>(first * kHeads * kDim)],
                          .k = &numbers.k[static_cast<size_t>(first * kKvHeads * kDim)],
                          .v = &numbers.v[static_cast<size_t>(first * kKvHeads * kDim)],
                          .local = local.data(),
                          .reads = reads.data()};
      };
      for (; t < s.tokens && status.ok(); t += block) status = cache.Advance(0, block_at(t), workspace);
      ASSERT_EQ(status.code(), StatusCode::kDiverged) << "blocks of " << block;
      // It says so again until it is cleared.
      EXPECT_EQ(cache.Advance(0, block_at(0), workspace).code(), StatusCode::kDiverged);
      EXPECT_EQ(cache.Advance(1, block_at(0), workspace).code(), StatusCode::kDiverged);
      EXPECT_FALSE(cache.Save("/tmp/never").ok());
      cache.Clear();
      CacheBlock first = block_at(0);
      first.tokens = 1;
      EXPECT_TRUE(cache.Advance(0, first, workspace).ok());
    }
  }
}

TEST(TwoLevelCache, LayersThatAreNotThereHaveNothing) {
  const TwoLevelCache cache = Make(Config(CacheMethod::kTensorCache));
  for (const int64_t layer : {int64_t{-1}, kLayers, INT64_MAX}) {
    EXPECT_EQ(cache.position(layer), 0);
    EXPECT_FALSE(cache.HasMemory(layer));
    EXPECT_TRUE(cache.MemoryOf(layer, 0).empty());
  }
}

TEST(TwoLevelCache, MovedFromIsEmpty) {
  const Sequence s(4);
  TwoLevelCache cache = Make(Config(CacheMethod::kTensorCache));
  const TwoLevelCache taken = std::move(cache);
  CacheWorkspace workspace;
  // NOLINTBEGIN(bugprone-use-after-move): that is what is tested.
  EXPECT_FALSE(cache.Advance(0, {.tokens = 4, .q = s.q.data(), .k = s.k.data(), .v = s.v.data()}, workspace).ok());
  EXPECT_EQ(cache.position(), 0);
  EXPECT_FALSE(cache.HasMemory(0));
  EXPECT_EQ(cache.state_bytes().total(), 0);
  EXPECT_EQ(cache.config().layers, 1);
  EXPECT_FALSE(cache.Fork().ok());
  EXPECT_FALSE(cache.Save("/tmp/never").ok());
  EXPECT_FALSE(cache.Load("/tmp/never").ok());
  EXPECT_TRUE(cache.MemoryOf(0, 0).empty());
  cache.Clear();
  // NOLINTEND(bugprone-use-after-move)
}

}  // namespace
}  // namespace tensorcache
