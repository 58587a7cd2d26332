// What the kernel says about memory; 0 where it says nothing.
#pragma once

#include <cstdint>

#include "tensorcache/status.h"

namespace tensorcache {

// Of this process, in physical memory.
int64_t ResidentBytes();
// That the machine can give out without swapping.
int64_t AvailableBytes();
// That this process may still map (ulimit -v); the largest number if nothing limits it.
int64_t AddressSpaceLeft();

// OpenBLAS maps a buffer for each thread that multiplies at the same time; where it cannot, it tries for ever. So this has
// to be asked before.
Status CheckRoomForBlas(int threads);

}  // namespace tensorcache
