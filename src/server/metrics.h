// What the server counts, and how Prometheus reads it (text format 0.0.4).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tensorcache::server {

// Thread-safe.
class Histogram {
 public:
  // Upper edges, ascending; one more bucket takes what is above.
  explicit Histogram(std::vector<double> edges) : edges_(std::move(edges)), counts_(edges_.size() + 1) {}
  void Add(double value);
  // Lines of the text format.
  std::string Text(const std::string& name, const std::string& help) const;

 private:
  const std::vector<double> edges_;
  mutable std::mutex mutex_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
};

// One for the server; every member is thread-safe.
struct Metrics {
  std::atomic<int64_t> prompt_tokens = 0;     // read by the model
  std::atomic<int64_t> generated_tokens = 0;  // chosen
  std::atomic<int64_t> running = 0;           // sequences that the engine works on
  std::atomic<int64_t> waiting = 0;           // requests in its queue
  std::atomic<int64_t> cancelled = 0;         // requests that nobody read any more
  std::atomic<int64_t> connections = 0;       // open
  std::atomic<int64_t> state_bytes = 0;       // of the sequences that run
  std::atomic<int64_t> sessions = 0;          // that clients have made
  std::atomic<int64_t> session_bytes = 0;     // of their states
  std::atomic<int64_t> sessions_evicted = 0;  // that went because others needed their room
  Histogram first_token{{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}};
  Histogram token_gap{{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5}};
  Histogram request_time{{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}};

  // A request was answered. `route` is one of the server's own names: clients cannot make up new ones.
  void CountRequest(const std::string& route, int status);
  // All of it; resident bytes of the process are looked up.
  std::string Text() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, uint64_t> requests_;
};

}  // namespace tensorcache::server
