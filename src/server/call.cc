#include "server/call.h"

#include <utility>

#include "server/access.h"

namespace tensorcache::server {

std::string JsonLine(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

HttpResponse JsonResponse(int status, std::string body, const std::string& id) {
  return {.status = status, .body = std::move(body), .headers = {{"X-Request-Id", id}}};
}

HttpResponse ErrorResponse(const ApiError& error, const std::string& id) {
  HttpResponse response = JsonResponse(error.status, ErrorBody(error), id);
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.retry_after > 0) response.headers.emplace_back("Retry-After", std::to_string(error.retry_after));
  return response;
}

Call::Call(HttpRequest request, std::shared_ptr<Exchange> exchange, std::string route, std::string name, size_t owner,
           Metrics* metrics)
    : request_(std::move(request)),
      exchange_(std::move(exchange)),
      route_(std::move(route)),
      name_(std::move(name)),
      id_(RandomId()),
      owner_(owner),
      metrics_(metrics),
      arrived_(std::chrono::steady_clock::now()) {}

void Call::Count(int status) {
  metrics_->CountRequest(route_, status);
  metrics_->request_time.Add(std::chrono::duration<double>(std::chrono::steady_clock::now() - arrived_).count());
}

void Call::Answer(const OrderedJson& body) { Answer(JsonResponse(200, JsonLine(body), id_)); }

void Call::Answer(HttpResponse response) {
  Count(response.status);
  exchange_->Respond(std::move(response));
}

void Call::Fail(const ApiError& error) {
  if (!streaming_) return Answer(ErrorResponse(error, id_));
  Count(error.status);
  exchange_->Send("data: " + ErrorBody(error) + "\n\n");
  exchange_->Finish();
}

void Call::StartEvents() {
  streaming_ = true;
  exchange_->Start({.status = 200,
                    .content_type = "text/event-stream",
                    .headers = {{"X-Request-Id", id_}, {"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}});
}

void Call::SendEvent(const OrderedJson& event) { exchange_->Send("data: " + JsonLine(event) + "\n\n"); }

void Call::EndEvents() {
  Count(200);
  exchange_->Send("data: [DONE]\n\n");
  exchange_->Finish();
}

}  // namespace tensorcache::server
