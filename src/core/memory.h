// What the kernel says about memory; 0 where it says nothing.
#pragma once

#include <cstdint>

namespace tensorcache {

// Of this process, in physical memory.
int64_t ResidentBytes();
// That the machine can give out without swapping.
int64_t AvailableBytes();

}  // namespace tensorcache
