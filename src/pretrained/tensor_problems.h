// What is wrong with the tensors of a model, told in one line however much it is.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/safetensors.h"
#include "tensorcache/status.h"

namespace tensorcache::pretrained {

class TensorProblems {
 public:
  void AddMissing(std::string_view name) { missing_.emplace_back(name); }
  void AddSurplus(std::string_view name) { surplus_.emplace_back(name); }
  // Notes it if the shape is another one, or if the numbers are not of a kind that is kept as it is. Whether all is well.
  bool Check(std::string_view name, const TensorRef& tensor, std::span<const int64_t> shape);

  // `source` names the file or folder.
  Status Finish(const std::string& source) const;

 private:
  std::vector<std::string> missing_, surplus_, misshapen_, types_;
};

}  // namespace tensorcache::pretrained
