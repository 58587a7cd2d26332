// The tensors of a Hugging Face folder: one file, or the shards that an index names.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/safetensors.h"
#include "tensorcache/status.h"

namespace tensorcache::pretrained {

// Mapped, so that opening is cheap. TensorRefs are valid as long as the object.
class HfCheckpoint {
 public:
  // kUnsupported if the folder has its weights in another format alone.
  static Result<HfCheckpoint> Open(const std::string& folder);

  // Null if there is none.
  const TensorRef* Find(std::string_view name) const;
  const std::map<std::string, TensorRef, std::less<>>& tensors() const { return tensors_; }

 private:
  Status AddShard(const std::string& folder, const std::string& file);

  std::vector<SafetensorsFile> files_;
  std::map<std::string, TensorRef, std::less<>> tensors_;
};

}  // namespace tensorcache::pretrained
