// A model that others trained, as a checkpoint folder of ours.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "tensorcache/config.h"
#include "tensorcache/status.h"

namespace tensorcache::pretrained {

struct ImportOptions {
  std::string from;       // a Hugging Face folder, a llama2.c .bin file, or a folder with one
  std::string out;        // the folder to write
  std::string tokenizer;  // a file or folder to take the tokenizer from; "": the one that comes with the model
  bool force = false;     // replace what is in `out`
  SafetensorsWriter::Progress progress;  // may be empty
};

struct ImportReport {
  std::string architecture;  // "LlamaForCausalLM", "llama2.c"
  ModelConfig config;
  int64_t tensors = 0, parameters = 0, bytes = 0;
  std::string tokenizer;  // its kind, or ""
  int64_t tokenizer_tokens = 0;
  bool has_begin = false;          // the tokenizer has a token that begins a text
  std::vector<std::string> notes;  // what the user should know
};

// Streams the tensors: what must be rearranged is in memory one tensor at a time, the rest never.
Result<ImportReport> ImportModel(const ImportOptions& options);

}  // namespace tensorcache::pretrained
