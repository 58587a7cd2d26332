#include "train/device.h"

#include <fmt/format.h>

#include "core/text.h"
#include "train/torch.h"

namespace tensorcache::train {

Status CheckDevice(const std::string& device) {
  if (device == "cpu") return OkStatus();
  const bool cuda = device == "cuda" || (device.starts_with("cuda:") && device.size() > 5 && device.size() < 9 &&
                                         device.find_first_not_of("0123456789", 5) == device.npos);
  if (!cuda) return InvalidArgument(fmt::format("train.device is {}; it must be cpu, cuda or cuda:N", Quoted(device)));
  if (!at::hasCUDA())
    return Unsupported(fmt::format("train.device is {}, but this LibTorch has no CUDA device", device));
  return OkStatus();
}

std::string DeviceOfProcess(const std::string& device, int local_rank) {
  return device == "cuda" ? fmt::format("cuda:{}", local_rank) : device;
}

}  // namespace tensorcache::train
