// The .bin files of llama2.c: a header of integers, and the tensors as floats, all layers of one kind together.
#pragma once

#include <string>
#include <vector>

#include "core/file.h"
#include "core/safetensors.h"
#include "tensorcache/config.h"
#include "tensorcache/status.h"

namespace tensorcache::pretrained {

struct Llama2cModel {
  ModelConfig config;  // valid; rotary embedding of interleaved pairs, full attention
  MappedFile file;
  std::vector<StoredTensor> tensors;  // under our names, in `file`
};

// Versions 0 (no magic) and 1. The size of the file must be what the header says. Messages name the file.
Result<Llama2cModel> OpenLlama2c(const std::string& path);

}  // namespace tensorcache::pretrained
