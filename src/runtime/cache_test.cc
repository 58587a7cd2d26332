// The cache as another engine would use it: against the formulas, written down plainly in double.
#include "tensorcache/cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "core/checksum.h"
#include "core/file.h"
#include "core/rng.h"
#include "testing/temp_folder.h"

namespace tensorcache {
namespace {

constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 6, kGroup = kHeads / kKvHeads, kLayers = 2;
constexpr double kLambda = 0.9, kEta = 0.3;

TwoLevelCacheConfig Config(CacheMethod method) {
  TwoLevelCacheConfig config{.layers = kLayers, .query_heads = kHeads, .kv_heads = kKvHeads, .head_dim = kDim};
  config.cache.method = method;
  config.cache.window = 5;
  config.cache.sinks = 2;
  config.cache.tensor_cache.lambda_init = kLambda;
  config.cache.tensor_cache.eta_init = kEta;
  return config;
}

using Rows = std::vector<float>;

struct Sequence {
  explicit Sequence(int64_t n, uint64_t seed = 1) : tokens(n) {
    Rng rng(seed);
    for (auto [rows, heads] : {std::pair(&q, kHeads), std::pair(&k, kKvHeads), std::pair(&v, kKvHeads)}) {
      rows->resize(static_cast<size_t>(n * heads * kDim));
      for (float& x : *rows) x = static_cast<float>(rng.Normal());
    }
  }
  int64_t tokens;
  Rows q, k, v;
};

struct Outputs {
  Rows local, reads;  // (tokens, H, D), both
};

TwoLevelCache Make(const TwoLevelCacheConfig& config) {
  Result<TwoLevelCache> cache = TwoLevelCache::Create(config);
  EXPECT_TRUE(cache.ok()) << cache.status().message();
  return std::move(cache).value();
}

// Tokens [first, first + count) of the sequence through one layer; appends to `out`.
void Advance(TwoLevelCache& cache, int64_t layer, const Sequence& s, int64_t first, int64_t count, Outputs* out) {
  CacheWorkspace workspace;
  const int64_t queries = kHeads * kDim, keys = kKvHeads * kDim;
  const auto at = static_cast<size_t>(first * queries);
  out->local.resize(at + static_cast<size_t>(count * queries), NAN);
  out->reads.resize(out->local.size(), NAN);
  const Status status = cache.Advance(layer,
                                      {.tokens = count,
                                       .q = &s.q[at],
                                       .k = &s.k[static_cast<size_t>(first * keys)],
                                       .v = &s.v[static_cast<size_t>(first * keys)],
                                       .local = &out->local[at],
                                       .reads = &out->reads[at]},
                                      workspace);
  ASSERT_TRUE(status.ok()) << status.message();
}

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
      if (config.cache.tensor_cache.rule == WriteRule::kDelta) {
        for (size_t j = 0; j < u.size(); ++j) {
          for (size_t a = 0; a < k.size(); ++a) u[j] -= k[a] * A[a][j];
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
    for (const WriteRule rule : {WriteRule::kOuter, WriteRule::kDelta}) {
      TwoLevelCacheConfig config = Config(CacheMethod::kTensorCache);
      config.rope.enabled = rope;
      config.cache.tensor_cache.rule = rule;
      ExpectFormulas(config, /*has_reads=*/true);
    }
  }
}

TEST(TwoLevelCache, OtherMethodsHaveNoReads) {
  ExpectFormulas(Config(CacheMethod::kWindow), /*has_reads=*/false);
  ExpectFormulas(Config(CacheMethod::kFull), /*has_reads=*/false);
}

// ----- the interface -------------------------------------------------------------------------------------------------

constexpr CacheMethod kAllMethods[] = {CacheMethod::kFull, CacheMethod::kWindow, CacheMethod::kStreamingLlm,
                                       CacheMethod::kInfini, CacheMethod::kTensorCache};

void Feed(TwoLevelCache& cache, const Sequence& s, int64_t first, int64_t count, Outputs* out) {
  for (int64_t layer = 0; layer < kLayers; ++layer) Advance(cache, layer, s, first, count, out);
}

TEST(TwoLevelCache, TellsWhatItKeeps) {
  const Sequence s(40);
  for (const CacheMethod method : kAllMethods) {
    TwoLevelCache cache = Make(Config(method));
    const int64_t at_start = cache.memory().total();
    Outputs out;
    Feed(cache, s, 0, 40, &out);
    EXPECT_EQ(cache.position(0), 40);
    const CacheMemory bytes = cache.memory();
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
  }
  TwoLevelCacheConfig bf16 = Config(CacheMethod::kWindow);
  bf16.ring = RingType::kBf16;
  EXPECT_EQ(Make(bf16).memory().window * 2, Make(Config(CacheMethod::kWindow)).memory().window);
}

TEST(TwoLevelCache, AppendsWithoutAttendingOrReading) {
  const Sequence s(30);
  for (const CacheMethod method : kAllMethods) {
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
  for (const CacheMethod method : kAllMethods) {
    TwoLevelCache cache = Make(Config(method));
    Outputs out;
    Feed(cache, s, 0, 20, &out);
    TwoLevelCache fork = cache.Fork(), second = fork.Fork();
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

TEST(TwoLevelCache, ManyAdvanceAtOnceAsEachAlone) {
  const Sequence a(30), b(30, 2);
  TwoLevelCache x = Make(Config(CacheMethod::kTensorCache)), y = Make(Config(CacheMethod::kStreamingLlm));
  TwoLevelCache x_alone = x.Fork(), y_alone = y.Fork();
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
  ExpectRefused(with([](auto& c) { c.cache.tensor_cache.slots = 4; }), "slot_keys");
  ExpectRefused(with([](auto& c) {
                  c.rope.enabled = false;
                  c.cache.tensor_cache.memory_rope = false;
                }),
                "rope");
  EXPECT_FALSE(TwoLevelCache::Create(good, std::vector<MemoryParameters>(3)).ok());
  std::vector<MemoryParameters> wrong(kLayers);
  wrong[1].eta_logit = {1};
  EXPECT_FALSE(TwoLevelCache::Create(good, wrong).ok());
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
}

class CacheFiles : public ::testing::Test {
 protected:
  CacheFiles() : cache_(Make(Config(CacheMethod::kTensorCache))) {
    Outputs out;
    Feed(cache_, sequence_, 0, 20, &out);
    EXPECT_TRUE(cache_.Save(path_).ok());
    content_ = ReadWholeFile(path_, 1 << 20).value();
  }
  void ExpectLoadFails(const std::string& content, const std::string& word) {
    folder_.Put("broken", content);
    const Status status = cache_.Load(folder_.Path("broken"));
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
    EXPECT_EQ(cache_.position(), 20);
  }

  const testing::TempFolder folder_;
  const std::string path_ = folder_.Path("cache");
  const Sequence sequence_{40};
  TwoLevelCache cache_;
  std::string content_;
};

TEST_F(CacheFiles, AreTheSameStateAgain) {
  for (const CacheMethod method : kAllMethods) {
    TwoLevelCache original = Make(Config(method)), loaded = Make(Config(method));
    Outputs expected;
    Feed(original, sequence_, 0, 20, &expected);
    ASSERT_TRUE(original.Save(path_).ok());
    const Status status = loaded.Load(path_);
    ASSERT_TRUE(status.ok()) << status.message();
    Outputs actual = expected;
    Feed(original, sequence_, 20, 20, &expected);
    Feed(loaded, sequence_, 20, 20, &actual);
    EXPECT_EQ(actual.local, expected.local);
  }
}

TEST_F(CacheFiles, WithAnyBitFlippedAreRefused) {
  for (size_t byte = 0; byte < content_.size(); ++byte) {
    std::string broken = content_;
    broken[byte] = static_cast<char>(broken[byte] ^ 1 << byte % 8);
    folder_.Put("broken", broken);
    EXPECT_FALSE(cache_.Load(folder_.Path("broken")).ok()) << byte;
  }
}

TEST_F(CacheFiles, CutOrLongerAreRefused) {
  for (size_t size = 0; size < content_.size(); size += 7) {
    folder_.Put("broken", content_.substr(0, size));
    EXPECT_FALSE(cache_.Load(folder_.Path("broken")).ok()) << size;
  }
  ExpectLoadFails(content_.substr(0, content_.size() - 1), "checksum");
  ExpectLoadFails(content_ + "x", "checksum");
  ExpectLoadFails("", "too few");
  ExpectLoadFails("some other file, long enough to be a state, but not one at all", "not a saved state");
  EXPECT_FALSE(cache_.Load(folder_.Path("nowhere")).ok());
}

// `content` with a checksum that fits.
std::string Resealed(std::string content) {
  content.resize(content.size() - sizeof(uint64_t));
  Crc64 crc;
  crc.Add(std::as_bytes(std::span(content)));
  const uint64_t value = crc.value();
  content.append(reinterpret_cast<const char*>(&value), sizeof(value));
  return content;
}

TEST_F(CacheFiles, OfAnotherVersionOrKindAreRefused) {
  std::string other = content_;
  other[8] = 1;
  ExpectLoadFails(Resealed(other), "version 1");
  other = content_;
  other[12] = 2;
  ExpectLoadFails(Resealed(other), "session");
  // A writer's mistake behind a good checksum.
  ExpectLoadFails(Resealed(content_ + std::string(16, '\0')), "longer");
  ExpectLoadFails(Resealed(content_.substr(0, content_.size() - 16)), "shorter");
}

TEST_F(CacheFiles, OfAnotherConfigAreRefused) {
  for (const auto change :
       {+[](TwoLevelCacheConfig& c) { c.cache.window = 6; }, +[](TwoLevelCacheConfig& c) { c.ring = RingType::kBf16; },
        +[](TwoLevelCacheConfig& c) { c.cache.method = CacheMethod::kWindow; },
        +[](TwoLevelCacheConfig& c) { c.rope.theta = 500; }}) {
    TwoLevelCacheConfig config = Config(CacheMethod::kTensorCache);
    change(config);
    const Status status = Make(config).Load(path_);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find("another config"), std::string::npos) << status.message();
  }
}

TEST_F(CacheFiles, ThatCannotBeWrittenLeaveTheOldOnes) {
  EXPECT_FALSE(cache_.Save(folder_.Path("no/such/folder")).ok());
  EXPECT_EQ(ReadWholeFile(path_, 1 << 20).value(), content_);
}

}  // namespace
}  // namespace tensorcache
