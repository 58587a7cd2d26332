// HTTP/1.1 on one thread: connections, requests of bounded size, answers in one piece or as a stream. What is asked and answered
// is a Handler's business. Nothing here includes Boost.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorcache/status.h"

namespace tensorcache::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // "/v1/models", as it was sent; what stands behind a question mark is dropped
  Headers headers;     // names in lower case
  std::string body;

  // The value of a header, by its name in lower case; "" if it is not there.
  std::string_view Header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  Headers headers = {};
};

// One request that waits for its answer. Thread-safe; no call blocks. Either Respond, or Start, any number of Send, and Finish. If
// it is destroyed before, the connection is closed.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void Respond(HttpResponse response) = 0;
  // The head of a stream; its body is ignored.
  virtual void Start(HttpResponse head) = 0;
  virtual void Send(std::string piece) = 0;
  virtual void Finish() = 0;
  // Cuts the connection: the client sees that the stream is not whole.
  virtual void Abort() = 0;
  // The client is gone, or does not take what is sent to it: more than HttpLimits::unsent_bytes wait.
  virtual bool gone() const = 0;
};

// Called on the server's thread, and must not block it.
class Handler {
 public:
  virtual ~Handler() = default;
  // Before the body is read. An answer refuses the request, and closes the connection.
  virtual std::optional<HttpResponse> Screen(const HttpRequest& head) = 0;
  virtual void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) = 0;
  // The answer to a request that is none, is too large or comes too late.
  virtual HttpResponse Refuse(int status, const std::string& problem) = 0;
  // How many connections are open.
  virtual void OnConnections(int64_t open) = 0;
};

struct HttpLimits {
  int64_t header_bytes = 16 << 10;
  int64_t body_bytes = 16 << 20;
  int64_t unsent_bytes = 4 << 20;
  int64_t connections = 1024;
  int idle_seconds = 75;   // until the next request's head is there
  int body_seconds = 120;  // until its body is
  int write_seconds = 60;  // that a client may take for each piece
};

struct HttpOptions {
  std::string host = "127.0.0.1";  // an address or a name
  int port = 0;                    // 0: a free one
  HttpLimits limits;
};

// True for addresses that only this machine reaches, and "localhost".
bool IsLoopback(const std::string& host);

class HttpServer {
 public:
  // Listens, and serves from now on. `handler` must outlive the server.
  static Result<std::unique_ptr<HttpServer>> Listen(const HttpOptions& options, Handler* handler);
  // Closes every connection.
  virtual ~HttpServer() = default;

  virtual int port() const = 0;
  // Takes no new connections, and closes each after its next answer; those that wait for a request are closed now.
  virtual void Drain() = 0;
  // Requests that are not answered to the end.
  virtual int64_t active() const = 0;
};

}  // namespace tensorcache::server
