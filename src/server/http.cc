// The one file that includes Boost. One thread runs all connections, each a coroutine; other threads hand over what is to be
// sent, and wake it.
#include "server/http.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cctype>
#include <chrono>
#include <list>
#include <mutex>
#include <thread>

namespace tensorcache::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

// co_await gives errors as values.
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

std::string_view ReasonOf(int status) {
  const beast::string_view reason = http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status)));
  return {reason.data(), reason.size()};
}

// A stream has no length: it comes in chunks, or (HTTP/1.0) ends with the connection.
enum class Framing { kLength, kChunks, kNone };

std::string HeadText(const HttpResponse& response, Framing framing, bool keep_alive) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", response.status, ReasonOf(response.status),
                                 response.content_type);
  if (framing == Framing::kLength) head += fmt::format("Content-Length: {}\r\n", response.body.size());
  if (framing == Framing::kChunks) head += "Transfer-Encoding: chunked\r\n";
  for (const auto& [name, value] : response.headers) head += fmt::format("{}: {}\r\n", name, value);
  head += fmt::format("X-Content-Type-Options: nosniff\r\nConnection: {}\r\n\r\n", keep_alive ? "keep-alive" : "close");
  return head;
}

// What is on its way from a handler's threads to the connection's coroutine. It outlives both.
class Outbox : public std::enable_shared_from_this<Outbox> {
 public:
  Outbox(asio::io_context& context, int64_t limit) : context_(context), limit_(limit), wake_(context) {
    wake_.expires_at(asio::steady_timer::time_point::max());
  }

  bool keep_alive = true;  // of the connection; set before anything is sent
  bool chunked = true;     // whether the client knows chunks
  bool head_only = false;  // HEAD: the answer has no body

  void Respond(const HttpResponse& response) {
    std::string text = HeadText(response, Framing::kLength, keep_alive);
    if (!head_only) text += response.body;
    Put(std::move(text), true);
  }
  void Start(const HttpResponse& head) {
    if (!chunked) keep_alive = false;
    Put(HeadText(head, chunked ? Framing::kChunks : Framing::kNone, keep_alive), false);
  }
  void Send(const std::string& piece) {
    if (piece.empty()) return;  // an empty chunk is the end
    Put(chunked ? fmt::format("{:x}\r\n{}\r\n", piece.size(), piece) : piece, false);
  }
  void Finish() { Put(chunked ? "0\r\n\r\n" : "", true); }
  // Does nothing after the end.
  void Abort() { Put("", true, true); }
  void SetGone() { gone_ = true; }
  bool gone() const { return gone_; }
  bool aborted() const { return aborted_; }

  // What is to be sent, all at once; waits until there is something. Returns whether that is the end.
  asio::awaitable<bool> Next(std::string* text) {
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        if (!waiting_.empty() || done_) {
          *text = std::exchange(waiting_, {});
          co_return done_;
        }
      }
      co_await wake_.async_wait(kAwait);
      wake_.expires_at(asio::steady_timer::time_point::max());
    }
  }

 private:
  void Put(const std::string& text, bool is_end, bool aborts = false) {
    {
      const std::lock_guard lock(mutex_);
      if (done_ || gone_) return;
      aborted_ = aborts;
      waiting_ += text;
      done_ = is_end;
      if (static_cast<int64_t>(waiting_.size()) > limit_ && !is_end) gone_ = aborted_ = done_ = true;
    }
    asio::post(context_, [self = shared_from_this()] { self->wake_.cancel(); });
  }

  asio::io_context& context_;
  const int64_t limit_;
  asio::steady_timer wake_;
  std::atomic<bool> gone_ = false, aborted_ = false;
  std::mutex mutex_;
  std::string waiting_;  // guarded by mutex_
  bool done_ = false;    // guarded by mutex_
};

class BeastExchange : public Exchange {
 public:
  explicit BeastExchange(std::shared_ptr<Outbox> outbox) : outbox_(std::move(outbox)) {}
  ~BeastExchange() override { outbox_->Abort(); }

  void Respond(HttpResponse response) override { outbox_->Respond(response); }
  void Start(HttpResponse head) override { outbox_->Start(head); }
  void Send(std::string piece) override { outbox_->Send(piece); }
  void Finish() override { outbox_->Finish(); }
  void Abort() override { outbox_->Abort(); }
  bool gone() const override { return outbox_->gone(); }

 private:
  const std::shared_ptr<Outbox> outbox_;
};

class BeastServer;

class Connection {
 public:
  Connection(tcp::socket socket, BeastServer& server) : stream_(std::move(socket)), server_(server) {}
  asio::awaitable<void> Run();
  // Ends it if it waits for a request.
  void CloseIfIdle() {
    if (idle_) Cut();
  }
  void Cut() {
    error_code ignored;
    stream_.socket().close(ignored);  // NOLINT(bugprone-unused-return-value)
  }

 private:
  using Parser = http::request_parser<http::string_body>;

  asio::awaitable<bool> ServeOne();
  asio::awaitable<bool> Refuse(const HttpResponse& response);
  asio::awaitable<bool> SendAnswer(std::shared_ptr<Outbox> outbox);
  asio::awaitable<void> WriteAll(Outbox& outbox);
  asio::awaitable<void> WatchForEnd(Outbox& outbox);
  asio::awaitable<bool> Write(std::string text);

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  BeastServer& server_;
  bool idle_ = true;
};

class BeastServer : public HttpServer {
 public:
  BeastServer(const HttpOptions& options, Handler* handler)
      : options_(options), handler_(*handler), acceptor_(context_) {}
  ~BeastServer() override {
    asio::post(context_, [this] {
      CloseAcceptor();
      for (const auto& connection : connections_) connection->Cut();
      context_.stop();
    });
    if (thread_.joinable()) thread_.join();
    connections_.clear();
  }

  Status Start() {
    error_code error;
    tcp::resolver resolver(context_);
    const auto found = resolver.resolve(options_.host, std::to_string(options_.port), tcp::resolver::passive, error);
    if (error || found.empty()) {
      return InvalidArgument(fmt::format("cannot find the address '{}': {}", options_.host, error.message()));
    }
    const tcp::endpoint endpoint = found.begin()->endpoint();
    const auto step = [&](auto&& action) {
      if (!error) action();
    };
    step([&] { acceptor_.open(endpoint.protocol(), error); });
    step([&] { acceptor_.set_option(tcp::acceptor::reuse_address(true), error); });
    step([&] { acceptor_.bind(endpoint, error); });
    step([&] { acceptor_.listen(asio::socket_base::max_listen_connections, error); });
    step([&] { port_ = acceptor_.local_endpoint(error).port(); });
    if (error) {
      return IoError(fmt::format("cannot listen on {} port {}: {}; give another --port, or end the program that has it",
                                 options_.host, options_.port, error.message()));
    }
    asio::co_spawn(context_, Accept(), asio::detached);
    thread_ = std::thread([this] { context_.run(); });
    return OkStatus();
  }

  int port() const override { return port_; }
  int64_t active() const override { return active_; }
  void Drain() override {
    draining_ = true;
    asio::post(context_, [this] {
      CloseAcceptor();
      for (const auto& connection : connections_) connection->CloseIfIdle();
    });
  }

  const HttpLimits& limits() const { return options_.limits; }
  Handler& handler() { return handler_; }
  asio::io_context& context() { return context_; }
  bool draining() const { return draining_; }
  std::atomic<int64_t>& active_count() { return active_; }

 private:
  void CloseAcceptor() {
    error_code ignored;
    acceptor_.close(ignored);  // NOLINT(bugprone-unused-return-value)
  }

  asio::awaitable<void> Accept() {
    asio::steady_timer pause(context_);
    while (acceptor_.is_open()) {
      auto [error, socket] = co_await acceptor_.async_accept(kAwait);
      if (error == asio::error::operation_aborted || error == asio::error::bad_descriptor) co_return;
      if (error) {  // too many open files, perhaps: not at once again
        pause.expires_after(std::chrono::milliseconds(100));
        co_await pause.async_wait(kAwait);
        continue;
      }
      if (static_cast<int64_t>(connections_.size()) >= options_.limits.connections) continue;  // closes it
      asio::co_spawn(context_, Serve(std::move(socket)), asio::detached);
    }
  }

  asio::awaitable<void> Serve(tcp::socket socket) {
    const auto connection =
        connections_.insert(connections_.end(), std::make_unique<Connection>(std::move(socket), *this));
    handler_.OnConnections(static_cast<int64_t>(connections_.size()));
    co_await (*connection)->Run();
    connections_.erase(connection);
    handler_.OnConnections(static_cast<int64_t>(connections_.size()));
  }

  const HttpOptions options_;
  Handler& handler_;
  asio::io_context context_{1};
  tcp::acceptor acceptor_;
  int port_ = 0;
  std::atomic<bool> draining_ = false;
  std::atomic<int64_t> active_ = 0;
  std::list<std::unique_ptr<Connection>> connections_;  // the server's thread's own
  std::thread thread_;
};

asio::awaitable<void> Connection::Run() {
  error_code ignored;
  stream_.socket().set_option(tcp::no_delay(true), ignored);  // NOLINT(bugprone-unused-return-value)
  try {
    while (co_await ServeOne()) {
    }
  } catch (const std::exception&) {  // no memory: this connection ends, the others need not
  }
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);  // NOLINT(bugprone-unused-return-value)
  Cut();
}

// False: the connection is to be closed.
asio::awaitable<bool> Connection::ServeOne() {
  const HttpLimits& limits = server_.limits();
  Parser parser;
  parser.header_limit(static_cast<uint32_t>(limits.header_bytes));
  parser.body_limit(static_cast<uint64_t>(limits.body_bytes));
  stream_.expires_after(std::chrono::seconds(limits.idle_seconds));
  idle_ = true;
  auto [head_error, head_bytes] = co_await http::async_read_header(stream_, buffer_, parser, kAwait);
  idle_ = false;
  if (head_error == http::error::end_of_stream || server_.draining()) co_return false;
  if (head_error == http::error::body_limit) {
    co_return co_await Refuse(
        server_.handler().Refuse(413, fmt::format("the body is larger than {} bytes", limits.body_bytes)));
  }
  if (head_error == http::error::header_limit) {
    co_return co_await Refuse(
        server_.handler().Refuse(431, fmt::format("the header is larger than {} bytes", limits.header_bytes)));
  }
  if (head_error.category() == http::make_error_code(http::error::bad_version).category()) {
    if (head_error == http::error::partial_message) co_return false;
    co_return co_await Refuse(
        server_.handler().Refuse(400, "this is not a request of HTTP/1.1: " + head_error.message()));
  }
  if (head_error) co_return false;

  HttpRequest request;
  const auto& head = parser.get();
  request.method = std::string(head.method_string());
  request.path = std::string(head.target());
  request.path = request.path.substr(0, request.path.find('?'));
  for (const auto& field : head) {
    std::string name(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  if (const auto refusal = server_.handler().Screen(request)) co_return co_await Refuse(*refusal);

  if (!parser.is_done()) {
    if (request.Header("expect") == "100-continue" && !co_await Write("HTTP/1.1 100 Continue\r\n\r\n")) co_return false;
    stream_.expires_after(std::chrono::seconds(limits.body_seconds));
    auto [body_error, body_bytes] = co_await http::async_read(stream_, buffer_, parser, kAwait);
    if (body_error == http::error::body_limit) {
      co_return co_await Refuse(
          server_.handler().Refuse(413, fmt::format("the body is larger than {} bytes", limits.body_bytes)));
    }
    if (body_error) co_return false;  // also when it took too long
  }
  request.body = std::move(parser.get().body());

  auto outbox = std::make_shared<Outbox>(server_.context(), limits.unsent_bytes);
  outbox->keep_alive = parser.get().keep_alive() && !server_.draining();
  outbox->chunked = parser.get().version() >= 11;
  outbox->head_only = request.method == "HEAD";
  ++server_.active_count();
  server_.handler().Handle(std::move(request), std::make_shared<BeastExchange>(outbox));
  const bool go_on = co_await SendAnswer(outbox);
  --server_.active_count();
  co_return go_on && outbox->keep_alive && !server_.draining();
}

// Answers a request that was not read to its end, so that nothing can follow.
asio::awaitable<bool> Connection::Refuse(const HttpResponse& response) {
  co_await Write(HeadText(response, Framing::kLength, false) + response.body);
  // What was sent on the way is read for a moment: to close on unread bytes would take the answer away from the client.
  error_code ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);  // NOLINT(bugprone-unused-return-value)
  stream_.expires_after(std::chrono::seconds(2));
  std::string rest(size_t{64} << 10, '\0');
  for (int64_t read = 0; read < server_.limits().body_bytes;) {
    auto [error, bytes] = co_await stream_.async_read_some(asio::buffer(rest), kAwait);
    if (error) break;
    read += static_cast<int64_t>(bytes);
  }
  co_return false;
}

asio::awaitable<bool> Connection::SendAnswer(std::shared_ptr<Outbox> outbox) {
  using namespace asio::experimental::awaitable_operators;  // NOLINT(google-build-using-namespace)
  co_await (WriteAll(*outbox) || WatchForEnd(*outbox));
  co_return !outbox->gone() && !outbox->aborted();
}

asio::awaitable<void> Connection::WriteAll(Outbox& outbox) {
  for (bool is_end = false; !is_end;) {
    std::string text;
    is_end = co_await outbox.Next(&text);
    if (!text.empty() && !co_await Write(std::move(text))) {
      outbox.SetGone();
      co_return;
    }
  }
}

// Ends when the client closes its side.
asio::awaitable<void> Connection::WatchForEnd(Outbox& outbox) {
  while (true) {
    auto [error] = co_await stream_.socket().async_wait(tcp::socket::wait_read, kAwait);
    if (error == asio::error::operation_aborted) co_return;
    char byte = 0;
    const ssize_t n = recv(stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
      outbox.SetGone();
      co_return;
    }
    if (n > 0) break;
  }
  // The next request is there already. An end behind it is not seen until this one was answered.
  asio::steady_timer forever(server_.context(), asio::steady_timer::time_point::max());
  co_await forever.async_wait(kAwait);
}

asio::awaitable<bool> Connection::Write(std::string text) {
  stream_.expires_after(std::chrono::seconds(server_.limits().write_seconds));
  auto [error, bytes] = co_await asio::async_write(stream_, asio::buffer(text), kAwait);
  stream_.expires_never();
  co_return !error;
}

}  // namespace

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

bool IsLoopback(const std::string& host) {
  error_code error;
  const asio::ip::address address = asio::ip::make_address(host, error);
  return error ? host == "localhost" : address.is_loopback();
}

Result<std::unique_ptr<HttpServer>> HttpServer::Listen(const HttpOptions& options, Handler* handler) {
  try {
    auto server = std::make_unique<BeastServer>(options, handler);
    TC_RETURN_IF_ERROR(server->Start());
    return Result<std::unique_ptr<HttpServer>>(std::move(server));
  } catch (const std::exception& exception) {
    return IoError(fmt::format("cannot start the server: {}", exception.what()));
  }
}

}  // namespace tensorcache::server
