// Caches, models and sessions when memory runs out, at any allocation: a Status, and an object that is still of use.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/cache_testing.h"
#include "tensorcache/sampling.h"
#include "tensorcache/session.h"
#include "testing/failing_allocations.h"
#include "testing/temp_folder.h"

namespace tensorcache {
namespace {

using namespace cache_testing;  // NOLINT(google-build-using-namespace)
using testing::FailAllocationsAfter;
using testing::WithFewAllocations;

// OK, or the machine's fault.
void ExpectHonest(const Status& status) {
  if (!status.ok()) {
    EXPECT_EQ(status.code(), StatusCode::kIoError) << status.message();
  }
}

TEST(OutOfMemory, CachesAreMadeOrNot) {
  for (const CacheMethod method : AllMethods()) {
    WithFewAllocations([&] { return TwoLevelCache::Create(Config(method)); },
                       [](const Result<TwoLevelCache>& cache) { ExpectHonest(cache.status()); });
  }
}

TEST(OutOfMemory, CachesThatCannotGoOnSaySoUntilTheyAreCleared) {
  const Sequence s(40);
  for (const CacheMethod method : AllMethods()) {
    for (const int64_t block : {1, 12}) {
      Outputs expected;
      TwoLevelCache fresh = Make(Config(method));
      Advance(fresh, 0, s, 0, block, &expected);
      TwoLevelCache cache = Make(Config(method));
      Rows local(static_cast<size_t>(block * kHeads * kDim)), reads = local;
      const CacheBlock next = {.tokens = block,
                               .q = s.q.data(),
                               .k = s.k.data(),
                               .v = s.v.data(),
                               .local = local.data(),
                               .reads = reads.data()};
      bool has_failed = true;
      for (int64_t allowed = 0; has_failed; ++allowed) {
        CacheWorkspace workspace;
        Status status;
        {
          const FailAllocationsAfter failing(allowed);
          status = cache.Advance(0, next, workspace);
          has_failed = failing.has_failed();
        }
        ExpectHonest(status);
        EXPECT_EQ(cache.position(0), status.ok() ? block : 0);
        if (status.ok()) {
          EXPECT_EQ(local, expected.local);
        }
        cache.Clear();
        ASSERT_TRUE(cache.Advance(0, next, workspace).ok());
        EXPECT_EQ(local, expected.local);
        cache.Clear();
      }
    }
  }
}

TEST(OutOfMemory, ForksSavesAndLoadsLeaveTheCacheAsItWas) {
  const testing::TempFolder folder;
  const std::string path = folder.Path("cache");
  const Sequence s(40);
  TwoLevelCache cache = Make(Config(CacheMethod::kTensorCache)), other = Make(Config(CacheMethod::kTensorCache));
  Outputs out;
  Feed(cache, s, 0, 20, &out);
  ASSERT_TRUE(cache.Save(path).ok());
  Feed(other, s, 0, 7, &out);
  WithFewAllocations([&] { return cache.Fork(); },
                     [](const Result<TwoLevelCache>& fork) { ExpectHonest(fork.status()); });
  WithFewAllocations([&] { return cache.Save(path); },
                     [&](const Status& status) {
                       ExpectHonest(status);
                       TwoLevelCache loaded = Make(Config(CacheMethod::kTensorCache));
                       EXPECT_TRUE(loaded.Load(path).ok());
                     });
  WithFewAllocations([&] { return other.Load(path); },
                     [&](const Status& status) {
                       ExpectHonest(status);
                       EXPECT_EQ(other.position(), status.ok() ? 20 : 7);
                     });
}

ModelConfig SmallModel() {
  ModelConfig config;
  config.vocab_size = 50;
  config.hidden_size = 32;
  config.intermediate_size = 64;
  config.num_hidden_layers = 1;
  config.cache.window = 8;
  return config;
}

using SharedModel = std::shared_ptr<const Model>;

TEST(OutOfMemory, ModelsAreMadeOrNot) {
  // A pool that cannot have its threads has fewer; the model is the same.
  WithFewAllocations([&] { return Model::Random(SmallModel(), {.threads = 1}); },
                     [](const Result<SharedModel>& model) { ExpectHonest(model.status()); });
}

TEST(OutOfMemory, SessionsThatCannotGoOnSaySoUntilTheyAreCleared) {
  const SharedModel model = Model::Random(SmallModel(), {.threads = 1}).value();
  const std::vector<int32_t> text = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  Session expected = Session::Create(model).value();
  ASSERT_TRUE(expected.Prefill(text).ok());
  WithFewAllocations([&] { return Session::Create(model); },
                     [](const Result<Session>& session) { ExpectHonest(session.status()); });
  Session session = Session::Create(model).value();
  WithFewAllocations([&] { return session.Prefill(text); },
                     [&](const Status& status) {
                       ExpectHonest(status);
                       EXPECT_EQ(session.Decode(1).ok(), status.ok());
                       session.Clear();
                       ASSERT_TRUE(session.Prefill(text).ok());
                       EXPECT_TRUE(std::ranges::equal(session.logits(), expected.logits()));
                       session.Clear();
                     });
  Session batched = Session::Create(model).value();
  Session* const batch[] = {&session, &batched};
  const std::vector<int32_t> two = {1, 2};
  WithFewAllocations([&] { return Session::DecodeBatch(batch, two); },
                     [&](const Status& status) {
                       ExpectHonest(status);
                       session.Clear();
                       batched.Clear();
                     });
}

TEST(OutOfMemory, WhatSessionsAreAskedForLeavesThemAsTheyWere) {
  const SharedModel model = Model::Random(SmallModel(), {.threads = 1}).value();
  const std::vector<int32_t> text = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  Session session = Session::Create(model).value();
  ASSERT_TRUE(session.Prefill(text).ok());
  const std::vector<std::byte> bytes = session.Serialize().value();
  WithFewAllocations([&] { return session.Fork(); },
                     [&](const Result<Session>& fork) {
                       ExpectHonest(fork.status());
                       if (fork.ok()) {
                         EXPECT_EQ(fork->position(), 12);
                       }
                     });
  WithFewAllocations([&] { return session.Serialize(); },
                     [&](const Result<std::vector<std::byte>>& made) {
                       ExpectHonest(made.status());
                       if (made.ok()) {
                         EXPECT_EQ(*made, bytes);
                       }
                     });
  WithFewAllocations([&] { return Session::Deserialize(model, bytes); },
                     [&](const Result<Session>& made) { ExpectHonest(made.status()); });
  size_t logits = 0;
  for (int64_t allowed = 0; logits == 0; ++allowed) {
    const Session fork = *session.Fork();
    const FailAllocationsAfter failing(allowed);
    logits = fork.logits().size();  // none, until there is memory for all
  }
  EXPECT_EQ(logits, 50u);
  EXPECT_EQ(session.Serialize().value(), bytes);
}

TEST(OutOfMemory, TokensAreChosenOrNot) {
  const std::vector<float> logits = {1, 2, 3};
  const std::vector<int32_t> recent = {1};
  WithFewAllocations(
      [&]() -> Result<int32_t> {
        TC_ASSIGN_OR_RETURN(Sampler sampler, Sampler::Create({.top_p = 0.5, .repetition_penalty = 1.5}));
        return sampler.Sample(logits, recent, 0);
      },
      [](const Result<int32_t>& token) { ExpectHonest(token.status()); });
}

}  // namespace
}  // namespace tensorcache
