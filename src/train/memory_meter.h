// How much memory training takes: of tensors, counted at the allocator (exact, the same on every run), and of the process.
#pragma once

#include <cstdint>

namespace tensorcache::train {

// From now on CPU tensors are counted; those that are there already are not. Call it before the first tensor, or compare
// differences. Costs some 100 ns a tensor.
void StartMeteringMemory();
int64_t LiveTensorBytes();
// The most there was at a time since the last reset.
int64_t PeakTensorBytes();
// Of the whole process, as the kernel counts; 0 if it does not tell.
int64_t PeakResidentBytes();
void ResetMemoryPeaks();

}  // namespace tensorcache::train
