// A checkpoint folder of ours, as one that Hugging Face's library loads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "tensorcache/status.h"

namespace tensorcache::pretrained {

struct ExportOptions {
  std::string model;                     // the checkpoint folder
  std::string out;                       // the folder to write
  bool force = false;                    // replace what is in `out`
  bool drop_memory = false;              // leave the memory of method tensor_cache behind, and keep its window
  SafetensorsWriter::Progress progress;  // may be empty
};

struct ExportReport {
  std::string architecture;  // "MistralForCausalLM"
  int64_t tensors = 0, bytes = 0;
  int64_t dropped = 0;             // tensors of memories
  std::vector<std::string> notes;  // what the user should know
};

// kUnsupported says what the model has that no architecture there has. Streams, as ImportModel does. The same numbers come
// back from an import, bit for bit.
Result<ExportReport> ExportModel(const ExportOptions& options);

}  // namespace tensorcache::pretrained
