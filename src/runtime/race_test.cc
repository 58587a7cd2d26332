// Sessions on several threads, for the thread sanitizer (make test-races). The results are checked, too.
#include <gtest/gtest.h>

#include <thread>

#include "core/rng.h"
#include "tensorcache/session.h"

namespace tensorcache {
namespace {

using SharedModel = std::shared_ptr<const Model>;

ModelConfig Small() {
  ModelConfig config;
  config.vocab_size = 300;
  config.hidden_size = 64;
  config.intermediate_size = 256;
  config.num_hidden_layers = 2;
  config.cache.window = 16;
  return config;
}

std::vector<int32_t> Text(uint64_t seed) {
  std::vector<int32_t> tokens;
  Rng rng(seed);
  for (int64_t i = 0; i < 150; ++i) tokens.push_back(static_cast<int32_t>(rng.Below(300)));
  return tokens;
}

// Prefills, decodes, forks and scores; the last logits.
std::vector<float> Work(Session session, uint64_t seed) {
  const std::vector<int32_t> text = Text(seed);
  EXPECT_TRUE(session.Prefill(std::span(text).first(100)).ok());
  Session fork = *session.Fork();
  std::vector<float> nll(50);
  EXPECT_TRUE(fork.Score(std::span(text).subspan(100), nll).ok());
  for (size_t i = 100; i < text.size(); ++i) EXPECT_TRUE(session.Decode(text[i]).ok());
  return {session.logits().begin(), session.logits().end()};
}

TEST(Races, SessionsOnTwoThreadsDoNotMeet) {
  for (const int threads : {1, 2, 3}) {
    const SharedModel model = std::move(Model::Random(Small(), {.threads = threads})).value();
    // Both start from one fork: they share arrays until they write.
    Session base = std::move(Session::Create(model)).value();
    ASSERT_TRUE(base.Prefill(Text(9)).ok());
    const std::vector<float> first = Work(*base.Fork(), 1), second = Work(*base.Fork(), 2);
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::vector<float> a, b;
      std::thread other([&, session = *base.Fork()]() mutable { a = Work(std::move(session), 1); });
      b = Work(*base.Fork(), 2);
      other.join();
      EXPECT_EQ(a, first);
      EXPECT_EQ(b, second);
    }
  }
}

}  // namespace
}  // namespace tensorcache
