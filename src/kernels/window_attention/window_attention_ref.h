// The specification: the formulas of window_attention.h in plain loops and double precision. For tests.
#pragma once

#include <cstdint>

#include "tensorcache/kernels/window_attention.h"

namespace tensorcache {

template <class Real>
Status WindowAttentionForwardReference(const WindowAttentionArgs<Real>& args, int64_t begin_item, int64_t end_item);
template <class Real>
Status WindowAttentionBackwardReference(const WindowAttentionArgs<Real>& args, const WindowAttentionGrads<Real>& grads,
                                        int64_t begin_item, int64_t end_item);
template <class Real, class Stored>
Status WindowAttentionStepReference(const WindowAttentionStepArgs<Real, Stored>& args, int64_t begin_item,
                                    int64_t end_item);

}  // namespace tensorcache
