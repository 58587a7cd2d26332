// Where training computes.
#pragma once

#include <string>

#include "tensorcache/status.h"

namespace tensorcache::train {

// Whether `device` (train.device of a config) is a name this build and machine know.
Status CheckDevice(const std::string& device);

// The device of one of several processes on a machine: "cuda" is a GPU of its own.
std::string DeviceOfProcess(const std::string& device, int local_rank);

}  // namespace tensorcache::train
