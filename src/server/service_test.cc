// The server over loopback sockets: what HTTP asks of it, and what it answers on its routes.
#include "server/service.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <thread>

#include "server/server_testing.h"

namespace tensorcache::server {
namespace {

class Client {
 public:
  explicit Client(int port) {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Client() { Close(); }
  Client(const Client&) = delete;

  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void Send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t n = send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (n <= 0) return;  // the server has closed
      text.remove_prefix(static_cast<size_t>(n));
    }
  }
  // More of what the server sends; false: it has closed, or is silent for half a minute.
  bool Receive() {
    pollfd poll_fd{.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&poll_fd, 1, 30'000) <= 0) return false;
    char buffer[4096];
    const ssize_t n = recv(fd_, buffer, sizeof(buffer), 0);
    if (n <= 0) return false;
    received.append(buffer, static_cast<size_t>(n));
    return true;
  }
  std::string UntilClosed() {
    while (Receive()) {
    }
    return received;
  }
  bool Until(std::string_view text) {
    while (received.find(text) == std::string::npos) {
      if (!Receive()) return false;
    }
    return true;
  }

  std::string received;

 private:
  int fd_ = -1;
};

class ServiceTest : public ::testing::Test {
 protected:
  ~ServiceTest() override {
    if (service_) service_->Stop();
    http_.reset();
  }
  void Start(ServiceOptions options = {}, HttpOptions http = {}, PositionKind positions = PositionKind::kRope) {
    options.model = "small";
    options.engine.max_batch = 4;
    options.max_tokens = int64_t{1} << 40;
    service_ = std::make_unique<Service>(SmallModel(positions), MakeByteTokenizer(), options);
    auto listening = HttpServer::Listen(http, service_.get());
    ASSERT_TRUE(listening.ok()) << listening.status().message();
    http_ = std::move(*listening);
  }
  static std::string RequestText(const std::string& method, const std::string& path, const std::string& body = "",
                                 const std::string& more = "Connection: close\r\n") {
    return fmt::format(
        "{} {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{}", method,
        path, body.size(), more, body);
  }
  std::string Ask(const std::string& text) const {
    Client client(http_->port());
    client.Send(text);
    return client.UntilClosed();
  }
  std::string Get(const std::string& path) const { return Ask(RequestText("GET", path)); }
  std::string Post(const std::string& path, const std::string& body) const {
    return Ask(RequestText("POST", path, body));
  }
  static Json BodyOf(const std::string& answer) {
    const size_t at = answer.find("\r\n\r\n");
    return at == std::string::npos ? Json() : Json::parse(answer.substr(at + 4), nullptr, false);
  }
  static int StatusOf(const std::string& answer) { return answer.size() < 12 ? 0 : std::stoi(answer.substr(9, 3)); }
  void ExpectError(const std::string& answer, int status, const std::string& code) const {
    EXPECT_EQ(StatusOf(answer), status) << answer;
    EXPECT_EQ(BodyOf(answer)["error"]["code"], code) << answer;
    EXPECT_NE(answer.find("X-Request-Id: "), std::string::npos);
  }
  std::string MetricLine(const std::string& name) const {
    const std::string text = Get("/metrics");
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? "" : text.substr(at + 1, text.find('\n', at + 1) - at - 1);
  }
  // Until the engine has nothing to do.
  bool Idles() const {
    for (int i = 0; i < 3000; ++i) {
      if (MetricLine("tensorcache_sequences_running") == "tensorcache_sequences_running 0" && http_->active() <= 1)
        return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  std::string NewSession() const { return BodyOf(Post("/v1/sessions", "{}"))["id"]; }
  std::string Complete(const std::string& session, const std::string& fields) const {
    return Post("/v1/completions", R"({"session": ")" + session + R"(", )" + fields + "}");
  }
  std::string PutState(const std::string& session, const std::string& state) const {
    std::string text = RequestText("PUT", "/v1/sessions/" + session + "/state", state);
    const std::string json = "application/json";
    return Ask(text.replace(text.find(json), json.size(), "application/octet-stream"));
  }
  static std::string TextOf(const Json& completion) { return completion["choices"][0]["text"]; }

  static constexpr const char* kForever = R"({"prompt": "a", "max_tokens": 1000000000, "stream": true})";
  std::unique_ptr<Service> service_;
  std::unique_ptr<HttpServer> http_;
};

TEST_F(ServiceTest, Completes) {
  Start();
  const std::string body = R"({"model": "small", "prompt": "hello", "max_tokens": 8, "seed": 1})";
  const Json first = BodyOf(Post("/v1/completions", body)), again = BodyOf(Post("/v1/completions", body));
  EXPECT_EQ(first["object"], "text_completion");
  EXPECT_EQ(first["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(first["choices"], again["choices"]);
  EXPECT_NE(first["id"], again["id"]);
  EXPECT_EQ(first["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(first["usage"]["completion_tokens"], 8);

  // A stream has the same text.
  const std::string stream =
      Post("/v1/completions", R"({"prompt": "hello", "max_tokens": 8, "seed": 1, "stream": true})");
  std::string text;
  for (size_t at = stream.find("data: {"); at != stream.npos; at = stream.find("data: {", at + 1)) {
    text += Json::parse(stream.substr(at + 6, stream.find('\n', at) - at - 6))["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, first["choices"][0]["text"]);
  EXPECT_NE(stream.find("data: [DONE]\n\n"), std::string::npos);
  EXPECT_TRUE(stream.ends_with("\r\n0\r\n\r\n"));
}

TEST_F(ServiceTest, EchoHasTheScoresOfThePrompt) {
  Start();
  const Json json =
      BodyOf(Post("/v1/completions",
                  R"({"prompt": [104, 105, 33], "max_tokens": 1, "temperature": 0, "echo": true, "logprobs": 2})"));
  const Json& choice = json["choices"][0];
  EXPECT_TRUE(choice["text"].get<std::string>().starts_with("hi!"));
  const Json& logprobs = choice["logprobs"];
  ASSERT_EQ(logprobs["tokens"].size(), 4u);
  EXPECT_EQ(logprobs["token_logprobs"][0], nullptr);
  EXPECT_EQ(logprobs["text_offset"], Json({0, 1, 2, 3}));
  double best = -1000;
  for (const auto& [token, logprob] : logprobs["top_logprobs"][3].items()) best = std::max(best, logprob.get<double>());
  EXPECT_EQ(logprobs["token_logprobs"][3].get<double>(), best);  // to the last bit: the reply is greedy
}

TEST_F(ServiceTest, OtherRoutes) {
  Start();
  EXPECT_EQ(BodyOf(Get("/health"))["status"], "ok");
  EXPECT_EQ(BodyOf(Get("/ready"))["status"], "ready");
  EXPECT_EQ(BodyOf(Get("/v1/models"))["data"][0]["id"], "small");
  EXPECT_EQ(BodyOf(Get("/v1/models/small"))["id"], "small");
  ExpectError(Get("/v1/models/large"), 404, "model_not_found");
  const Json props = BodyOf(Get("/props"));
  EXPECT_EQ(props["window"], 16);
  EXPECT_EQ(props["state_bytes"], 2 * 16 * 2 * 32 * 4);  // layers, W, keys and values, width, bytes of a number
  EXPECT_EQ(BodyOf(Post("/tokenize", R"({"content": "hi"})"))["tokens"], Json({104, 105}));
  EXPECT_EQ(BodyOf(Post("/detokenize", R"({"tokens": [104, 105]})"))["content"], "hi");
  EXPECT_TRUE(Ask(RequestText("HEAD", "/health")).ends_with("\r\n\r\n"));
  EXPECT_EQ(StatusOf(Get("/health?x=1")), 200);
  ExpectError(Get("/v1/nothing"), 404, "route_not_found");
  ExpectError(Get("/../../etc/passwd"), 404, "route_not_found");
  ExpectError(Post("/health", "{}"), 405, "method_not_allowed");
  ExpectError(Post("/v1/completions", R"({"prompt": ""})"), 400, "invalid_value");
  ExpectError(Post("/v1/completions", "{"), 400, "invalid_value");
}

TEST_F(ServiceTest, ASessionGoesOnAsOneText) {
  Start();
  const std::string id = NewSession(), path = "/v1/sessions/" + id;
  EXPECT_EQ(BodyOf(Post(path + "/append", R"({"content": "hello"})"))["position"], 5);
  EXPECT_EQ(BodyOf(Post(path + "/append", R"({"tokens": [32, 97]})"))["position"], 7);
  const Json first = BodyOf(Complete(id, R"("max_tokens": 6, "seed": 3)"));
  EXPECT_EQ(first["session"]["position"], 13);
  EXPECT_EQ(first["usage"]["prompt_tokens"], 7);
  EXPECT_EQ(first["usage"]["prompt_tokens_details"]["cached_tokens"], 7);
  const Json second = BodyOf(Complete(id, R"("max_tokens": 7, "seed": 3)"));
  const Json whole = BodyOf(Post("/v1/completions", R"({"prompt": "hello a", "max_tokens": 13, "seed": 3})"));
  EXPECT_EQ(TextOf(first) + TextOf(second), TextOf(whole));
  EXPECT_EQ(BodyOf(Get(path))["position"], 20);

  EXPECT_EQ(BodyOf(Ask(RequestText("DELETE", path)))["deleted"], true);
  ExpectError(Get(path), 404, "session_not_found");
  ExpectError(Complete(id, R"("max_tokens": 6)"), 404, "session_not_found");
}

TEST_F(ServiceTest, ForksGoTheirOwnWays) {
  Start();
  const std::string id = NewSession();
  Post("/v1/sessions/" + id + "/append", R"({"content": "hello"})");
  const Json forks = BodyOf(Post("/v1/sessions/" + id + "/fork", R"({"count": 2})"));
  ASSERT_EQ(forks["data"].size(), 2u);
  const std::string a = forks["data"][0]["id"], b = forks["data"][1]["id"];
  const Json first = BodyOf(Complete(a, R"("max_tokens": 9, "seed": 1)"));
  EXPECT_EQ(first["session"]["position"], 14);
  EXPECT_EQ(TextOf(BodyOf(Complete(b, R"("max_tokens": 9, "seed": 1)"))), TextOf(first));
  EXPECT_EQ(TextOf(BodyOf(Complete(id, R"("max_tokens": 9, "seed": 1)"))), TextOf(first));
  EXPECT_NE(TextOf(BodyOf(Complete(a, R"("prompt": "x", "max_tokens": 9, "seed": 1)"))),
            TextOf(BodyOf(Complete(b, R"("prompt": "y", "max_tokens": 9, "seed": 1)"))));
}

TEST_F(ServiceTest, StatesComeAndGoAsFiles) {
  Start();
  const std::string id = NewSession(), other = NewSession();
  Post("/v1/sessions/" + id + "/append", R"({"content": "a text that is longer than the window"})");
  const std::string answer = Get("/v1/sessions/" + id + "/state");
  EXPECT_NE(answer.find("Content-Type: application/octet-stream"), std::string::npos);
  const std::string state = answer.substr(answer.find("\r\n\r\n") + 4);
  EXPECT_EQ(BodyOf(PutState(other, state))["position"], 37);
  EXPECT_EQ(TextOf(BodyOf(Complete(other, R"("max_tokens": 9, "seed": 1)"))),
            TextOf(BodyOf(Complete(id, R"("max_tokens": 9, "seed": 1)"))));
  std::string damaged = state;
  damaged[damaged.size() / 2] ^= 1;
  ExpectError(PutState(other, damaged), 422, "state_corrupt");
  ExpectError(PutState(other, "nothing"), 422, "state_corrupt");
  ExpectError(PutState(other, ""), 422, "state_corrupt");
  EXPECT_EQ(BodyOf(Get("/v1/sessions/" + other))["position"], 46);  // as it was
  ExpectError(Post("/v1/sessions/" + other + "/append", R"({})"), 400, "invalid_value");
  ExpectError(Ask(RequestText("PUT", "/v1/sessions/" + other + "/state", "{}")), 415, "unsupported_media_type");

  // Of another model.
  ModelConfig config = SmallModel()->config();
  config.cache.window = 12;
  const auto model = Model::Random(config, {.threads = 1}, 3);
  Session stranger = std::move(Session::Create(*model)).value();
  ASSERT_TRUE(stranger.Decode(1).ok());
  const auto bytes = stranger.Serialize();
  ExpectError(PutState(other, std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size())), 409,
              "state_model_mismatch");
}

TEST_F(ServiceTest, ASessionHasOneUserAtATimeAndSurvivesOneThatLeaves) {
  Start();
  const std::string id = NewSession();
  Post("/v1/sessions/" + id + "/append", R"({"content": "hello"})");
  Client client(http_->port());
  client.Send(RequestText("POST", "/v1/completions",
                          R"({"session": ")" + id + R"(", "max_tokens": 1000000000, "stream": true})"));
  ASSERT_TRUE(client.Until("data: "));
  ExpectError(Complete(id, R"("max_tokens": 1)"), 409, "session_busy");
  ExpectError(Post("/v1/sessions/" + id + "/append", R"({"content": "x"})"), 409, "session_busy");
  EXPECT_EQ(BodyOf(Post("/v1/sessions/" + id + "/fork", "{}"))["data"][0]["position"], 5);
  client.Close();
  ASSERT_TRUE(Idles());
  EXPECT_EQ(BodyOf(Complete(id, R"("max_tokens": 1)"))["session"]["position"], 6);  // as it was before
}

TEST_F(ServiceTest, SessionsAreTheKeysThatMadeThem) {
  ServiceOptions options;
  options.keys = *AccessKeys::Parse("sixteen-letters-1\nsixteen-letters-2", "keys");
  Start(std::move(options));
  const auto as = [&](const std::string& key, const std::string& method, const std::string& path,
                      const std::string& body) {
    return Ask(RequestText(method, path, body, "Connection: close\r\nAuthorization: Bearer " + key + "\r\n"));
  };
  const std::string id = BodyOf(as("sixteen-letters-1", "POST", "/v1/sessions", "{}"))["id"];
  EXPECT_EQ(StatusOf(as("sixteen-letters-1", "GET", "/v1/sessions/" + id, "")), 200);
  for (const auto& [method, more] :
       {std::pair("GET", ""), {"DELETE", ""}, {"POST", "/append"}, {"POST", "/fork"}, {"GET", "/state"}}) {
    ExpectError(as("sixteen-letters-2", method, "/v1/sessions/" + id + more,
                   more == std::string("/append") ? R"({"content": "x"})" : "{}"),
                404, "session_not_found");
  }
  ExpectError(as("sixteen-letters-2", "POST", "/v1/completions", R"({"session": ")" + id + R"("})"), 404,
              "session_not_found");
}

TEST_F(ServiceTest, SessionsStayWithinTheirMemory) {
  ServiceOptions options;
  options.state_bytes = 3 * 2 * 16 * 2 * 32 * 4;  // of three
  Start(std::move(options));
  const std::string a = NewSession(), b = NewSession(), c = NewSession();
  EXPECT_EQ(StatusOf(Get("/v1/sessions/" + a)), 200);
  NewSession();
  EXPECT_EQ(StatusOf(Get("/v1/sessions/" + a)), 200);
  ExpectError(Get("/v1/sessions/" + b), 404, "session_not_found");  // the one that waited longest
  EXPECT_EQ(StatusOf(Get("/v1/sessions/" + c)), 200);
  EXPECT_EQ(MetricLine("tensorcache_sessions"), "tensorcache_sessions 3");
  EXPECT_EQ(MetricLine("tensorcache_sessions_evicted_total"), "tensorcache_sessions_evicted_total 1");
}

TEST_F(ServiceTest, WithoutRoomForStatesThereAreNoSessions) {
  ServiceOptions options;
  options.state_bytes = 100;
  Start(std::move(options));
  ExpectError(Post("/v1/sessions", "{}"), 503, "store_unavailable");
}

TEST_F(ServiceTest, LearnedPositionsEnd) {
  Start({}, {}, PositionKind::kLearned);
  ExpectError(Post("/v1/completions", R"({"prompt": "hello", "max_tokens": 60})"), 400, "context_length_exceeded");
  EXPECT_EQ(StatusOf(Post("/v1/completions", R"({"prompt": "hello", "max_tokens": 59})")), 200);
}

TEST_F(ServiceTest, OneConnectionAsksOftenAndAhead) {
  Start();
  Client client(http_->port());
  const std::string ask = RequestText("GET", "/health", "", "");
  client.Send(ask);
  ASSERT_TRUE(client.Until("{\"status\":\"ok\"}"));
  client.received.clear();
  client.Send(RequestText("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 40})", "") + ask + ask +
              RequestText("GET", "/ready"));
  const std::string answers = client.UntilClosed();
  EXPECT_NE(answers.find("text_completion"), std::string::npos) << answers;
  EXPECT_TRUE(answers.ends_with("{\"status\":\"ready\"}"));
}

TEST_F(ServiceTest, KeysGuardAllButHealth) {
  ServiceOptions options;
  options.keys = *AccessKeys::Parse("sixteen-letters-1", "keys");
  Start(std::move(options));
  for (const char* path : {"/v1/models", "/metrics", "/props", "/ready", "/nothing"}) {
    ExpectError(Get(path), 401, "invalid_api_key");
  }
  ExpectError(Post("/v1/completions", R"({"prompt": "a"})"), 401, "invalid_api_key");
  EXPECT_EQ(StatusOf(Get("/health")), 200);
  ExpectError(Ask(RequestText("GET", "/v1/models", "", "Authorization: Bearer wrong\r\n")), 401, "invalid_api_key");
  EXPECT_EQ(StatusOf(Ask(RequestText("GET", "/v1/models", "",
                                     "Authorization: Bearer sixteen-letters-1\r\nConnection: close\r\n"))),
            200);
  // Before the body comes: nothing of it is waited for.
  Client client(http_->port());
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_TRUE(client.Until("invalid_api_key"));
}

TEST_F(ServiceTest, PagesOfOthersAreRefused) {
  Start();
  ExpectError(Ask("GET /props HTTP/1.1\r\nHost: evil.example:8080\r\nConnection: close\r\n\r\n"), 403,
              "forbidden_host");
  EXPECT_EQ(StatusOf(Ask("GET /props HTTP/1.1\r\nHost: [::1]:8080\r\nConnection: close\r\n\r\n")), 200);
  ExpectError(Ask("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: "
                  "2\r\n\r\n{}"),
              415, "unsupported_media_type");
}

TEST_F(ServiceTest, BadHttpIsRefused) {
  HttpOptions http;
  http.limits = {.header_bytes = 2048, .body_bytes = 4096, .connections = 16};
  Start({}, http);
  EXPECT_EQ(StatusOf(Ask("what is this\r\n\r\n")), 400);
  EXPECT_EQ(StatusOf(Ask("GET /health HTTP/1.1\r\nX: " + std::string(4000, 'x') + "\r\n\r\n")), 431);
  ExpectError(Post("/v1/completions", std::string(5000, ' ')), 413, "request_too_large");
  Client chunked(http_->port());  // of no length that is told before
  chunked.Send(
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: "
      "chunked\r\n\r\n");
  for (int i = 0; i < 6; ++i) chunked.Send("400\r\n" + std::string(1024, ' ') + "\r\n");
  EXPECT_EQ(StatusOf(chunked.UntilClosed()), 413);
  Ask(std::string(3000, '\0'));
  Client(http_->port()).Send("POST /v1/completions HT");  // half a request
  EXPECT_EQ(StatusOf(Get("/health")), 200);
}

TEST_F(ServiceTest, SlowClientsAndTooManyAreCutOff) {
  HttpOptions http;
  http.limits = {.connections = 3, .idle_seconds = 1, .body_seconds = 1};
  Start({}, http);
  Client idle(http_->port()), slow(http_->port());
  slow.Send(
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{");
  EXPECT_EQ(idle.UntilClosed(), "");
  EXPECT_EQ(slow.UntilClosed(), "");
  Client a(http_->port()), b(http_->port()), c(http_->port()), d(http_->port());
  EXPECT_EQ(d.UntilClosed(), "");  // the fourth
  a.Close(), b.Close(), c.Close();
  EXPECT_TRUE(Idles());
}

TEST_F(ServiceTest, WhoGoesAwayIsNotWrittenFor) {
  Start();
  Client stream(http_->port()), whole(http_->port());
  stream.Send(RequestText("POST", "/v1/completions", kForever));
  whole.Send(RequestText("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 1000000000})"));
  ASSERT_TRUE(stream.Until("data: "));
  stream.Close();
  whole.Close();
  EXPECT_TRUE(Idles());
  EXPECT_EQ(MetricLine("tensorcache_requests_cancelled_total"), "tensorcache_requests_cancelled_total 2");
}

TEST_F(ServiceTest, WhoDoesNotReadIsCutOff) {
  HttpOptions http;
  http.limits = {.unsent_bytes = 1 << 16};
  Start({}, http);
  Client client(http_->port());
  client.Send(RequestText("POST", "/v1/completions", kForever));
  ASSERT_TRUE(client.Until("data: "));
  EXPECT_TRUE(Idles());
}

TEST_F(ServiceTest, DrainsAndStops) {
  Start();
  Client idle(http_->port()), busy(http_->port()), forever(http_->port());
  busy.Send(RequestText("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 3000, "stream": true})", ""));
  forever.Send(RequestText("POST", "/v1/completions", kForever));
  ASSERT_TRUE(busy.Until("data: ") && forever.Until("data: "));
  service_->Drain();
  http_->Drain();
  EXPECT_EQ(idle.UntilClosed(), "");
  EXPECT_NE(busy.UntilClosed().find("[DONE]"), std::string::npos);
  EXPECT_EQ(http_->active(), 1);
  service_->Stop();
  const std::string cut = forever.UntilClosed();
  EXPECT_NE(cut.find("shutting_down"), std::string::npos);
  EXPECT_EQ(cut.find("[DONE]"), std::string::npos);
}

TEST(HttpServer, TellsWhyItCannotListen) {
  EXPECT_TRUE(IsLoopback("127.0.0.1") && IsLoopback("::1") && IsLoopback("localhost") && IsLoopback("127.9.9.9"));
  EXPECT_FALSE(IsLoopback("0.0.0.0") || IsLoopback("::") || IsLoopback("10.0.0.1") || IsLoopback("example.org"));
  Service service(SmallModel(), MakeByteTokenizer(), {.model = "small"});
  const auto first = HttpServer::Listen({}, &service);
  ASSERT_TRUE(first.ok());
  const auto second = HttpServer::Listen({.port = (*first)->port()}, &service);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find(std::to_string((*first)->port())), std::string::npos);
}

}  // namespace
}  // namespace tensorcache::server
