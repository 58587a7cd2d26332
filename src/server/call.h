// A request on its way to its answer: what all routes do with one.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "core/json.h"
#include "server/error.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/requests.h"

namespace tensorcache::server {

// An answer with what every one has in its header; `id` is the request's.
HttpResponse JsonResponse(int status, std::string body, const std::string& id);
HttpResponse ErrorResponse(const ApiError& error, const std::string& id);

// Answered exactly once: with a body, with an error, or with a stream of events (SSE). Thread-safe as Exchange is.
class Call {
 public:
  // `route` is the server's own name of what was asked for; `name` is what stands in the path where the route has a star.
  Call(HttpRequest request, std::shared_ptr<Exchange> exchange, std::string route, std::string name, size_t owner,
       Metrics* metrics);

  const HttpRequest& request() const { return request_; }
  HttpRequest& request() { return request_; }
  const std::string& id() const { return id_; }
  const std::string& name() const { return name_; }
  size_t owner() const { return owner_; }  // whose key it came with
  bool gone() const { return exchange_->gone(); }

  void Answer(const OrderedJson& body);
  void Answer(HttpResponse response);
  // Also in the middle of a stream: then the error is its last event.
  void Fail(const ApiError& error);
  void StartEvents();
  bool streaming() const { return streaming_; }
  void SendEvent(const OrderedJson& event);
  // Ends the stream, after "[DONE]".
  void EndEvents();

 private:
  void Count(int status);

  HttpRequest request_;
  const std::shared_ptr<Exchange> exchange_;
  const std::string route_, name_, id_;
  const size_t owner_;
  Metrics* const metrics_;
  const std::chrono::steady_clock::time_point arrived_;
  std::atomic<bool> streaming_ = false;
};

// The body as a request of that kind.
template <class Request>
MaybeError ParseCall(const Call& call, const RequestLimits& limits, Request* request) {
  Json json;
  if (auto error = ParseBody(call.request().body, &json)) return error;
  return ParseRequest(json, limits, request);
}

// A text that may hold anything as JSON without line breaks; what is not UTF-8 is replaced.
std::string JsonLine(const OrderedJson& json);

}  // namespace tensorcache::server
