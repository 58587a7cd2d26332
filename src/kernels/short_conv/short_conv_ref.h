// The specification: the formulas of short_conv.h in plain loops and double precision. For tests.
#pragma once

#include <cstdint>

#include "tensorcache/kernels/short_conv.h"

namespace tensorcache {

template <class Real>
void ShortConvForwardReference(const ShortConvForwardArgs<Real>& args, int64_t begin_item, int64_t end_item);
template <class Real>
void ShortConvBackwardReference(const ShortConvBackwardArgs<Real>& args, int64_t begin_item, int64_t end_item);

}  // namespace tensorcache
