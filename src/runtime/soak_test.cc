// Ten million tokens through one session: it stays as large, as fast and as right as it was.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>

#include "core/config.h"
#include "core/process_memory.h"
#include "core/rng.h"
#include "tensorcache/session.h"
#include "testing/temp_folder.h"

namespace tensorcache {
namespace {

constexpr int64_t kTokens = 10'000'000, kPercent = kTokens / 100, kBlock = 500;
constexpr int64_t kVocab = 64;

// A function of the position, so that any part of the text can be read again.
int32_t TokenAt(int64_t position) {
  return static_cast<int32_t>(Rng(3, static_cast<uint64_t>(position)).Below(kVocab));
}

class Soak : public ::testing::TestWithParam<WriteRule> {
 protected:
  Soak() {
    ModelConfig config;
    config.vocab_size = kVocab;
    config.hidden_size = 32;
    config.intermediate_size = 64;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 2;
    config.num_key_value_heads = 2;
    config.cache.window = 16;
    config.cache.tensor_cache.write.rule = GetParam();
    config.cache.tensor_cache.address.normalize_keys = IsDelta(GetParam());
    Result<std::shared_ptr<const Model>> model = Model::Random(config, {.threads = 1});
    EXPECT_TRUE(model.ok()) << model.status().message();
    model_ = std::move(model).value();
  }

  static void Prefill(Session& session, int64_t until) {
    std::vector<int32_t> block;
    while (session.position() < until) {
      block.clear();
      const int64_t end = std::min(until, session.position() + kBlock);
      for (int64_t t = session.position(); t < end; ++t) block.push_back(TokenAt(t));
      const Status status = session.Prefill(block);
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
  // Token by token; seconds a token.
  static double Decode(Session& session, int64_t tokens) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < tokens; ++i) {
      const Status status = session.Decode(TokenAt(session.position()));
      EXPECT_TRUE(status.ok()) << status.message();
      if (!status.ok()) break;
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
           static_cast<double>(tokens);
  }

  std::shared_ptr<const Model> model_;
};

TEST_P(Soak, TenMillionTokensChangeNothingButThePosition) {
  const testing::TempFolder folder;
  Session session = std::move(Session::Create(model_)).value();
  const double first = Decode(session, kPercent);
  ASSERT_TRUE(session.Save(folder.Path("first")).ok());
  Prefill(session, 2 * kPercent);
  const int64_t resident = ResidentBytes(), state = session.state_bytes().total();
  while (session.position() < kTokens - kPercent) {
    Prefill(session, std::min(session.position() + kPercent - 1, kTokens - kPercent - 1));
    Decode(session, 1);
    for (const float logit : session.logits()) ASSERT_TRUE(std::isfinite(logit)) << session.position();
    EXPECT_LE(ResidentBytes(), resident + (1 << 20)) << session.position();
  }
  const double last = Decode(session, kPercent);
  EXPECT_EQ(session.position(), kTokens);
  EXPECT_EQ(session.state_bytes().total(), state);
  ASSERT_TRUE(session.Save(folder.Path("last")).ok());
  EXPECT_EQ(std::filesystem::file_size(folder.Path("last")), std::filesystem::file_size(folder.Path("first")));
  std::printf("decode: %.2f us a token at the start, %.2f us at the end, %.3f x\n", first * 1e6, last * 1e6,
              first / last);

  // Windows and rotations know only differences of positions, and the memory forgets (0.995^20000 is 1e-44): a session that
  // reads nothing but the last tokens, as if they were the first, must say the same. It would not if angles at position
  // 10^7 were a thousandth of a turn off.
  Session fresh = std::move(Session::Create(model_)).value();
  std::vector<int32_t> tail;
  for (int64_t t = kTokens - 20000; t < kTokens; ++t) tail.push_back(TokenAt(t));
  ASSERT_TRUE(fresh.Prefill(tail).ok());
  double size = 0;
  for (size_t i = 0; i < fresh.logits().size(); ++i) {
    EXPECT_NEAR(session.logits()[i], fresh.logits()[i], 1e-4);
    size = std::max(size, std::abs(static_cast<double>(fresh.logits()[i])));
  }
  EXPECT_GT(size, 0.5);  // differences would show

  Result<Session> restored = Session::Restore(model_, folder.Path("last"));
  ASSERT_TRUE(restored.ok()) << restored.status().message();
  EXPECT_EQ(restored->position(), kTokens);
  Decode(session, 20);
  Decode(*restored, 20);
  EXPECT_TRUE(std::equal(session.logits().begin(), session.logits().end(), restored->logits().begin()));
}

INSTANTIATE_TEST_SUITE_P(Rules, Soak, ::testing::Values(WriteRule::kOuter, WriteRule::kDelta, WriteRule::kGatedDelta),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

}  // namespace
}  // namespace tensorcache
