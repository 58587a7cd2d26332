// How a result was made, to be told with it.
#pragma once

#include <string>

#include "experiments/result.h"

namespace tensorcache::cli {

// By this program on this machine. The caller knows the rest: budget, seeds, seconds.
experiments::Provenance MadeHere(const std::string& command);

}  // namespace tensorcache::cli
