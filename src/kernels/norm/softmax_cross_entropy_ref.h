// The specification, in double. For tests.
#pragma once

#include "kernels/norm/softmax_cross_entropy.h"

namespace tensorcache {

void SoftmaxCrossEntropyReference(const CrossEntropyArgs& args);

}  // namespace tensorcache
