// The specification: the recurrence itself, all items, accumulating in double. Allocates. For tests.
#pragma once

#include "tensorcache/kernels/memory_scan.h"

namespace tensorcache {

template <class Real>
void MemoryScanForwardReference(const MemoryScanForwardArgs<Real>& args);
template <class Real>
void MemoryScanBackwardReference(const MemoryScanBackwardArgs<Real>& args);

}  // namespace tensorcache
