// How fast training is: each method of a preset in turn with the others and with sgemm, so that ratios survive a noisy
// machine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tensorcache/status.h"

namespace tensorcache::train {

struct TrainBenchRow {
  std::string preset;  // "recall"
  std::string method;  // "window", "tensor_cache outer"
  int64_t rows = 0;    // of a batch
  int64_t tokens = 0;  // of a row
  double tokens_per_second = 0;
  double to_window = 0;         // tokens/s over those of method window
  double gflops = 0;            // by methods/flops.h
  double sgemm_gflops = 0;      // all threads, measured between the steps
  double utilisation = 0;       // gflops / sgemm_gflops
  int64_t peak_bytes = 0;       // of tensors in a step: parameters, optimiser, activations, gradients
  double memory_to_window = 0;  // peak_bytes over those of method window
  int64_t peak_resident = 0;    // of the whole process during the step
};

// Forward and backward with kernels and in tensor operations.
struct FusionRow {
  std::string preset;
  std::string method;
  double ops_fused_seconds = 0;  // attention over the window, and the memory's scan
  double ops_composite_seconds = 0;
  double ops_speedup = 0;
  double layer_fused_seconds = 0;  // a whole layer: also projections, norms and feed-forward, which are mostly sgemm
  double layer_composite_seconds = 0;
  double layer_speedup = 0;
};

struct TrainBenchOptions {
  std::string preset;
  int64_t batch = 0;  // 0: the bench's own
  int repeats = 5;
};

// A row per method, window first. `on_row` gets each as it is finished.
Result<std::vector<TrainBenchRow>> BenchTraining(const TrainBenchOptions& options,
                                                 const std::function<void(const TrainBenchRow&)>& on_row);
// One layer of each method.
Result<std::vector<FusionRow>> BenchFusion(const std::string& preset, int repeats);
// Peak bytes of one step of a preset at a batch size; fills only what concerns memory.
Result<TrainBenchRow> MeasureStepMemory(const std::string& preset, const std::string& method, int64_t batch);

}  // namespace tensorcache::train
