// Sessions without a train half: errors, and what src/train/run_half_test.cc does not look at.
#include "tensorcache/session.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/checksum.h"
#include "core/file.h"
#include "core/rng.h"
#include "testing/temp_folder.h"

namespace tensorcache {
namespace {

using SharedModel = std::shared_ptr<const Model>;

ModelConfig Small() {
  ModelConfig config;
  config.vocab_size = 50;
  config.hidden_size = 32;
  config.intermediate_size = 64;
  config.num_hidden_layers = 2;
  config.cache.window = 8;
  return config;
}

SharedModel Make(const ModelConfig& config = Small(), const ModelOptions& options = {.threads = 1}, uint64_t seed = 0) {
  Result<SharedModel> model = Model::Random(config, options, seed);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return std::move(model).value();
}

Session Start(const SharedModel& model) { return std::move(Session::Create(model)).value(); }

std::vector<int32_t> Text(int64_t n) {
  std::vector<int32_t> tokens;
  Rng rng(5);
  for (int64_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>(rng.Below(50)));
  return tokens;
}

std::vector<float> LogitsOf(const Session& session) { return {session.logits().begin(), session.logits().end()}; }

TEST(Session, TokensOutsideTheVocabularyChangeNothing) {
  Session session = Start(Make());
  ASSERT_TRUE(session.Prefill(Text(5)).ok());
  const std::vector<float> before = LogitsOf(session);
  for (const int32_t token : {-1, 50, INT32_MAX}) {
    const Status status = session.Decode(token);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.message().find(std::to_string(token)), std::string::npos) << status.message();
    std::vector<int32_t> tokens = Text(100);
    tokens[99] = token;
    EXPECT_FALSE(session.Prefill(tokens).ok());
    std::vector<float> nll(100);
    EXPECT_FALSE(session.Score(tokens, nll).ok());
  }
  EXPECT_EQ(session.position(), 5);
  EXPECT_EQ(LogitsOf(session), before);
}

TEST(Session, LearnedPositionsEndAndLoseNothing) {
  ModelConfig config = Small();
  config.position_embedding = PositionKind::kLearned;
  config.max_position_embeddings = 20;
  const SharedModel model = Make(config);
  Session session = Start(model), other = Start(model);
  ASSERT_TRUE(session.Prefill(Text(18)).ok());
  const std::vector<float> before = LogitsOf(session);
  std::vector<float> nll(3);
  Session* const both[] = {&session, &other};
  EXPECT_EQ(session.Prefill(Text(3)).code(), StatusCode::kUnsupported);
  EXPECT_EQ(session.Score(Text(3), nll).code(), StatusCode::kUnsupported);
  EXPECT_EQ(session.position(), 18);
  EXPECT_EQ(LogitsOf(session), before);
  ASSERT_TRUE(session.Prefill(Text(2)).ok());
  EXPECT_FALSE(Session::DecodeBatch(both, Text(2)).ok());
  EXPECT_EQ(other.position(), 0);
}

TEST(Session, NothingToReadIsFine) {
  Session session = Start(Make());
  EXPECT_TRUE(session.Prefill({}).ok());
  EXPECT_TRUE(session.logits().empty());
  EXPECT_EQ(session.position(), 0);
  EXPECT_TRUE(session.Score({}, {}).ok());
}

TEST(Session, WrongRoomIsRefused) {
  Session session = Start(Make());
  std::vector<float> room(7);
  EXPECT_FALSE(session.PrefillLogits(Text(3), room).ok());
  EXPECT_FALSE(session.Score(Text(3), room).ok());
  EXPECT_EQ(session.position(), 0);
}

TEST(Session, RemembersRecentTokens) {
  Session session = Start(Make());
  const std::vector<int32_t> text = Text(1500);
  ASSERT_TRUE(session.Prefill(std::span(text).first(1200)).ok());
  for (size_t i = 1200; i < text.size(); ++i) ASSERT_TRUE(session.Decode(text[i]).ok());
  ASSERT_EQ(session.recent().size(), static_cast<size_t>(Session::kRecentTokens));
  EXPECT_TRUE(std::equal(session.recent().begin(), session.recent().end(), text.end() - Session::kRecentTokens));
}

TEST(Session, BatchesAreChecked) {
  const SharedModel model = Make(), other = Make();
  Session a = Start(model), b = Start(model), c = Start(other);
  const std::vector<int32_t> tokens = {1, 2};
  Session* const twice[] = {&a, &a};
  Session* const foreign[] = {&a, &c};
  Session* const good[] = {&a, &b};
  EXPECT_FALSE(Session::DecodeBatch(twice, tokens).ok());
  EXPECT_FALSE(Session::DecodeBatch(foreign, tokens).ok());
  EXPECT_FALSE(Session::DecodeBatch(good, std::span(tokens).first(1)).ok());
  const std::vector<int32_t> bad = {1, 99};
  EXPECT_FALSE(Session::DecodeBatch(good, bad).ok());
  EXPECT_EQ(a.position(), 0);
  Session moved = Start(model);
  const Session taken = std::move(moved);
  Session* const null[] = {&a, nullptr};
  Session* const empty[] = {&a, &moved};  // NOLINT(bugprone-use-after-move)
  EXPECT_FALSE(Session::DecodeBatch(null, tokens).ok());
  EXPECT_FALSE(Session::DecodeBatch(empty, tokens).ok());
  EXPECT_EQ(a.position(), 0);
  EXPECT_TRUE(Session::DecodeBatch({}, {}).ok());
  EXPECT_TRUE(Session::DecodeBatch(good, tokens).ok());
  EXPECT_EQ(b.position(), 1);
  std::vector<float> logits(2 * 50);
  const Session* const both[] = {&a, &b};
  EXPECT_FALSE(Session::BatchLogits(both, std::span(logits).first(99)).ok());
  ASSERT_TRUE(Session::BatchLogits(both, logits).ok());
  EXPECT_TRUE(std::equal(logits.begin(), logits.begin() + 50, a.logits().begin()));
  EXPECT_TRUE(std::equal(logits.begin() + 50, logits.end(), b.logits().begin()));
  const Session* const fresh[] = {&taken};
  EXPECT_FALSE(Session::BatchLogits(fresh, std::span(logits).first(50)).ok());
}

TEST(Session, NeedsAModel) {
  EXPECT_EQ(Session::Create(nullptr).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Session::Restore(nullptr, "/tmp/never").status().code(), StatusCode::kInvalidArgument);
}

TEST(Session, MovedFromIsEmpty) {
  Session session = Start(Make());
  const Session taken = std::move(session);
  const std::vector<int32_t> text = Text(3);
  std::vector<float> numbers(3);
  // NOLINTBEGIN(bugprone-use-after-move): that is what is tested.
  EXPECT_FALSE(session.Prefill(text).ok());
  EXPECT_FALSE(session.Score(text, numbers).ok());
  EXPECT_FALSE(session.Save("/tmp/never").ok());
  EXPECT_FALSE(session.Serialize().ok());
  EXPECT_FALSE(session.Fork().ok());
  EXPECT_TRUE(session.logits().empty());
  EXPECT_TRUE(session.recent().empty());
  EXPECT_EQ(session.position(), 0);
  EXPECT_EQ(session.state_bytes().total(), 0);
  session.Clear();
  // NOLINTEND(bugprone-use-after-move)
}

TEST(Session, LargeBatchesAreLikeEachAlone) {
  const SharedModel model = Make();
  std::vector<Session> sessions, alone;
  std::vector<Session*> batch;
  const std::vector<int32_t> text = Text(75);
  for (int i = 0; i < 75; ++i) sessions.push_back(Start(model));
  for (Session& session : sessions) {
    batch.push_back(&session);
    alone.push_back(*session.Fork());
  }
  for (int step = 0; step < 3; ++step) ASSERT_TRUE(Session::DecodeBatch(batch, text).ok());
  for (size_t i = 0; i < sessions.size(); ++i) {
    for (int step = 0; step < 3; ++step) ASSERT_TRUE(alone[i].Decode(text[i]).ok());
    EXPECT_EQ(LogitsOf(sessions[i]), LogitsOf(alone[i])) << i;
  }
}

// bfloat16 rounds a weight by 0.11 % (root mean square), int8 by 0.6 % if it is normal, a group's largest being some 2.5
// deviations. These errors are independent and add up in quadrature over the products on the way, some thirty here: 0.6 % and
// 3 %. A weight in a wrong place would be wrong by 100 %.
TEST(Session, WeightTypesAgreeWithinTheirRounding) {
  const std::vector<int32_t> text = Text(300);
  const auto logits = [&](WeightType type, RingType ring) {
    ModelConfig config = Small();
    config.hidden_size = 128;
    config.intermediate_size = 256;
    Session session = Start(Make(config, {.weights = type, .ring = ring, .threads = 1}));
    std::vector<float> all(text.size() * static_cast<size_t>(config.vocab_size));
    EXPECT_TRUE(session.PrefillLogits(text, all).ok());
    return all;
  };
  const std::vector<float> exact = logits(WeightType::kFp32, RingType::kFp32);
  for (const auto& [type, most] : {std::pair(WeightType::kBf16, 0.01), std::pair(WeightType::kInt8, 0.04)}) {
    const std::vector<float> rounded = logits(type, RingType::kBf16);
    double error = 0, size = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      error += std::pow(static_cast<double>(rounded[i]) - static_cast<double>(exact[i]), 2);
      size += std::pow(static_cast<double>(exact[i]), 2);
    }
    EXPECT_GT(error, 0);
    EXPECT_LT(std::sqrt(error / size), most) << static_cast<int>(type);
  }
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

class SessionFiles : public ::testing::Test {
 protected:
  const testing::TempFolder folder_;
  const std::string path_ = folder_.Path("session");
};

TEST_F(SessionFiles, OfAnotherModelAreRefused) {
  Session session = Start(Make());
  ASSERT_TRUE(session.Prefill(Text(20)).ok());
  ASSERT_TRUE(session.Save(path_).ok());
  EXPECT_TRUE(Session::Restore(Make(), path_).ok());

  const Result<Session> weights = Session::Restore(Make(Small(), {.threads = 1}, 1), path_);
  ASSERT_FALSE(weights.ok());
  EXPECT_NE(weights.status().message().find("another model"), std::string::npos) << weights.status().message();
  ModelConfig config = Small();
  config.norm_eps = 1e-6;
  EXPECT_FALSE(Session::Restore(Make(config), path_).ok());
  config = Small();
  config.cache.window += 1;
  const Result<Session> window = Session::Restore(Make(config), path_);
  ASSERT_FALSE(window.ok());
  EXPECT_NE(window.status().message().find("cache.window is 8, not 9"), std::string::npos) << window.status().message();
  const Result<Session> ring = Session::Restore(Make(Small(), {.ring = RingType::kBf16, .threads = 1}), path_);
  ASSERT_FALSE(ring.ok());
  EXPECT_NE(ring.status().message().find("bf16"), std::string::npos) << ring.status().message();
  // Another method may use fewer of the weights, but is not another model for that.
  config = Small();
  config.cache.method = CacheMethod::kWindow;
  const Result<Session> method = Session::Restore(Make(config), path_);
  ASSERT_FALSE(method.ok());
  EXPECT_NE(method.status().message().find("cache.method is \"tensor_cache\", not \"window\""), std::string::npos)
      << method.status().message();
}

TEST_F(SessionFiles, BytesAreTheFile) {
  const SharedModel model = Make();
  Session session = Start(model);
  ASSERT_TRUE(session.Prefill(Text(20)).ok());
  for (const bool durable : {true, false}) {
    ASSERT_TRUE(session.Save(path_, durable).ok());
    const std::string content = ReadWholeFile(path_, 1 << 24).value();
    const Result<std::vector<std::byte>> bytes = session.Serialize();
    ASSERT_TRUE(bytes.ok()) << bytes.status().message();
    ASSERT_EQ(bytes->size(), content.size());
    EXPECT_EQ(std::memcmp(bytes->data(), content.data(), content.size()), 0);
    Result<Session> restored = Session::Deserialize(model, *bytes);
    ASSERT_TRUE(restored.ok()) << restored.status().message();
    EXPECT_EQ(LogitsOf(*restored), LogitsOf(session));
    EXPECT_EQ(restored->position(), 20);
    EXPECT_FALSE(Session::Deserialize(model, std::span(*bytes).first(bytes->size() - 1)).ok());
  }
  EXPECT_FALSE(Session::Deserialize(model, {}).ok());
}

// Of the same size at the start and later, and without a vocabulary's logits.
TEST_F(SessionFiles, KeepNoLogits) {
  ModelConfig config = Small();
  config.vocab_size = 5000;
  const SharedModel model = Make(config);
  Session session = Start(model);
  const size_t at_start = session.Serialize()->size();
  ASSERT_TRUE(session.Prefill(Text(20)).ok());
  EXPECT_EQ(session.logits().size(), 5000u);
  EXPECT_EQ(session.Serialize()->size(), at_start);
  EXPECT_LT(at_start, static_cast<size_t>(session.state_bytes().total()) + 8000);
}

// A session of version 2: the logits in place of what makes them.
TEST_F(SessionFiles, OfVersionTwoAreRead) {
  const SharedModel model = Make();
  Session session = Start(model);
  ASSERT_TRUE(session.Prefill(Text(20)).ok());
  const std::vector<std::byte> bytes = session.Serialize().value();
  std::string content(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  uint64_t config = 0;
  std::memcpy(&config, content.data() + 16, sizeof(config));
  content.erase(32, static_cast<size_t>(config));
  const size_t last = 32 + sizeof(int64_t) + Session::kRecentTokens * sizeof(int32_t);
  const std::vector<float> logits = LogitsOf(session);
  content.replace(last, sizeof(int64_t) + 32 * sizeof(float), reinterpret_cast<const char*>(logits.data()),
                  logits.size() * sizeof(float));
  content[8] = 2;
  const uint64_t fingerprint = 0xd9b9c36eaa77f512;      // of the program that wrote such files
  EXPECT_EQ(model->fingerprint(), 0xebf712b9f1c3927f);  // likewise
  std::memcpy(content.data() + 16, &fingerprint, sizeof(fingerprint));
  Result<Session> old = Session::Restore(model, folder_.Put("old", Resealed(content)));
  ASSERT_TRUE(old.ok()) << old.status().message();
  EXPECT_EQ(LogitsOf(*old), logits);
  // It can be saved, forked and asked in a batch as it is.
  Result<Session> again = Session::Deserialize(model, *old->Serialize());
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(LogitsOf(*again), logits);
  const Session fork = *old->Fork();
  EXPECT_EQ(LogitsOf(fork), logits);
  std::vector<float> both(2 * logits.size());
  const Session* const batch[] = {&*old, &session};
  ASSERT_TRUE(Session::BatchLogits(batch, both).ok());
  EXPECT_TRUE(std::equal(logits.begin(), logits.end(), both.begin()));
  EXPECT_TRUE(std::equal(logits.begin(), logits.end(), both.begin() + static_cast<std::ptrdiff_t>(logits.size())));
  ASSERT_TRUE(old->Decode(3).ok());
  ASSERT_TRUE(session.Decode(3).ok());
  EXPECT_EQ(LogitsOf(*old), LogitsOf(session));
}

TEST_F(SessionFiles, DamagedAreRefused) {
  const SharedModel model = Make();
  Session session = Start(model);
  ASSERT_TRUE(session.Prefill(Text(20)).ok());
  ASSERT_TRUE(session.Save(path_).ok());
  const std::string content = ReadWholeFile(path_, 1 << 24).value();
  Rng rng(9);
  for (int i = 0; i < 300; ++i) {
    std::string broken = content;
    const auto bit = rng.Below(content.size() * 8);
    broken[bit / 8] = static_cast<char>(broken[bit / 8] ^ 1 << bit % 8);
    EXPECT_FALSE(Session::Restore(model, folder_.Put("broken", broken)).ok()) << "bit " << bit;
    EXPECT_FALSE(Session::Restore(model, folder_.Put("broken", content.substr(0, rng.Below(content.size())))).ok());
  }
  // A cache's file is not a session's.
  ASSERT_TRUE(session.cache().Save(path_).ok());
  const Status status = Session::Restore(model, path_).status();
  EXPECT_NE(status.message().find("not of a session"), std::string::npos) << status.message();
}

TEST_F(SessionFiles, OfOtherWeightTypesGoOn) {
  Session session = Start(Make());
  ASSERT_TRUE(session.Prefill(Text(20)).ok());
  ASSERT_TRUE(session.Save(path_).ok());
  Result<Session> int8 = Session::Restore(Make(Small(), {.weights = WeightType::kInt8, .threads = 1}), path_);
  ASSERT_TRUE(int8.ok()) << int8.status().message();
  EXPECT_EQ(LogitsOf(*int8).size(), LogitsOf(session).size());
  EXPECT_TRUE(int8->Decode(1).ok());
}

TEST(Model, RefusesBadOptions) {
  EXPECT_FALSE(Model::Random(Small(), {.threads = -1}).ok());
  EXPECT_FALSE(Model::Random(Small(), {.threads = 5000}).ok());
  EXPECT_FALSE(Model::Random(Small(), {.threads = 1, .prefill_block = 0}).ok());
  ModelConfig config = Small();
  config.num_attention_heads = 3;
  EXPECT_FALSE(Model::Random(config, {.threads = 1}).ok());
  EXPECT_FALSE(Model::Load("/no/such/folder", {.threads = 1}).ok());
  EXPECT_FALSE(Model::Random(Small(), {.weights = static_cast<WeightType>(9), .threads = 1}).ok());
}

// Numbers that no C++ compiler checks.
TEST(Model, RefusesChoicesWithoutAName) {
  const auto refused = [](auto change, std::string_view key) {
    ModelConfig config = Small();
    change(config);
    const Status status = Model::Random(config, {.threads = 1}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(key), std::string::npos) << status.message();
  };
  refused([](ModelConfig& c) { c.norm = static_cast<NormKind>(9); }, "norm is number 9");
  refused([](ModelConfig& c) { c.hidden_act = static_cast<Activation>(9); }, "hidden_act is number 9");
  refused([](ModelConfig& c) { c.position_embedding = static_cast<PositionKind>(9); }, "position_embedding");
  refused([](ModelConfig& c) { c.rope_scaling.rope_type = static_cast<RopeScalingKind>(9); }, "rope_scaling.rope_type");
}

}  // namespace
}  // namespace tensorcache
