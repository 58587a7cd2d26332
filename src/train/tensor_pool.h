// Memory of CPU tensors that is kept when a tensor is freed, for the next one of its size. A training step frees and asks for
// the same sizes again and again; given back to the system in between, each is zeroed and mapped anew, page by page. Large
// tensors lie on huge pages where the system has them.
#pragma once

#include <cstdint>

namespace tensorcache::train {

// From now on, and for good. Call it before the first large tensor. What is kept and what lives are together at most twice the
// most that ever lived, and 64 MiB: a step has its peak of each size at another time.
void PoolTensors();

// Bytes that are kept and not in use.
int64_t PooledBytes();

}  // namespace tensorcache::train
