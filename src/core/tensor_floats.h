// Stored tensors of any floating type as floats.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "tensorcache/status.h"

namespace tensorcache {

// kUnsupported unless `tensor` is F32, BF16 or F16.
Status CheckIsFloat(const std::string& name, const TensorRef& tensor);

// Numbers [first, first + count) of such a tensor.
void ReadFloats(const TensorRef& tensor, int64_t first, int64_t count, float* out);
// All of them; checks the type.
Result<std::vector<float>> AllFloats(const std::string& name, const TensorRef& tensor);

}  // namespace tensorcache
