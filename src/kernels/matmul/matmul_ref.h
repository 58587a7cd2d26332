// The specification: plain loops in double. For tests.
#pragma once

#include "tensorcache/kernels/matmul.h"

namespace tensorcache {

void LinearReference(const Fp32Weights& weights, const LinearArgs& args);
void LinearReference(const Bf16Weights& weights, const LinearArgs& args);
void LinearReference(const Int8Weights& weights, const LinearArgs& args);
void GemmReference(const GemmArgs& args);

}  // namespace tensorcache
