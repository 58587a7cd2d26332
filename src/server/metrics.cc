#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/process_memory.h"

namespace tensorcache::server {
namespace {

std::string Head(const std::string& name, const char* type, const std::string& help) {
  return fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

std::string Single(const std::string& name, const char* type, const std::string& help, int64_t value) {
  return Head(name, type, help) + fmt::format("{} {}\n", name, value);
}

}  // namespace

void Histogram::Add(double value) {
  const auto bucket = std::lower_bound(edges_.begin(), edges_.end(), value) - edges_.begin();
  const std::lock_guard lock(mutex_);
  ++counts_[static_cast<size_t>(bucket)];
  sum_ += value;
}

std::string Histogram::Text(const std::string& name, const std::string& help) const {
  const std::lock_guard lock(mutex_);
  std::string text = Head(name, "histogram", help);
  uint64_t count = 0;
  for (size_t i = 0; i < edges_.size(); ++i) {
    count += counts_[i];
    text += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, edges_[i], count);
  }
  count += counts_.back();
  text += fmt::format("{}_bucket{{le=\"+Inf\"}} {}\n{}_sum {}\n{}_count {}\n", name, count, name, sum_, name, count);
  return text;
}

void Metrics::CountRequest(const std::string& route, int status) {
  const std::lock_guard lock(mutex_);
  ++requests_[{route, status}];
}

std::string Metrics::Text() const {
  std::string text = Head("tensorcache_requests_total", "counter", "Requests answered, by route and status.");
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, count] : requests_) {
      text +=
          fmt::format("tensorcache_requests_total{{route=\"{}\",status=\"{}\"}} {}\n", key.first, key.second, count);
    }
  }
  text += Single("tensorcache_prompt_tokens_total", "counter", "Tokens of prompts that the model read.", prompt_tokens);
  text += Single("tensorcache_generated_tokens_total", "counter", "Tokens that the model wrote.", generated_tokens);
  text += Single("tensorcache_requests_cancelled_total", "counter", "Requests that nobody read any more.", cancelled);
  text += Single("tensorcache_sequences_running", "gauge", "Sequences that are read or written now.", running);
  text += Single("tensorcache_requests_waiting", "gauge", "Requests that wait for a place.", waiting);
  text += Single("tensorcache_connections", "gauge", "Open connections.", connections);
  text += Single("tensorcache_running_state_bytes", "gauge", "State of the sequences that run.", state_bytes);
  text += Single("tensorcache_sessions", "gauge", "Sessions that clients have made.", sessions);
  text += Single("tensorcache_session_state_bytes", "gauge", "State of these sessions.", session_bytes);
  text += Single("tensorcache_sessions_evicted_total", "counter", "Sessions that went for others.", sessions_evicted);
  text += Single("process_resident_memory_bytes", "gauge", "Physical memory of the process.", ResidentBytes());
  text += first_token.Text("tensorcache_time_to_first_token_seconds", "From a request's arrival to its first token.");
  text += token_gap.Text("tensorcache_time_between_tokens_seconds", "Between two tokens of a sequence.");
  text += request_time.Text("tensorcache_request_seconds", "From a request's arrival to the end of its answer.");
  return text;
}

}  // namespace tensorcache::server
