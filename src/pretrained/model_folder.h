// A folder with a model in it, written so that what can be loaded is always one whole model, never a mixture of two.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/model_files.h"
#include "core/safetensors.h"
#include "tensorcache/status.h"

namespace tensorcache::pretrained {

struct NamedFile {
  std::string name;
  std::string content;
};

// kInvalidArgument if `folder` has a model or a tokenizer already and `force` is not given; if it has a training run, which
// a new model would break; and if it is `source`.
Status CheckModelFolder(const std::string& folder, const std::string& source, bool force);

struct ModelFolder {
  std::string path;  // made if it is not there
  std::string source;
  bool force = false;
  std::string config;
  const SafetensorsWriter& tensors;
  std::vector<NamedFile> files;  // the tokenizer's; those of an earlier model go
  SafetensorsWriter::Progress progress;
};
// Checks as CheckModelFolder does. A kill or an error leaves what was there before (FolderReplacement says when a kill may
// leave a folder without config.json).
Status WriteModelFolder(const ModelFolder& folder);

}  // namespace tensorcache::pretrained
