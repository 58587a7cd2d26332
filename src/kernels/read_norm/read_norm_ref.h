// The specification: plain loops in double, over all items. For tests.
#pragma once

#include "tensorcache/kernels/read_norm.h"

namespace tensorcache {

// Instantiated for float and double.
template <class Real>
void ReadNormForwardReference(const ReadNormForwardArgs<Real>& args);
template <class Real>
void ReadNormBackwardReference(const ReadNormBackwardArgs<Real>& args);

}  // namespace tensorcache
