// The specification: angles, cosines and sines in long double, the rotation in double. For tests.
#pragma once

#include <cstdint>
#include <span>

#include "tensorcache/kernels/rope.h"

namespace tensorcache {

void FillRopeTableReference(int64_t rotary_dims, double base, std::span<const int64_t> positions, float* cos,
                            float* sin, const RopeScaling& scaling = {});
void ApplyRopeReference(const RopeArgs& args);

}  // namespace tensorcache
