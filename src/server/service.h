// The routes: who may ask what, and who answers it. Knows HTTP's requests and answers, but no socket.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/access.h"
#include "server/call.h"
#include "server/chat_template.h"
#include "server/engine.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/requests.h"
#include "server/session_store.h"
#include "server/task_thread.h"

namespace tensorcache::server {

struct ServiceOptions {
  std::string model;                                   // its name
  std::string version;                                 // of the program
  AccessKeys keys;                                     // none: everybody may ask
  bool begin = false;                                  // texts start with the begin-of-text token
  std::shared_ptr<const ChatTemplate> chat = nullptr;  // the model may have none
  int64_t max_tokens = 4096;
  int64_t default_max_tokens = 16;
  int64_t state_bytes = int64_t{1} << 30;  // that sessions may take
  EngineOptions engine;
};

class Service : public Handler {
 public:
  Service(std::shared_ptr<const Model> model, std::shared_ptr<const Tokenizer> tokenizer, ServiceOptions options);
  ~Service() override;

  std::optional<HttpResponse> Screen(const HttpRequest& head) override;
  void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override;
  HttpResponse Refuse(int status, const std::string& problem) override;
  void OnConnections(int64_t open) override { metrics_.connections = open; }

  // From now on new work is refused; what runs goes on.
  void Drain() { draining_ = true; }
  // Ends what still runs with an error. No request is alive after that; must come before the HTTP server goes.
  void Stop();

 private:
  struct Route;
  static const std::vector<Route>& Routes();
  const Route* Find(const HttpRequest& request, bool* path_is_known) const;
  // The owner, or an error.
  MaybeError CheckAccess(const HttpRequest& request, const Route* route, size_t* owner) const;

  void Health(const std::shared_ptr<Call>& call);
  void Ready(const std::shared_ptr<Call>& call);
  void Models(const std::shared_ptr<Call>& call);
  void OneModel(const std::shared_ptr<Call>& call);
  void Props(const std::shared_ptr<Call>& call);
  void ShowMetrics(const std::shared_ptr<Call>& call);
  void Completions(const std::shared_ptr<Call>& call);
  void ChatCompletions(const std::shared_ptr<Call>& call);
  void RenderTemplate(const std::shared_ptr<Call>& call);
  void Tokenize(const std::shared_ptr<Call>& call);
  void Detokenize(const std::shared_ptr<Call>& call);
  void CreateSession(const std::shared_ptr<Call>& call);
  void ShowSession(const std::shared_ptr<Call>& call);
  void DeleteSession(const std::shared_ptr<Call>& call);
  void AppendToSession(const std::shared_ptr<Call>& call);
  void ForkSession(const std::shared_ptr<Call>& call);
  void GetState(const std::shared_ptr<Call>& call);
  void PutState(const std::shared_ptr<Call>& call);
  OrderedJson ModelJson() const;

  const ServiceOptions options_;
  const int64_t created_;
  const RequestLimits limits_;
  Metrics metrics_;
  SessionStore sessions_;
  std::atomic<bool> draining_ = false;
  Engine engine_;
  TaskThread tasks_;  // uses all of the above
};

// GET /props: what is served.
OrderedJson PropsJson(const Model& model, const Tokenizer& tokenizer);

}  // namespace tensorcache::server
