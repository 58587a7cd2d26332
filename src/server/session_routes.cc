// /v1/sessions: texts that the model reads and goes on with.
#include <utility>

#include "server/completion.h"
#include "server/reply.h"
#include "server/service.h"

namespace tensorcache::server {
namespace {

HttpResponse Bytes(const std::vector<std::byte>& bytes, const std::string& id) {
  HttpResponse response = JsonResponse(200, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), id);
  response.content_type = "application/octet-stream";
  return response;
}

// What is wrong with bytes that should be a state.
ApiError StateError(const Status& status) {
  switch (status.code()) {
    case StatusCode::kCorrupt: return MakeError(422, "state_corrupt", status.message());
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnsupported: return MakeError(409, "state_model_mismatch", status.message());
    default: return ErrorOf(status);
  }
}

// A state from outside may hold numbers that are none, which would end all that runs in one batch with it: it is tried first.
Result<Session> RestoreChecked(const std::shared_ptr<const Model>& model, const std::string& bytes) {
  TC_ASSIGN_OR_RETURN(Session session, Session::Deserialize(model, std::as_bytes(std::span(bytes))));
  if (session.room() > 0) {
    TC_ASSIGN_OR_RETURN(Session trial, session.Fork());
    if (const Status status = trial.Decode(0); !status.ok()) return Corrupt(status.message());
  }
  return session;
}

// Has a session read a text.
class Append : public GenerationListener {
 public:
  Append(std::shared_ptr<Call> call, std::shared_ptr<SessionUse> use) : call_(std::move(call)), use_(std::move(use)) {}

  bool wanted() const override { return !call_->gone(); }
  void OnPrompt(std::vector<TokenScore>, Snapshot after) override { after_ = std::move(after); }
  void OnText(int64_t, std::string, std::vector<TokenScore>) override {}
  void OnChoiceEnd(int64_t, FinishReason, int64_t, Snapshot) override {}
  void OnEnd(const MaybeError& error) override {
    MaybeError failure = error;
    if (!failure && after_ == nullptr) return;  // nobody waits for it any more
    if (!failure && !use_->Replace(std::move(after_))) failure = NoRoomForState();
    const OrderedJson json = SessionJson(use_->info());
    use_.reset();  // free, before the client has the answer
    failure ? call_->Fail(*failure) : call_->Answer(json);
  }

 private:
  const std::shared_ptr<Call> call_;
  std::shared_ptr<SessionUse> use_;
  Snapshot after_;
};

}  // namespace

void Service::CreateSession(const std::shared_ptr<Call>& call) {
  CreateSessionRequest request;
  if (auto error = ParseCall(*call, limits_, &request)) return call->Fail(*error);
  Result<Session> session = Session::Create(engine_.model());
  if (!session.ok()) return call->Fail(ErrorOf(session.status()));
  SessionInfo info;
  const auto snapshot = std::make_shared<const Session>(std::move(*session));
  if (auto error = sessions_.Create(call->owner(), snapshot, &info)) return call->Fail(*error);
  call->Answer(SessionJson(info));
}

void Service::ShowSession(const std::shared_ptr<Call>& call) {
  SessionInfo info;
  Snapshot snapshot;
  if (auto error = sessions_.Look(call->owner(), call->name(), &info, &snapshot)) return call->Fail(*error);
  call->Answer(SessionJson(info));
}

void Service::DeleteSession(const std::shared_ptr<Call>& call) {
  if (auto error = sessions_.Delete(call->owner(), call->name())) return call->Fail(*error);
  call->Answer({{"id", call->name()}, {"object", "session"}, {"deleted", true}});
}

void Service::AppendToSession(const std::shared_ptr<Call>& call) {
  AppendRequest request;
  if (auto error = ParseCall(*call, limits_, &request)) return call->Fail(*error);
  std::shared_ptr<SessionUse> use;
  if (auto error = sessions_.Use(call->owner(), call->name(), &use)) return call->Fail(*error);
  const Snapshot from = use->snapshot();
  std::vector<int32_t> tokens;
  const bool begin = options_.begin && from->position() == 0;
  const Status status = EncodePrompt(request.content, begin, *engine_.tokenizer(), &tokens);
  MaybeError error;
  if (!status.ok()) error = InvalidValue("content", status.message());
  if (!error) error = CheckContext(*engine_.model(), from->position(), std::ssize(tokens), 0);
  if (!error) {
    std::vector<GenerationJob> jobs;
    jobs.push_back({.from = from,
                    .prompt = std::move(tokens),
                    .options = {.max_tokens = 0},
                    .keep = true,
                    .listener = std::make_shared<Append>(call, std::move(use))});
    error = engine_.Submit(std::move(jobs));
  }
  if (error) call->Fail(*error);
}

void Service::ForkSession(const std::shared_ptr<Call>& call) {
  ForkRequest request;
  if (auto error = ParseCall(*call, limits_, &request)) return call->Fail(*error);
  SessionInfo info;
  Snapshot snapshot;
  if (auto error = sessions_.Look(call->owner(), call->name(), &info, &snapshot)) return call->Fail(*error);
  OrderedJson forks = OrderedJson::array();
  for (int64_t i = 0; i < request.count; ++i) {
    // Snapshots do not change: forks share one, until they go on.
    if (auto error = sessions_.Create(call->owner(), snapshot, &info)) return call->Fail(*error);
    forks.push_back(SessionJson(info));
  }
  call->Answer({{"object", "list"}, {"data", std::move(forks)}});
}

void Service::GetState(const std::shared_ptr<Call>& call) {
  SessionInfo info;
  Snapshot snapshot;
  if (auto error = sessions_.Look(call->owner(), call->name(), &info, &snapshot)) return call->Fail(*error);
  const Result<std::vector<std::byte>> bytes = snapshot->Serialize();
  if (!bytes.ok()) return call->Fail(ErrorOf(bytes.status()));
  call->Answer(Bytes(*bytes, call->id()));
}

void Service::PutState(const std::shared_ptr<Call>& call) {
  std::shared_ptr<SessionUse> use;
  if (auto error = sessions_.Use(call->owner(), call->name(), &use)) return call->Fail(*error);
  Result<Session> session = RestoreChecked(engine_.model(), call->request().body);
  if (!session.ok()) return call->Fail(StateError(session.status()));
  if (!use->Replace(std::make_shared<const Session>(std::move(*session)))) return call->Fail(NoRoomForState());
  const OrderedJson json = SessionJson(use->info());
  use.reset();
  call->Answer(json);
}

}  // namespace tensorcache::server
