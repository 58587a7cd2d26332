#include "server/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/no_throw.h"
#include "core/text.h"
#include "server/chat.h"
#include "server/completion.h"
#include "server/reply.h"
#include "server/token_text.h"

namespace tensorcache::server {
namespace {

// The host of a Host header, without its port.
std::string HostOf(std::string_view header) {
  if (header.starts_with('[')) return std::string(header.substr(1, std::min(header.find(']'), header.size()) - 1));
  return std::string(header.substr(0, header.find(':')));
}

// Whether `path` is that of a route; *name is what stands where the route has a star.
bool Matches(std::string_view route, std::string_view path, std::string* name) {
  const size_t star = route.find('*');
  if (star == route.npos) return path == route;
  const std::string_view before = route.substr(0, star), after = route.substr(star + 1);
  if (path.size() <= before.size() + after.size() || !path.starts_with(before) || !path.ends_with(after)) return false;
  const std::string_view middle = path.substr(before.size(), path.size() - before.size() - after.size());
  if (middle.find('/') != middle.npos) return false;
  if (name != nullptr) *name = std::string(middle);
  return true;
}

}  // namespace

struct Service::Route {
  const char* method;
  const char* path;  // a * stands for one name, without a slash
  void (Service::*run)(const std::shared_ptr<Call>& call);
  bool needs_key = true;
  bool works_while_draining = true;
  bool takes_bytes = false;  // instead of JSON
};

const std::vector<Service::Route>& Service::Routes() {
  static const std::vector<Route> routes{
      {"GET", "/health", &Service::Health, false},
      {"GET", "/ready", &Service::Ready},
      {"GET", "/metrics", &Service::ShowMetrics},
      {"GET", "/props", &Service::Props},
      {"GET", "/v1/models", &Service::Models},
      {"GET", "/v1/models/*", &Service::OneModel},
      {"POST", "/v1/completions", &Service::Completions, true, false},
      {"POST", "/v1/chat/completions", &Service::ChatCompletions, true, false},
      {"POST", "/v1/sessions", &Service::CreateSession, true, false},
      {"GET", "/v1/sessions/*", &Service::ShowSession},
      {"DELETE", "/v1/sessions/*", &Service::DeleteSession},
      {"POST", "/v1/sessions/*/append", &Service::AppendToSession, true, false},
      {"POST", "/v1/sessions/*/fork", &Service::ForkSession, true, false},
      {"GET", "/v1/sessions/*/state", &Service::GetState},
      {"PUT", "/v1/sessions/*/state", &Service::PutState, true, false, true},
      {"POST", "/apply-template", &Service::RenderTemplate},
      {"POST", "/tokenize", &Service::Tokenize},
      {"POST", "/detokenize", &Service::Detokenize},
  };
  return routes;
}

Service::Service(std::shared_ptr<const Model> model, std::shared_ptr<const Tokenizer> tokenizer, ServiceOptions options)
    : options_(std::move(options)),
      created_(UnixTime()),
      limits_{.model = options_.model,
              .vocab_size = tokenizer->vocab_size(),
              .max_tokens = options_.max_tokens,
              .max_choices = options_.engine.max_batch},
      sessions_(options_.state_bytes, &metrics_),
      engine_(std::move(model), std::move(tokenizer), options_.engine, &metrics_) {}

Service::~Service() { Stop(); }

void Service::Stop() {
  draining_ = true;
  tasks_.Stop();
  engine_.Stop();
}

const Service::Route* Service::Find(const HttpRequest& request, bool* path_is_known) const {
  *path_is_known = false;
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  for (const Route& route : Routes()) {
    if (!Matches(route.path, request.path, nullptr)) continue;
    *path_is_known = true;
    if (method == route.method) return &route;
  }
  return nullptr;
}

MaybeError Service::CheckAccess(const HttpRequest& request, const Route* route, size_t* owner) const {
  *owner = 0;
  if (route != nullptr && !route->needs_key) return std::nullopt;
  if (options_.keys.empty()) {
    // A page in a browser on this machine may reach us under a name of its own making; it must not be ours.
    const std::string_view host = request.Header("host");
    if (host.empty() || IsLoopback(HostOf(host))) return std::nullopt;
    return MakeError(
        403, "forbidden_host",
        fmt::format("without API keys, only this machine's own names are answered, and {} is none", Quoted(host)));
  }
  const auto found = options_.keys.OwnerOf(request.Header("authorization"));
  if (!found) {
    return InvalidApiKey(request.Header("authorization").empty()
                             ? "a key is needed; send it as 'Authorization: Bearer KEY'"
                             : "this key is none of the server's");
  }
  *owner = *found;
  return std::nullopt;
}

std::optional<HttpResponse> Service::Screen(const HttpRequest& head) {
  bool path_is_known = false;
  const Route* route = Find(head, &path_is_known);
  size_t owner = 0;
  MaybeError error = CheckAccess(head, route, &owner);
  if (!error && route == nullptr) {
    error = path_is_known ? MakeError(405, "method_not_allowed",
                                      fmt::format("{} cannot be asked with {}", Quoted(head.path), Quoted(head.method)))
                          : NotFoundError("route_not_found", fmt::format("there is no {}", Quoted(head.path)));
  }
  // What browsers send without asking first is never JSON.
  const std::string_view type = head.Header("content-type");
  if (!error && (head.method == "POST" || head.method == "PUT")) {
    const std::string wanted = route->takes_bytes ? "application/octet-stream" : "application/json";
    if (!type.starts_with(wanted)) {
      error = MakeError(415, "unsupported_media_type", fmt::format("send the body with 'Content-Type: {}'", wanted));
    }
  }
  if (!error && draining_ && !route->works_while_draining) error = ShuttingDown();
  if (!error) return std::nullopt;
  metrics_.CountRequest(route == nullptr ? "other" : route->path, error->status);
  return ErrorResponse(*error, RandomId());
}

void Service::Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  bool path_is_known = false;
  const Route* route = Find(request, &path_is_known);
  size_t owner = 0;
  if (route == nullptr || CheckAccess(request, route, &owner)) return;  // Screen saw to that
  std::string name;
  Matches(route->path, request.path, &name);
  // What may take a while is not for the thread of the connections.
  const bool takes_long = request.method != "GET" && request.method != "HEAD";
  auto call =
      std::make_shared<Call>(std::move(request), std::move(exchange), route->path, std::move(name), owner, &metrics_);
  const auto run = [this, route, call = std::move(call)] {
    const Status status = NoThrow("answer a request", [&] {
      (this->*route->run)(call);
      return OkStatus();
    });
    if (!status.ok()) call->Fail(ErrorOf(status));
  };
  takes_long || route->run == &Service::GetState ? tasks_.Do(run) : run();
}

HttpResponse Service::Refuse(int status, const std::string& problem) {
  metrics_.CountRequest("other", status);
  return ErrorResponse(MakeError(status, status == 413 ? "request_too_large" : "bad_request", problem), RandomId());
}

void Service::Health(const std::shared_ptr<Call>& call) { call->Answer({{"status", "ok"}}); }

void Service::Ready(const std::shared_ptr<Call>& call) {
  if (draining_) return call->Fail(ShuttingDown());
  call->Answer({{"status", "ready"}});
}

OrderedJson Service::ModelJson() const {
  return {{"id", options_.model}, {"object", "model"}, {"created", created_}, {"owned_by", "tensorcache"}};
}

void Service::Models(const std::shared_ptr<Call>& call) {
  call->Answer({{"object", "list"}, {"data", OrderedJson::array({ModelJson()})}});
}

void Service::OneModel(const std::shared_ptr<Call>& call) {
  const std::string& name = call->name();
  if (name == options_.model) return call->Answer(ModelJson());
  call->Fail(NotFoundError("model_not_found", fmt::format("there is no model {}; this server has {}", Quoted(name),
                                                          Quoted(options_.model))));
}

void Service::Props(const std::shared_ptr<Call>& call) {
  OrderedJson json = {{"model", options_.model}, {"version", options_.version}};
  json.update(PropsJson(*engine_.model(), *engine_.tokenizer()));
  json["begin_of_text"] = options_.begin;
  json["chat_template"] = options_.chat != nullptr;
  json["limits"] = {{"max_tokens", options_.max_tokens},
                    {"max_batch", options_.engine.max_batch},
                    {"queue", options_.engine.queue},
                    {"prefill_block", engine_.model()->options().prefill_block}};
  call->Answer(json);
}

void Service::ShowMetrics(const std::shared_ptr<Call>& call) {
  HttpResponse response = JsonResponse(200, metrics_.Text(), call->id());
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  call->Answer(std::move(response));
}

void Service::Completions(const std::shared_ptr<Call>& call) {
  CompletionRequest request;
  if (auto error = ParseCall(*call, limits_, &request)) return call->Fail(*error);
  std::shared_ptr<SessionUse> session;
  if (!request.session.empty()) {
    if (auto error = sessions_.Use(call->owner(), request.session, &session)) return call->Fail(*error);
  }
  Complete(call, request, {.model = options_.model, .begin = options_.begin, .max_tokens = options_.default_max_tokens},
           std::move(session), engine_);
}

void Service::ChatCompletions(const std::shared_ptr<Call>& call) {
  ChatRequest request;
  if (auto error = ParseCall(*call, limits_, &request)) return call->Fail(*error);
  // A chat says no number where it wants all of the reply.
  Chat(call, request, {.model = options_.model, .max_tokens = options_.max_tokens}, options_.chat.get(), engine_);
}

void Service::RenderTemplate(const std::shared_ptr<Call>& call) {
  ApplyTemplateRequest request;
  if (auto error = ParseCall(*call, limits_, &request)) return call->Fail(*error);
  ApplyTemplate(call, request, options_.chat.get());
}

void Service::Tokenize(const std::shared_ptr<Call>& call) {
  TokenizeRequest request;
  if (auto error = ParseCall(*call, limits_, &request)) return call->Fail(*error);
  const Tokenizer& tokenizer = *engine_.tokenizer();
  std::vector<int32_t> tokens;
  if (request.add_special && tokenizer.begin_of_text() >= 0) tokens.push_back(tokenizer.begin_of_text());
  const Status status = tokenizer.EncodeWith({.special_tokens = request.parse_special}, request.content, &tokens);
  if (!status.ok()) return call->Fail(InvalidValue("content", status.message()));
  OrderedJson json = {{"tokens", tokens}};
  if (request.with_pieces) {
    json["pieces"] = OrderedJson::array();
    int32_t previous = -1;
    for (const int32_t token : tokens) {
      json["pieces"].push_back(TokenText(tokenizer, std::exchange(previous, token), token));
    }
  }
  call->Answer(json);
}

void Service::Detokenize(const std::shared_ptr<Call>& call) {
  DetokenizeRequest request;
  if (auto error = ParseCall(*call, limits_, &request)) return call->Fail(*error);
  std::string content;
  const Status status = engine_.tokenizer()->Decode(request.tokens, &content);
  if (!status.ok()) return call->Fail(InvalidValue("tokens", status.message()));
  call->Answer({{"content", content}});
}

}  // namespace tensorcache::server
