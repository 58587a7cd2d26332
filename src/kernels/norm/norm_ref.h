// The specification: plain loops in double. For tests.
#pragma once

#include "tensorcache/kernels/norm.h"

namespace tensorcache {

void LayerNormReference(const NormArgs& args);
void RmsNormReference(const NormArgs& args);
void LayerNormBackwardReference(const NormBackwardArgs& args);
void RmsNormBackwardReference(const NormBackwardArgs& args);

}  // namespace tensorcache
