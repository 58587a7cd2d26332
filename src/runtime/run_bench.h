// The speed and size of the run half: decoding, prefilling, and what a session keeps, each row beside a limit that was
// measured in turn with it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tensorcache/model.h"
#include "tensorcache/status.h"

namespace tensorcache::runtime {

struct RunBenchOptions {
  ModelConfig config;  // sizes and window; the methods are the bench's
  int threads = 0;
  double seconds = 4;                                                  // about, a row
  int64_t depth = 16384;                                               // tokens of the deep rows
  std::function<void(const std::string& what, double done)> progress;  // of long preparations; may be empty
};

// The model of the published speed figures: GPT-2 small's shape, window 512.
ModelConfig Gpt130mConfig();

struct DecodeRow {
  std::string method;
  WeightType weights = WeightType::kFp32;
  RingType ring = RingType::kFp32;
  int64_t sessions = 1;
  int64_t context = 0;           // tokens that each session has read
  double tokens_per_second = 0;  // of all sessions
  double to_baseline = 0;        // tokens per second to those of `baseline`, measured in turn; 0: none
  std::string baseline;
  // One session is limited by reading: all weights and its state, once a token.
  double bytes = 0;
  double bandwidth = 0;  // bytes per second that this machine reads
  // Many sessions are limited by arithmetic.
  double flops = 0;         // of a step of all sessions
  double sgemm_rate = 0;    // FLOPs per second of all threads
  double of_bandwidth = 0;  // bytes / time / bandwidth
  double of_sgemm = 0;      // flops / time / rate
  double of_both = 0;       // time that sgemm and the bus would need one after the other / time
};

struct PrefillRow {
  std::string method;
  WeightType weights = WeightType::kFp32;
  int64_t block = 0;
  int64_t context = 0;  // tokens before
  double tokens_per_second = 0;
  double to_window = 0;
  double sgemm_rate = 0;
  double of_sgemm = 0;
};

struct StateRow {
  std::string method;
  RingType ring = RingType::kFp32;
  int64_t context = 0;
  int64_t state_bytes = 0;     // as the cache tells
  int64_t resident_bytes = 0;  // by which the process grew
  int64_t file_bytes = 0;      // of the saved state; 0: not saved
  bool measured = true;        // false: does not fit into this machine, resident_bytes is the formula's
};

template <class Row>
using OnRow = std::function<void(const Row&)>;

Status BenchDecode(const RunBenchOptions& options, const OnRow<DecodeRow>& on_row);
Status BenchPrefill(const RunBenchOptions& options, const OnRow<PrefillRow>& on_row);
Status BenchState(const RunBenchOptions& options, const OnRow<StateRow>& on_row);

}  // namespace tensorcache::runtime
