// Saved sessions: an error, or a session that goes on.
#include "tensorcache/sampling.h"
#include "tensorcache/session.h"
#include "tests/fuzz/model_checks.h"
#include "tests/fuzz/sealed_state.h"

namespace tensorcache::fuzz {
namespace {

using SharedModel = std::shared_ptr<const Model>;

const std::vector<SharedModel>& Models() {
  static const std::vector<SharedModel>& models = *[] {
    auto* all = new std::vector<SharedModel>;
    const auto add = [&](const ModelConfig& config) {
      auto model = Model::Random(config, {.threads = 1, .cache = {}});
      TC_CHECK(model.ok());
      all->push_back(std::move(model).value());
    };
    ModelConfig config = SmallModel();
    add(config);
    config.cache.method = CacheMethod::kFull;
    add(config);
    config.cache.method = CacheMethod::kWindow;
    config.position_embedding = PositionKind::kLearned;
    add(config);
    return all;
  }();
  return models;
}

std::string Saved(const Session& session) {
  const auto bytes = session.Serialize();
  TC_CHECK(bytes.ok());
  return std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size());
}

Result<Session> Restored(const SharedModel& model, std::string_view bytes) {
  return Session::Deserialize(model, std::as_bytes(std::span(bytes)));
}

// Continues with a token of its own choice.
Status Continue(Session& session) {
  int32_t token = 0;
  if (!session.logits().empty()) {
    auto sampler = Sampler::Create({.temperature = 0.5, .repetition_penalty = 1.5});
    TC_CHECK(sampler.ok());
    TC_ASSIGN_OR_RETURN(token, sampler->Sample(session.logits(), session.recent(), 1));
  }
  TC_RETURN_IF_ERROR(session.Decode(token));
  return session.Prefill(std::vector<int32_t>{1, 2, 3});
}

}  // namespace

// A byte that picks the model, and the state.
void Run(std::string_view input) {
  if (input.empty()) return;
  const SharedModel& model = Models()[static_cast<uint8_t>(input[0]) % Models().size()];
  auto session = Restored(model, Sealed(input.substr(1)));
  if (!session.ok()) return CheckMessage(session.status());
  TC_CHECK(session->position() >= 0 && session->room() >= 0);
  TC_CHECK(std::ssize(session->recent()) <= Session::kRecentTokens);
  const std::string saved = Saved(*session);
  auto again = Restored(model, saved);
  TC_CHECK(again.ok());
  TC_CHECK(Saved(*again) == saved);
  if (const Status status = Continue(*session); !status.ok()) return CheckMessage(status);
  TC_CHECK(Continue(*again).ok());
  TC_CHECK(std::ranges::equal(std::as_bytes(session->logits()), std::as_bytes(again->logits())));
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (size_t i = 0; i < Models().size(); ++i) {
    auto session = Session::Create(Models()[i]);
    TC_CHECK(session.ok());
    seeds.push_back(static_cast<char>(i) + Unsealed(Saved(*session)));
    TC_CHECK(Continue(*session).ok());
    seeds.push_back(static_cast<char>(i) + Unsealed(Saved(*session)));
  }
  return seeds;
}

std::vector<std::string> Words() {
  return {Raw(INT64_MAX),  Raw(INT64_MAX - 3), Raw(INT64_MIN),  Raw(int64_t{1024}), Raw(int64_t{1025}),
          Raw(int32_t{5}), Raw(int32_t{-1}),   Raw(0x7F800000), Raw(0x7FC00000)};
}

}  // namespace tensorcache::fuzz
