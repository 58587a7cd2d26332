// The specification, in double. For tests.
#pragma once

#include "kernels/norm/activation.h"

namespace tensorcache {

void GateReference(const GateArgs& args);
void GateBackwardReference(const GateBackwardArgs& args);

}  // namespace tensorcache
