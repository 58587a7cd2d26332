// Any bytes as a safetensors file: an error, or tensors that can be read to their last byte and lie in the file once
// each.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "core/safetensors.h"

using tensorcache::SafetensorsFile;

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

volatile unsigned sink;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = SafetensorsFile::FromMemory(std::as_bytes(std::span(data, size)), "fuzz");
  if (!file.ok()) {
    Require(file.status().code() == tensorcache::StatusCode::kCorrupt);
    Require(file.status().message().find('\n') == std::string::npos);
    return 0;
  }
  size_t total = 0;
  for (const std::string_view name : file->names()) {
    const auto tensor = file->Find(name);
    Require(tensor.ok());
    int64_t bytes = tensorcache::DTypeBytes(tensor->dtype);
    for (const int64_t extent : tensor->shape) bytes *= extent;
    Require(bytes == std::ssize(tensor->data));
    for (const std::byte byte : tensor->data) sink = sink + static_cast<unsigned>(byte);
    if (const auto values = file->Values<float>(name, tensor->shape); values.ok()) {
      for (const float value : *values) sink = sink + static_cast<unsigned>(value > 0);
    }
    total += tensor->data.size();
  }
  Require(total < size);
  if (const auto other = file->Find("a.weight"); !other.ok()) {
    Require(other.status().message().find('\n') == std::string::npos);
  }
  return 0;
}
