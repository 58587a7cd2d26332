// The memory as a differentiable op: tensorcache/kernels/memory_scan.h has the recurrence and the meaning of lag, past,
// rule, mode and chunk.
#pragma once

#include <cstdint>

#include "tensorcache/kernels/memory_scan.h"
#include "train/ops/backend.h"

namespace tensorcache::train {

// Views with any strides are fine as long as rows are contiguous. Undefined tensors stand for none. Gradients flow to
// every tensor that requires one.
struct MemoryScanInputs {
  Tensor q;                      // (B, T, H, Dk)
  Tensor k;                      // (B, T, G, Dk)
  Tensor v;                      // (B, T, G, Dv)
  Tensor log_decay;              // (G), or (B, T, G) per token; float32 whatever q is
  Tensor write_strength;         // the same
  Tensor past_k{};               // (B, G, P, Dk), oldest first: tokens not yet written
  Tensor past_v{};               // (B, G, P, Dv)
  Tensor past_log_decay{};       // (B, G, P) if log_decay is per token
  Tensor past_write_strength{};  // the same
  Tensor initial{};              // (B, G, Dk, Dv), float32; undefined: zero
  int64_t lag = 0;
  WriteRule rule = WriteRule::kOuter;
  ScanMode mode = ScanMode::kExact;
  int64_t chunk = 0;
};

struct MemoryScanOutputs {
  Tensor reads;        // (B, T, H, Dv), contiguous, dtype of q
  Tensor final_state;  // (B, G, Dk, Dv), float32 (double for double inputs)
};

// The fused op keeps its inputs and the states between chunks for the gradient, has no second derivative, and throws
// DivergedError, here or in the backward pass. The composite one leaves infinities in its outputs: to look would make a
// GPU wait.
MemoryScanOutputs MemoryScan(const MemoryScanInputs& inputs, Backend backend = Backend::kAuto);

// What MemoryScan calls for Backend::kComposite, after checking sizes. Computes in float32, or double for double
// inputs.
MemoryScanOutputs MemoryScanComposite(const MemoryScanInputs& inputs);

}  // namespace tensorcache::train
