// Where training computes.
#pragma once

#include <string>

#include "tensorcache/status.h"

namespace tensorcache::train {

// Whether `device` (train.device of a config) is a name this build and machine know.
Status CheckDevice(const std::string& device);

}  // namespace tensorcache::train
